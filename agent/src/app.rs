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
    cni::{CniService, Node},
    config::Config,
    dataplane::Dataplane,
    observe::AgentService,
    plug::{
        host,
        reaper::{Reaper, reap_now},
        uplink::Uplink,
    },
    reconcile,
    registry::Registry,
    server::{self, NodeLock},
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
    let registry = Registry::open(&config.state_dir, &config.pod_cidrs)?;
    registry.exclude(host::addresses().context("cannot list the node's own addresses")?);
    let uplink = Uplink::detect().context("cannot find out the MTU of the node's uplink")?;
    let dataplane = Dataplane::load(object, &config.bpf_dir, config.ebpf_log)?;
    tracing::info!(pins = %dataplane.pins().display(), "dataplane loaded");
    // Only now: an agent that cannot serve leaves the node as it was.
    host::forward(&config.pod_cidrs).context("cannot make the node forward packets")?;

    let reaper = Reaper::default();
    let node = Arc::new(Node::new(registry, dataplane, uplink.clone(), reaper.clone()));
    let at_start = Arc::clone(&node);
    tokio::task::spawn_blocking(move || reconcile::recover(&at_start))
        .await?
        .context("cannot take over from an earlier agent")?;
    tokio::spawn(reaper.run());
    tokio::spawn(uplink.follow());
    let served = serve(&config, node).await;
    // The reaper is not there any more for what the last calls left to it.
    tokio::task::spawn_blocking(reap_now).await??;
    served
}

async fn serve(config: &Config, node: Arc<Node>) -> anyhow::Result<()> {
    let (health_reporter, health) = tonic_health::server::health_reporter();
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
        .add_service(CniServer::new(CniService(Arc::clone(&node))))
        .add_service(AgentServer::new(AgentService(node)))
        .add_service(health)
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
