//! `ferrulectl explain`: all that the agent knows of a pod, and whether its packets are carried.

mod interface;
mod known;
mod verdict;

use std::sync::Arc;

use ferrule_proto::agent::{ExplainPodRequest, ExplainPodResponse, ExplainPoliciesRequest, ForwardDrop};
use ipnet::IpNet;
use tonic::Status;

use crate::{
    attach::Journal,
    chain::chain,
    cluster::{PodRef, Pods},
    desired::Inspector,
    health::{Health, State},
    monitor::{self, History},
    observe::{policies::Policies, status, verify::Verifier},
    plug::nft::firewall,
    registry::{Attachment, now_ms},
};
use known::Known;

/// Whom to ask about a pod.
pub(super) struct Explainer {
    pub(super) journal: Arc<Journal>,
    pub(super) history: Arc<History>,
    pub(super) policies: Policies,
    pub(super) health: Health,
    /// `None` without Kubernetes.
    pub(super) pods: Option<Pods>,
    pub(super) node_name: String,
    /// As in [`super::AgentService`].
    pub(super) also_allowed: Option<Vec<IpNet>>,
    pub(super) self_heal: bool,
}

/// Dropped packets in an answer.
const DROPS: usize = 10;

// === impl Explainer ===

impl Explainer {
    /// # Errors
    /// NOT_FOUND, INVALID_ARGUMENT for an ambiguous name, or what [`Verifier::read`] fails with.
    pub(super) async fn explain(
        self,
        request: ExplainPodRequest,
        verifier: &Verifier,
    ) -> Result<ExplainPodResponse, Status> {
        verifier.read(move |inspector| self.tell(&request, inspector)).await?
    }

    fn tell(&self, request: &ExplainPodRequest, inspector: &Inspector) -> Result<ExplainPodResponse, Status> {
        let Known { pod, attachments, failures, in_flight } =
            Known::find(request, &inspector.registry, &self.journal)?
                .or_else(|| self.only_listed(request))
                .ok_or_else(|| unknown(request, &self.node_name))?;
        let outside = self.also_allowed.as_ref().map(|it| inspector.registry.outside(it)).unwrap_or_default();
        let interfaces = attachments.iter().map(|it| {
            let outside =
                outside.iter().find(|(key, ..)| *key == it.key).map(|(.., addresses)| addresses.clone());
            interface::explain(it, inspector, &self.journal, outside.unwrap_or_default())
        });
        let interfaces = interfaces.collect::<Result<Vec<_>, _>>();
        let interfaces = interfaces.map_err(|error| Status::unavailable(chain(&error)))?;
        let keys: Vec<_> = attachments.iter().map(|it: &Attachment| it.key.clone()).collect();
        let asked = ExplainPoliciesRequest { namespace: pod.namespace.clone(), name: pod.name.clone() };
        let lacks = |pod: &PodRef| inspector.enforcer.missing(pod);
        let troubles = status::components(&self.health, |it| it.state != State::Healthy);
        let listed = self.pods.as_ref().map(|pods| pods.listed(&pod));
        let mut told = ExplainPodResponse {
            verdict: None,
            uid: pod.uid.clone(),
            listed: listed.as_ref().map(Option::is_some),
            pod: listed.flatten().map(|it| known::show_listed(&it)),
            interfaces,
            adds_in_flight: in_flight.iter().map(|it| known::show_in_flight(it, lacks)).collect(),
            failed_adds: failures.into_iter().map(known::show_failure).collect(),
            policies: self.policies.explain(asked).ok().filter(|it| it.ingress.is_some()),
            policy_state: Some(self.policies.state()),
            drops: monitor::drops(&self.history, &keys, DROPS),
            troubles,
            firewall: firewall::forward_drops().into_iter().map(show_firewall).collect(),
            node: self.node_name.clone(),
            self_heal: self.self_heal,
            namespace: pod.namespace,
            name: pod.name,
        };
        told.verdict = Some(verdict::judge(&told, now_ms()));
        Ok(told)
    }

    /// A pod of which the agent knows no more than that the API server lists it.
    fn only_listed(&self, request: &ExplainPodRequest) -> Option<Known> {
        let pod = known::pod_of(request);
        let listed = self.pods.as_ref()?.listed(&pod)?;
        Some(Known::listed(pod, listed.metadata.uid.clone()))
    }
}

fn show_firewall(firewall::ForwardDrop { what, see, is_total }: firewall::ForwardDrop) -> ForwardDrop {
    ForwardDrop { what, see, total: is_total }
}

fn unknown(ExplainPodRequest { namespace, name }: &ExplainPodRequest, node: &str) -> Status {
    let pod = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
    let node = if node.is_empty() { "this node" } else { node };
    Status::not_found(format!(
        "the agent of {node} knows no pod {pod}: no attachment, and no ADD since its start; check the name, and that \
         the pod runs on {node} (kubectl get pod -o wide)"
    ))
}
