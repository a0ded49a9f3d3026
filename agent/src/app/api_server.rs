//! The API server: its client, and the watches of the objects that the node needs.

use std::{env, net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use ipnet::IpNet;
use tokio::{
    sync::watch::{Receiver, channel},
    time::sleep,
};

use super::{local_network::LocalNetwork, ranges::follow_ranges, single_node, tasks::Tasks};
use crate::{
    api::Api,
    cluster::{self, InitialSync, KURYR_PORTS, OwnNode, PodChange, Pods},
    config::{Config, Kubernetes},
    decide::VifSource,
    events::Events,
    health::Health,
    ipam::Ranges,
    metrics::Metrics,
    nodes::{Announcer, Duties, Mode, Nodes, Refusals, Table},
    policy::Feed,
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

    /// Starts the watches. `on_change` gets the changed pods, the registry the node's ranges, and the
    /// returned receiver the nodes of the cluster. The caller starts the announcer.
    pub fn watch(
        self,
        config: &Config,
        (registry, network, pods, events): (&Arc<Registry>, &Arc<LocalNetwork>, Pods, Events),
        feed: Option<&Arc<Feed>>,
        on_change: impl Fn(PodChange) + Send + Sync + 'static,
        (health, metrics): (&Health, &Metrics),
        tasks: &mut Tasks,
    ) -> anyhow::Result<(Arc<Watches>, Receiver<Arc<Nodes>>, Announcer)> {
        let Self { config: kubernetes, client } = self;
        let cache =
            CheckpointLogs::open(&config.state_dir).context("cannot open the checkpoints of the watches")?;
        let watches = Watches::new(
            Arc::clone(&client),
            Arc::new(cache),
            kubernetes.watch,
            metrics.watch.clone(),
            health.clone(),
        );
        let watches = Arc::new(watches);
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
        let ranges =
            Arc::new(health.component("ranges", needs_ranges, "waiting for the Node object's spec.podCIDRs"));
        let name = &kubernetes.node_name;
        cluster::watch_pods(&watches, name, pods.clone(), on_change, initial_sync.clone());
        if is_kuryr {
            cluster::watch_kuryr_ports(&watches, name, pods, initial_sync);
        }
        let (mut own, marks) = OwnNode::new(name);
        let changes = match &config.pod_cidrs {
            None => own.follow_ranges(Arc::clone(&ranges)),
            Some(configured) => {
                ranges.healthy(configured.to_string());
                let (sender, changes) = channel(Ranges::Known(configured.clone()));
                tasks.spawn(
                    "single-node",
                    single_node::watch(Arc::clone(&client), configured.clone(), sender),
                );
                changes
            }
        };
        let (table, nodes) = Table::new(name, service_ranges(config));
        follow_nodes((&watches, own, events, feed.cloned()), table, health, tasks);
        if let Some(feed) = feed {
            let (watches, client) = (Arc::clone(&watches), Arc::clone(&client));
            let open_after = config.opens_unlisted_after();
            tasks.spawn("policy-feed", Arc::clone(feed).run(watches, client, open_after));
        }
        let announcer = Announcer {
            api: client,
            node: name.clone(),
            duties: match config.nodes.mode {
                // A cloud's controller routes, and knows when.
                Mode::Off => Duties::Taint,
                Mode::Auto | Mode::Direct | Mode::Vxlan => Duties::TaintAndCondition,
            },
            marks,
            health: health.component("node-status", false, "this node does not serve pods yet"),
        };
        tasks.spawn("ranges", follow_ranges((Arc::clone(registry), Arc::clone(network)), changes, ranges));
        Ok((watches, nodes, announcer))
    }
}

/// The ranges of Services that are known without their objects: those of the settings, and the address of the
/// API server's own Service.
fn service_ranges(config: &Config) -> Vec<IpNet> {
    let api = env::var("KUBERNETES_SERVICE_HOST").ok().and_then(|it| it.parse::<IpAddr>().ok());
    config.service_cidrs.iter().copied().chain(api.map(IpNet::from)).collect()
}

/// Watches the nodes of the cluster, and the ranges of Services, which their ranges may not overlap.
fn follow_nodes(
    (watches, own, events, feed): (&Watches, OwnNode, Events, Option<Arc<Feed>>),
    table: Arc<Table>,
    health: &Health,
    tasks: &mut Tasks,
) {
    let noted = Arc::clone(&table);
    cluster::watch_service_cidrs(watches, move |change| noted.apply_services(change));
    let noted = Arc::clone(&table);
    cluster::watch_nodes(watches, own, move |change| {
        if let Some(feed) = &feed {
            feed.apply_node(&change);
        }
        noted.apply(change);
    });
    let refusals = Refusals::new(health.component("cluster", false, "the nodes are not listed yet"), events);
    tasks.spawn("nodes", table.run(refusals));
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
