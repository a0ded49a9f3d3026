//! Putting the rooms together, and taking them down in order.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use ferrule_proto::{DESCRIPTORS, agent::agent_server::AgentServer, cni::cni_server::CniServer};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::timeout,
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{service::InterceptorLayer, transport::Server};

use crate::{
    cni::{CniService, Node, Policy, VifSource},
    config::{Config, Kubernetes},
    dataplane::Dataplane,
    events::Events,
    follow,
    health::Health,
    metrics::Metrics,
    observe::AgentService,
    plug::{
        reaper::{Reaper, reap_now},
        uplink::Uplink,
    },
    reconcile,
    registry::{Cache, Registry},
    server::{self, NodeLock},
    watch::{Api, Watches},
};

/// Longer than any runtime waits, so that no call is held for ever.
const CALL_DEADLINE: Duration = Duration::from_secs(120);
/// How long calls in work may take to finish after a signal to stop.
const DRAIN: Duration = Duration::from_secs(15);

/// Runs the agent until a signal ends it. Pods' packets flow on afterwards.
///
/// # Errors
/// If something that it cannot work without is missing, taken or refused.
pub async fn run(config: Config, object: &[u8]) -> anyhow::Result<()> {
    // First of all: two agents must not even look at the same kernel, nor at the same state.
    let _node = NodeLock::take()?;
    let (health, metrics) = (Health::default(), Metrics::default());
    let registry = Registry::open(&config.state_dir)?;
    let uplink = Uplink::detect().context("cannot find out the MTU of the node's uplink")?;
    let dataplane = Dataplane::load(object, &config.bpf_dir, config.ebpf_log)?;
    tracing::info!(pins = %dataplane.pins().display(), "dataplane loaded");

    let reaper = Reaper::default();
    let policy = Policy {
        source: config.vif_source,
        timeout: config.vif_timeout,
        vif_cidrs: config.vif_cidrs.clone(),
    };
    let (events, notes) = match &config.kubernetes {
        Some(_) => {
            let (events, notes) = Events::channel(metrics.events.clone());
            (events, Some(notes))
        }
        None => (Events::nowhere(metrics.events.clone()), None),
    };
    let node = Arc::new(Node::new(registry, dataplane, uplink.clone(), reaper.clone(), policy, events));
    let (at_start, ranges) = (Arc::clone(&node), config.pod_cidrs.clone());
    tokio::task::spawn_blocking(move || {
        if !ranges.is_empty() {
            follow::use_ranges(&at_start, &ranges).context("cannot use the pod CIDRs of the configuration")?;
        }
        reconcile::recover(&at_start).context("cannot take over from an earlier agent")
    })
    .await??;
    tokio::spawn(reaper.run());
    tokio::spawn(uplink.follow());
    let watches = match &config.kubernetes {
        Some(cluster) => Some(watch(&config, cluster, &node, &health, &metrics)?),
        None => None,
    };
    let served = serve(&config, Arc::clone(&node), health).await;
    if let Some(watches) = watches {
        watches.stop().await;
    }
    // The reaper is not there any more for what the last calls left to it.
    tokio::task::spawn_blocking(reap_now).await??;
    served
}

/// Begins to follow the API server.
fn watch(
    config: &Config,
    cluster: &Kubernetes,
    node: &Arc<Node>,
    health: &Health,
    metrics: &Metrics,
) -> anyhow::Result<Watches> {
    let cache = Cache::open(&config.state_dir).context("cannot keep what the watches tell")?;
    let api = Arc::new(Api::new(cluster.kubeconfig.clone()));
    let watches = Watches::new(api, Arc::new(cache), cluster.watch, metrics.watch.clone(), health.clone());
    let source = config.vif_source;
    // In `auto` the runtime's call tells whether the pod is annotated.
    let needs_pods = matches!(source, VifSource::Annotation | VifSource::Kuryr);
    let needs_ranges = matches!(source, VifSource::Auto | VifSource::Ipam) && config.pod_cidrs.is_empty();
    let known = needs_pods.then(|| health.component("vifs", true, "the node's pods have not been listed yet"));
    let ranges = needs_ranges
        .then(|| health.component("ranges", true, "waiting for the API server to tell the node's spec.podCIDRs"));
    follow::follow(&watches, node, cluster, known, ranges);
    Ok(watches)
}

async fn serve(config: &Config, node: Arc<Node>, health: Health) -> anyhow::Result<()> {
    let (health_reporter, grpc_health) = tonic_health::server::health_reporter();
    health_reporter.set_serving::<CniServer<CniService>>().await;
    health_reporter.set_serving::<AgentServer<AgentService>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let listener = server::listen(&config.socket)?;
    tracing::info!(socket = %config.socket.display(), "serving");
    let serving = Server::builder()
        .timeout(CALL_DEADLINE)
        .layer(InterceptorLayer::new(server::check_peer))
        .add_service(CniServer::new(CniService { node: Arc::clone(&node), health }))
        .add_service(AgentServer::new(AgentService(node)))
        .add_service(grpc_health)
        .add_service(reflection)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async {
            // Either way it is time to stop.
            let _ = stopped.await;
        });
    let mut serving = tokio::spawn(serving);
    tokio::select! {
        ended = &mut serving => ended?.context("serving has ended")?,
        signal = stop_signal() => {
            tracing::info!(signal = signal?, "stopping; pods' packets flow on");
            health_reporter.set_not_serving::<CniServer<CniService>>().await;
            let _ = stop.send(());
            match timeout(DRAIN, serving).await {
                Ok(ended) => ended?.context("serving has ended")?,
                Err(_) => tracing::warn!("calls are still in work after {DRAIN:?}: leaving them to the next agent"),
            }
        }
    }
    Ok(())
}

async fn stop_signal() -> std::io::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
    }
}
