//! The gRPC server: the CNI and introspection services on the unix socket.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use ferrule_proto::{
    DESCRIPTORS, agent::agent_server::AgentServer, cni::cni_server::CniServer,
    observer::observer_server::ObserverServer,
};
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};
use tonic::{
    service::InterceptorLayer,
    transport::{self, Server},
};
use tonic_health::{
    ServingStatus,
    server::{HealthReporter, health_reporter},
};

use super::tasks::Tasks;
use crate::{cni::CniService, health::Health, monitor::ObserverService, observe::AgentService, server};

/// The running server.
pub(super) struct Grpc {
    serving: JoinHandle<Result<(), transport::Error>>,
    stop: oneshot::Sender<()>,
}

/// Longer than any runtime waits for a plugin.
const CALL_DEADLINE: Duration = Duration::from_secs(120);
/// Concurrent calls on one connection. A shim makes one, ferrulectl few.
const MAX_STREAMS: u32 = 64;
/// Bytes of a request's headers: names, a deadline and a trace context.
const MAX_HEADERS: u32 = 16 * 1024;
/// The deadline of calls in flight after a signal to stop.
pub(super) const DRAIN: Duration = Duration::from_secs(15);
/// The name by which `hubble status` asks for the health of the observer.
const HUBBLE_HEALTH: &str = "hubble.server.Observer";
const ENDED: &str = "the gRPC server ended unexpectedly: please report this defect";

// === impl Grpc ===

impl Grpc {
    /// Creates the socket and starts serving.
    ///
    /// # Errors
    /// If the socket cannot be created: see [`server::listen`].
    pub async fn start(
        socket: &Path,
        cni: CniService,
        (agent, observer): (AgentService, ObserverService),
        tasks: &mut Tasks,
    ) -> anyhow::Result<Self> {
        let (reporter, grpc_health) = health_reporter();
        reporter.set_serving::<AgentServer<AgentService>>().await;
        reporter.set_serving::<ObserverServer<ObserverService>>().await;
        reporter.set_service_status(HUBBLE_HEALTH, ServingStatus::Serving).await;
        reporter.set_not_serving::<CniServer<CniService>>().await;
        tasks.spawn("gRPC health", publish_readiness(cni.health.clone(), reporter));
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let listener = server::listen(socket)?;
        tracing::info!(socket = %socket.display(), "serving");
        let serving = server::limit(Server::builder())
            .timeout(CALL_DEADLINE)
            .max_concurrent_streams(MAX_STREAMS)
            .http2_max_header_list_size(MAX_HEADERS)
            .layer(InterceptorLayer::new(server::check_peer))
            .add_service(CniServer::new(cni))
            .add_service(AgentServer::new(agent))
            .add_service(ObserverServer::new(observer))
            .add_service(grpc_health)
            .add_service(reflection)
            .serve_with_incoming_shutdown(server::incoming(listener), async {
                // A dropped sender means stop too.
                let _ = stopped.await;
            });
        Ok(Self { serving: tokio::spawn(serving), stop })
    }

    /// Waits for the server to end without a request to stop, which is an error.
    pub async fn ended(&mut self) -> anyhow::Error {
        match (&mut self.serving).await {
            Ok(Ok(())) => anyhow::Error::msg(ENDED),
            Ok(Err(error)) => anyhow::Error::new(error).context(ENDED),
            Err(panic) => anyhow::Error::new(panic).context(ENDED),
        }
    }

    /// Shuts down gracefully: accepts no more calls, and waits for those in flight. Returns whether all have
    /// finished.
    ///
    /// # Errors
    /// If the server has failed.
    pub async fn drain(mut self) -> anyhow::Result<bool> {
        if self.serving.is_finished() {
            return Ok(true);
        }
        let _ = self.stop.send(());
        match timeout(DRAIN, &mut self.serving).await {
            Ok(ended) => ended?.context("the gRPC server failed").map(|()| true),
            Err(_) => {
                tracing::warn!(deadline = ?DRAIN, "calls are still in flight after the drain; the next agent rolls them back");
                // Closes the connections, so that no shim waits for a reply.
                self.serving.abort();
                Ok(false)
            }
        }
    }
}

/// Publishes the agent's readiness as the CNI service's state in gRPC's health service.
async fn publish_readiness(health: Health, reporter: HealthReporter) {
    let mut readiness = health.readiness();
    loop {
        let is_ready = *readiness.borrow_and_update();
        if is_ready {
            reporter.set_serving::<CniServer<CniService>>().await;
        } else {
            reporter.set_not_serving::<CniServer<CniService>>().await;
        }
        // Cannot fail: `health` owns the sender.
        let _ = readiness.changed().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;
    use tonic::Request;
    use tonic_health::pb::{
        HealthCheckRequest,
        health_check_response::ServingStatus::{NotServing, Serving},
        health_server::Health as _,
    };

    use super::*;

    #[tokio::test]
    async fn grpc_health_follows_readiness() {
        let (reporter, _) = health_reporter();
        let health = Health::default();
        let service = tonic_health::server::HealthService::from_health_reporter(reporter.clone());
        let status = async || {
            sleep(Duration::from_millis(20)).await;
            let of = HealthCheckRequest { service: "ferrule.cni.v1.Cni".to_owned() };
            service.check(Request::new(of)).await.unwrap().into_inner().status()
        };
        let needed = health.component("ranges", true, "");
        let following = tokio::spawn(publish_readiness(health.clone(), reporter));
        assert_eq!(status().await, NotServing);
        needed.healthy("");
        assert_eq!(status().await, Serving);
        let stopping = health.component("shutdown", true, "stopping");
        assert_eq!(status().await, NotServing);
        drop(stopping);
        assert_eq!(status().await, Serving);
        following.abort();
    }
}
