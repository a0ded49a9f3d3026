//! Introspection: the `ferrule.agent.v1.Agent` service for `ferrulectl`, and metrics and probes over HTTP.

mod addresses;
mod attachments;
mod bench;
mod check;
mod drops;
mod explain;
pub mod facts;
mod gc;
pub mod http;
mod inside;
pub mod liveness;
mod nodes;
mod policies;
mod probe;
mod reach;
pub mod scrape;
mod status;
mod verify;

use std::sync::Arc;

use ferrule_proto::agent::{
    BenchSelfRequest, BenchSelfResponse, CheckPodRequest, CheckPodResponse, ExplainGcRequest,
    ExplainGcResponse, ExplainPodRequest, ExplainPodResponse, ExplainPoliciesRequest,
    ExplainPoliciesResponse, GetFactsRequest, GetFactsResponse, GetStatusRequest, GetStatusResponse,
    ListAddressesRequest, ListAddressesResponse, ListAttachmentsRequest, ListAttachmentsResponse,
    ListNodesRequest, ListNodesResponse, ListPoliciesRequest, ListPoliciesResponse, SetFlowSamplingRequest,
    SetFlowSamplingResponse, SetLogFilterRequest, SetLogFilterResponse, TracePoliciesRequest,
    TracePoliciesResponse, VerifyRequest, VerifyResponse, agent_server::Agent,
};
use ipnet::IpNet;
use tokio::{sync::Semaphore, task::spawn_blocking};
use tonic::{Request, Response, Status};

use crate::{
    attach::Journal,
    chain::chain,
    cluster::Pods,
    dataplane::{Dataplane, SamplingError},
    health::{Health, Reporter},
    log,
    monitor::{self, History},
    nodes::Keeper,
    policy::Enforcer,
    reconcile::Collector,
    registry::Registry,
};

use bench::Bench;
use explain::Explainer;
use facts::Facts;
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
    /// What became of ADDs.
    pub journal: Arc<Journal>,
    /// What was dropped.
    pub history: Arc<History>,
    /// What the watch knows of this node's pods; `None` without Kubernetes.
    pub pods: Option<Pods>,
    pub facts: Facts,
    /// The name of the Node object; empty without Kubernetes.
    pub node_name: String,
    /// Ranges beside the node's own that pods' addresses may be in; `None` if addresses need no range.
    pub also_allowed: Option<Vec<IpNet>>,
    pub log: log::Control,
    /// One permit: measurements would disturb each other.
    pub benches: Semaphore,
}

#[tonic::async_trait]
impl Agent for AgentService {
    async fn list_attachments(
        &self,
        _: Request<ListAttachmentsRequest>,
    ) -> Result<Response<ListAttachmentsResponse>, Status> {
        let attachments = self.registry.list().into_iter();
        let attachments = attachments.map(|it| attachments::show(&self.dataplane, it)).collect();
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

    async fn list_nodes(
        &self,
        request: Request<ListNodesRequest>,
    ) -> Result<Response<ListNodesResponse>, Status> {
        nodes::list(self.keeper.decided(), request.into_inner()).await
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
        if before != now {
            tracing::info!(before = before.as_str(), now = now.as_str(), "changed the filter of the log");
        }
        let show = |filter: &log::Filter| filter.as_str().to_owned();
        Ok(Response::new(SetLogFilterResponse { before: show(&before), now: show(&now) }))
    }

    async fn explain_pod(
        &self,
        request: Request<ExplainPodRequest>,
    ) -> Result<Response<ExplainPodResponse>, Status> {
        self.explainer().explain(request.into_inner(), &self.verifier).await.map(Response::new)
    }

    async fn check_pod(
        &self,
        request: Request<CheckPodRequest>,
    ) -> Result<Response<CheckPodResponse>, Status> {
        let CheckPodRequest { namespace, name } = request.into_inner();
        let asked = ExplainPodRequest { namespace, name };
        let explained = self.explainer().explain(asked, &self.verifier).await?;
        let answers = probe::ask_all(check::current(&explained)).await;
        Ok(Response::new(check::check(&explained, &answers)))
    }

    async fn list_addresses(
        &self,
        _: Request<ListAddressesRequest>,
    ) -> Result<Response<ListAddressesResponse>, Status> {
        Ok(Response::new(addresses::list(&self.registry)))
    }

    async fn get_facts(&self, _: Request<GetFactsRequest>) -> Result<Response<GetFactsResponse>, Status> {
        let (facts, journal) = (self.facts.clone(), Arc::clone(&self.journal));
        let dataplane = Arc::clone(&self.dataplane);
        let collected = spawn_blocking(move || facts.collect(&journal, &dataplane)).await;
        collected.map_err(|error| Status::internal(chain(&error))).map(Response::new)
    }

    async fn bench_self(
        &self,
        request: Request<BenchSelfRequest>,
    ) -> Result<Response<BenchSelfResponse>, Status> {
        let _alone = self.benches.try_acquire().map_err(|_| {
            Status::resource_exhausted("another measurement is under way: repeat this one in 10 s")
        })?;
        let bench = Bench {
            registry: Arc::clone(&self.registry),
            dataplane: Arc::clone(&self.dataplane),
            journal: Arc::clone(&self.journal),
        };
        bench.run(request.into_inner().seconds).await.map(Response::new)
    }
}

// === impl AgentService ===

impl AgentService {
    /// On a thread of its own: compiling may hold an answer up.
    async fn ask_policies<T: Send + 'static>(
        &self,
        ask: impl FnOnce(Policies) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let policies = self.policies();
        let answer = spawn_blocking(move || ask(policies)).await;
        answer.map_err(|error| Status::internal(chain(&error)))?.map(Response::new)
    }
    fn policies(&self) -> Policies {
        Policies {
            enforcer: Arc::clone(&self.enforcer),
            dataplane: Arc::clone(&self.dataplane),
            nodes: Arc::clone(&self.keeper.decided().nodes),
        }
    }

    fn explainer(&self) -> Explainer {
        Explainer {
            journal: Arc::clone(&self.journal),
            history: Arc::clone(&self.history),
            policies: self.policies(),
            health: self.health.clone(),
            pods: self.pods.clone(),
            node_name: self.node_name.clone(),
            also_allowed: self.also_allowed.clone(),
            self_heal: self.verifier.self_heal(),
        }
    }
}
