//! Serving the runtime and the operator on the socket.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, anyhow};
use ferrule_proto::{DESCRIPTORS, agent::agent_server::AgentServer, cni::cni_server::CniServer};
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};
use tonic::{
    service::InterceptorLayer,
    transport::{self, Server},
};
use tonic_health::server::{HealthReporter, health_reporter};

use super::tasks::Tasks;
use crate::{cni::CniService, health::Health, observe::AgentService, server};

/// The services, while they are served.
pub(super) struct Grpc {
    serving: JoinHandle<Result<(), transport::Error>>,
    stop: oneshot::Sender<()>,
}

/// Longer than any runtime waits, so that no call is held for ever.
const CALL_DEADLINE: Duration = Duration::from_secs(120);
/// Calls at once on one connection. A plugin makes one, and people few.
const MAX_STREAMS: u32 = 64;
/// Bytes of one request's headers: a name or two, a deadline, and whose trace it is part of.
const MAX_HEADERS: u32 = 16 * 1024;
/// How long calls in work may take to finish after a signal to stop.
const DRAIN: Duration = Duration::from_secs(15);

// === impl Grpc ===

impl Grpc {
    /// Begins to serve. From then on, the socket is there.
    ///
    /// # Errors
    /// If somebody listens there, or something else is in the way.
    pub async fn start(
        socket: &Path,
        cni: CniService,
        agent: AgentService,
        tasks: &mut Tasks,
    ) -> anyhow::Result<Self> {
        let (reporter, grpc_health) = health_reporter();
        reporter.set_serving::<AgentServer<AgentService>>().await;
        reporter.set_not_serving::<CniServer<CniService>>().await;
        tasks.spawn("gRPC health", tell_readiness(cni.health.clone(), reporter));
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
            .add_service(grpc_health)
            .add_service(reflection)
            .serve_with_incoming_shutdown(server::incoming(listener), async {
                // Either way it is time to stop.
                let _ = stopped.await;
            });
        Ok(Self { serving: tokio::spawn(serving), stop })
    }

    /// Waits until it ends, which it should not.
    pub async fn ended(&mut self) -> anyhow::Error {
        match (&mut self.serving).await {
            Ok(Ok(())) => anyhow!("serving on the socket has ended"),
            Ok(Err(error)) => anyhow::Error::new(error).context("serving on the socket has ended"),
            Err(panic) => anyhow::Error::new(panic).context("serving on the socket has ended"),
        }
    }

    /// Takes no more calls, and gives those in work time to finish. Tells whether they have.
    ///
    /// # Errors
    /// If serving has failed.
    pub async fn drain(mut self) -> anyhow::Result<bool> {
        if self.serving.is_finished() {
            return Ok(true);
        }
        let _ = self.stop.send(());
        match timeout(DRAIN, &mut self.serving).await {
            Ok(ended) => ended?.context("serving on the socket has failed").map(|()| true),
            Err(_) => {
                tracing::warn!("calls are still in work after {DRAIN:?}: leaving them to the next agent");
                // So that a shim that comes now finds nobody, and does not wait for an answer.
                self.serving.abort();
                Ok(false)
            }
        }
    }
}

/// gRPC's own health checks say of the CNI service what the agent's readiness is.
async fn tell_readiness(health: Health, reporter: HealthReporter) {
    let mut readiness = health.readiness();
    loop {
        let is_ready = *readiness.borrow_and_update();
        if is_ready {
            reporter.set_serving::<CniServer<CniService>>().await;
        } else {
            reporter.set_not_serving::<CniServer<CniService>>().await;
        }
        // The sender is there as long as `health` is.
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
        let following = tokio::spawn(tell_readiness(health.clone(), reporter));
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
