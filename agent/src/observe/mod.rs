//! Introspection: the `ferrule.agent.v1.Agent` service for `ferrulectl`, and metrics and probes over HTTP.

mod drops;
mod gc;
pub mod http;
pub mod liveness;
mod nodes;
mod policies;
mod status;
pub mod store_health;
mod verify;

use std::sync::Arc;

use agent_common::Counters as Counted;
use ferrule_proto::agent::{
    Attachment as Shown, Counters, ExplainGcRequest, ExplainGcResponse, ExplainPoliciesRequest,
    ExplainPoliciesResponse, GetStatusRequest, GetStatusResponse, ListAttachmentsRequest,
    ListAttachmentsResponse, ListNodesRequest, ListNodesResponse, ListPoliciesRequest, ListPoliciesResponse,
    SetFlowSamplingRequest, SetFlowSamplingResponse, SetLogFilterRequest, SetLogFilterResponse,
    TracePoliciesRequest, TracePoliciesResponse, VerifyRequest, VerifyResponse, agent_server::Agent,
    attachment::State as ShownState,
};
use tokio::task::spawn_blocking;
use tonic::{Request, Response, Status};

use crate::{
    chain::chain,
    dataplane::{Dataplane, SamplingError},
    health::{Health, Reporter},
    log, monitor,
    nodes::Keeper,
    policy::Enforcer,
    reconcile::Collector,
    registry::{Attachment, Registry, State},
};

use policies::Policies;
pub use verify::Verifier;

/// The `ferrule.agent.v1.Agent` service.
pub struct AgentService {
    pub registry: Arc<Registry>,
    pub dataplane: Arc<Dataplane>,
    pub health: Health,
    /// The component of the maps' pins: their removal sends no notification.
    pub pins: Arc<Reporter>,
    pub collector: Arc<Collector>,
    pub verifier: Verifier,
    pub keeper: Arc<Keeper>,
    pub enforcer: Arc<Enforcer>,
    /// The name of the Node object; empty without Kubernetes.
    pub node_name: String,
    pub log: log::Control,
}

#[tonic::async_trait]
impl Agent for AgentService {
    async fn list_attachments(
        &self,
        _: Request<ListAttachmentsRequest>,
    ) -> Result<Response<ListAttachmentsResponse>, Status> {
        let attachments = self.registry.list().into_iter().map(|attachment| self.show(attachment)).collect();
        Ok(Response::new(ListAttachmentsResponse { attachments }))
    }

    async fn get_status(&self, _: Request<GetStatusRequest>) -> Result<Response<GetStatusResponse>, Status> {
        let (dataplane, pins) = (Arc::clone(&self.dataplane), Arc::clone(&self.pins));
        let decided = self.keeper.decided();
        let checked = spawn_blocking(move || {
            dataplane.report_pins(&pins);
            status::links(monitor::counters::links(&dataplane), &decided)
        });
        let links = checked.await.map_err(|error| Status::internal(chain(&error)))?;
        Ok(Response::new(status::show(&self.health, &self.node_name, links)))
    }

    async fn list_nodes(&self, _: Request<ListNodesRequest>) -> Result<Response<ListNodesResponse>, Status> {
        nodes::list(self.keeper.decided()).await
    }

    async fn explain_gc(&self, _: Request<ExplainGcRequest>) -> Result<Response<ExplainGcResponse>, Status> {
        gc::explain(&self.collector).await
    }

    async fn verify(&self, _: Request<VerifyRequest>) -> Result<Response<VerifyResponse>, Status> {
        self.verifier.verify().await
    }

    async fn set_flow_sampling(
        &self,
        request: Request<SetFlowSamplingRequest>,
    ) -> Result<Response<SetFlowSamplingResponse>, Status> {
        let (one_in, before) = (request.into_inner().one_in, self.dataplane.flow_sampling());
        self.dataplane.set_flow_sampling(one_in).map_err(|error| match error {
            SamplingError::Never => Status::failed_precondition(error.to_string()),
            SamplingError::Map(error) => Status::internal(chain(&error)),
        })?;
        tracing::info!(one_in, before, "set the sampling of flows");
        Ok(Response::new(SetFlowSamplingResponse { before }))
    }

    async fn list_policies(
        &self,
        _: Request<ListPoliciesRequest>,
    ) -> Result<Response<ListPoliciesResponse>, Status> {
        self.ask_policies(|it| Ok(it.list())).await
    }

    async fn explain_policies(
        &self,
        request: Request<ExplainPoliciesRequest>,
    ) -> Result<Response<ExplainPoliciesResponse>, Status> {
        self.ask_policies(|it| it.explain(request.into_inner())).await
    }

    async fn trace_policies(
        &self,
        request: Request<TracePoliciesRequest>,
    ) -> Result<Response<TracePoliciesResponse>, Status> {
        self.ask_policies(|it| it.trace(request.into_inner())).await
    }

    async fn set_log_filter(
        &self,
        request: Request<SetLogFilterRequest>,
    ) -> Result<Response<SetLogFilterResponse>, Status> {
        let before = match request.into_inner().filter {
            None => self.log.current(),
            Some(text) => {
                let filter = log::Filter::new(&text);
                self.log.set(filter.map_err(|error| Status::invalid_argument(error.to_string()))?)
            }
        };
        let now = self.log.current();
        tracing::info!(before = before.as_str(), now = now.as_str(), "the filter of the log was asked for");
        let show = |filter: &log::Filter| filter.as_str().to_owned();
        Ok(Response::new(SetLogFilterResponse { before: show(&before), now: show(&now) }))
    }
}

// === impl AgentService ===

impl AgentService {
    /// On a thread of its own: compiling may hold an answer up.
    async fn ask_policies<T: Send + 'static>(
        &self,
        ask: impl FnOnce(Policies) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let policies = Policies {
            enforcer: Arc::clone(&self.enforcer),
            dataplane: Arc::clone(&self.dataplane),
            nodes: Arc::clone(&self.keeper.decided().nodes),
        };
        let answer = spawn_blocking(move || ask(policies)).await;
        answer.map_err(|error| Status::internal(chain(&error)))?.map(Response::new)
    }

    fn show(&self, attachment: Attachment) -> Shown {
        let Attachment { key, state, pod, netns, netns_id, vif, host, created_at_ms, .. } = attachment;
        let counters = host.ifindex().map(|ifindex| self.dataplane.counters(ifindex));
        let counters = match counters {
            Some(Ok(counters)) => counters.map(show_counters),
            Some(Err(error)) => {
                tracing::warn!(%key, %error, "cannot read the counters of an attachment");
                None
            }
            None => None,
        };
        let (host_ifname, host_ifindex) =
            host.device().map(|device| (device.ifname.clone(), device.ifindex)).unwrap_or_default();
        Shown {
            network: key.network.to_string(),
            container_id: key.container_id.to_string(),
            ifname: key.ifname.to_string(),
            pod_namespace: pod.namespace,
            pod_name: pod.name,
            pod_uid: pod.uid,
            netns: netns.to_string_lossy().into_owned(),
            netns_dev: netns_id.dev,
            netns_ino: netns_id.ino,
            host_ifname,
            host_ifindex,
            mac: vif.mac.to_string(),
            mtu: vif.mtu,
            addresses: vif.by_preference().map(|address| address.to_string()).collect(),
            state: show_state(state).into(),
            created_at_ms,
            counters,
        }
    }
}

fn show_state(state: State) -> ShownState {
    match state {
        State::Reserved => ShownState::Reserved,
        State::Plugged => ShownState::Plugged,
        State::Attached => ShownState::Attached,
        State::Unplugging => ShownState::Unplugging,
    }
}

fn show_counters(counted: Counted) -> Counters {
    Counters {
        egress_packets: counted.egress.packets,
        egress_bytes: counted.egress.bytes,
        ingress_packets: counted.ingress.packets,
        ingress_bytes: counted.ingress.bytes,
        egress_drops: drops::show(&counted.egress.drops),
        ingress_drops: drops::show(&counted.ingress.drops),
    }
}
