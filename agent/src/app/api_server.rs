//! The API server: its client, and the watches of the objects that the node needs.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use tokio::time::sleep;

use super::{ranges, tasks::Tasks};
use crate::{
    api::Api,
    cluster::{self, InitialSync, KURYR_PORTS, Pods},
    config::{Config, Kubernetes},
    decide::VifSource,
    health::Health,
    metrics::Metrics,
    reconcile::Queue,
    registry::Registry,
    watch::{CheckpointLogs, Watches},
};

pub(super) struct ApiServer<'a> {
    pub config: &'a Kubernetes,
    pub client: Arc<Api>,
}

/// How often [`dead`] checks the watches.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

// === impl ApiServer ===

impl<'a> ApiServer<'a> {
    pub fn new(config: &'a Kubernetes) -> Self {
        Self { config, client: Arc::new(Api::new(config.kubeconfig.clone())) }
    }

    /// Starts the watches. `queue` gets the changed pods, and the registry the node's ranges.
    pub fn watch(
        self,
        config: &Config,
        (registry, pods): (&Arc<Registry>, Pods),
        queue: Queue,
        (health, metrics): (&Health, &Metrics),
        tasks: &mut Tasks,
    ) -> anyhow::Result<Watches> {
        let Self { config: kubernetes, client } = self;
        let cache =
            CheckpointLogs::open(&config.state_dir).context("cannot open the checkpoints of the watches")?;
        let watches =
            Watches::new(client, Arc::new(cache), kubernetes.watch, metrics.watch.clone(), health.clone());
        let source = config.vif_source;
        // With `auto`, the runtime passes the pod's annotations in the call.
        let needs_pods = matches!(source, VifSource::Annotation | VifSource::Kuryr);
        let is_kuryr = source == VifSource::Kuryr;
        let initial_sync = needs_pods.then(|| {
            let sources: &[_] = if is_kuryr { &[Pods::WATCH, KURYR_PORTS] } else { &[Pods::WATCH] };
            let health = health.component("vifs", true, "the node's pods have not been listed yet");
            InitialSync::new(sources, health)
        });
        let needs_ranges = match source {
            VifSource::Auto | VifSource::Ipam => true,
            VifSource::Annotation => config.vif_cidrs.is_empty(),
            // KuryrPorts need no ranges.
            VifSource::Kuryr => false,
        };
        let ranges = config.pod_cidrs.is_empty().then(|| {
            let waiting = "waiting for the Node object's spec.podCIDRs";
            health.component("ranges", needs_ranges, waiting)
        });
        let name = &kubernetes.node_name;
        cluster::watch_pods(&watches, name, pods.clone(), move |key| queue.add(key), initial_sync.clone());
        if is_kuryr {
            cluster::watch_kuryr_ports(&watches, name, pods, initial_sync);
        }
        if let Some(health) = ranges {
            let health = Arc::new(health);
            let changes = cluster::watch_own_node(&watches, name, Arc::clone(&health));
            tasks.spawn("ranges", ranges::follow_ranges(Arc::clone(registry), changes, health));
        }
        Ok(watches)
    }
}

/// Waits until a watch ends unexpectedly.
pub(super) async fn dead(watches: Option<&Watches>) -> anyhow::Error {
    loop {
        if let Some(source) = watches.and_then(Watches::dead) {
            return anyhow!("the watch of {source} ended unexpectedly: please report this defect");
        }
        sleep(CHECK_INTERVAL).await;
    }
}
