//! The verdict on a packet from the policies themselves, without rows: for pods of any node, and to be
//! compared with what the maps say.

use std::{net::IpAddr, sync::Arc};

use serde::Serialize;

use crate::{
    Action, Addr, Compiler, Direction, EndpointId, PolicyId, Protocol, RuleId, Tier,
    compile::predicate::Predicate,
    store::{self, CompiledPolicy, CompiledRule, Kind, NamedPort, PortSet},
};

/// An end of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Party {
    /// A pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// An address; if it is a pod's, the pod.
    Address(IpAddr),
    /// The node of the other end.
    OwnNode,
    /// The same, by one of its addresses: ClusterNetworkPolicies may deny it by its address or labels.
    OwnNodeAt(IpAddr),
}

/// What the policies say about a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    /// Who sends.
    pub from: TracedEnd,
    /// Who receives.
    pub to: TracedEnd,
    /// Whether both ends allow it.
    pub is_allowed: bool,
    /// How the sender's policies judge.
    pub egress: Step,
    /// How the receiver's policies judge.
    pub ingress: Step,
}

/// An end of a packet, as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TracedEnd {
    /// Namespace and name, if the end is a pod.
    pub pod: Option<(String, String)>,
    /// Of the family that both ends have.
    pub address: Option<IpAddr>,
    /// The pod's interface, if the pod is one of this node.
    #[serde(skip)]
    pub endpoint: Option<EndpointId>,
    /// Whether the end is the node of the other end.
    pub is_own_node: bool,
    /// Whether the pod has ended, or uses the network of its node: no policy sees it.
    pub is_ignored: bool,
}

/// How the policies of one end judge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Whether this end allows the packet.
    pub is_allowed: bool,
    /// Why.
    pub because: Because,
}

/// Why an end allows or denies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Because {
    /// This end is no pod with a network of its own.
    NotPoliced,
    /// Both ends are the same pod.
    OwnAddress,
    /// The other end is the pod's node.
    OwnNode,
    /// A rule decides.
    Rule(RuleId, Action),
    /// These NetworkPolicies isolate the pod, and none allows the packet.
    NotAllowed(Vec<PolicyId>),
    /// No policy decides.
    Default,
}

/// Why there is no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The pod is not known.
    #[error("found no pod {namespace}/{name}, expected one that the agent watches")]
    UnknownPod {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// No family has an address at both ends.
    #[error("found no address family that both ends have")]
    NoFamily,
    /// The destination is a Service's address: policies judge the backend that the host chooses.
    #[error(
        "{0} is an address of a Service, and policies judge the packet after its translation: trace to a pod behind the \
         Service and its target port"
    )]
    Service(IpAddr),
}

/// An end, resolved.
#[derive(Clone)]
struct End {
    party: Option<Arc<store::Party>>,
    addr: Option<Addr>,
    is_own_node: bool,
}

/// The traffic in question.
pub(crate) struct Traffic<'a> {
    pub(crate) protocol: u8,
    pub(crate) port: u16,
    /// Of the destination.
    pub(crate) named: &'a [NamedPort],
}

// === impl Compiler ===

impl Compiler {
    /// Judges a packet that begins a flow.
    ///
    /// # Errors
    /// If an end is not known.
    pub fn trace(&self, from: &Party, to: &Party, protocol: u8, port: u16) -> Result<Trace, TraceError> {
        if let Party::Address(address) = *to
            && self.is_translated(address.into())
        {
            return Err(TraceError::Service(address));
        }
        let (from, to) = (self.ends(from)?, self.ends(to)?);
        let family = |end: &End| end.addr.map(Addr::is_v4);
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
        let mut pairs =
            pairs.filter(|(from, to)| family(from).zip(family(to)).is_none_or(|(from, to)| from == to));
        let (from, to) = pairs.next().ok_or(TraceError::NoFamily)?;
        let group = to.party.as_ref().filter(|it| it.kind == Kind::Pod).and_then(|it| self.store.group(it));
        let traffic = Traffic { protocol, port, named: group.map_or(&[], |it| &it.ports) };
        let egress = self.judge(Direction::Egress, from, to, &traffic);
        let ingress = self.judge(Direction::Ingress, to, from, &traffic);
        let is_allowed = egress.is_allowed && ingress.is_allowed;
        Ok(Trace { from: self.traced(from), to: self.traced(to), is_allowed, egress, ingress })
    }

    /// Whether the programs take an address for one of this node.
    pub fn is_own_node(&self, address: IpAddr) -> bool {
        self.store.marks.is_own_node(address.into())
    }

    /// Whether the host translates packets to an address. A load balancer's address can be a node's.
    fn is_translated(&self, addr: Addr) -> bool {
        let marks = &self.store.marks;
        marks.is_service(addr) && !marks.is_own_node(addr) && self.store.owner(addr).is_none()
    }

    /// An end, once for each of its addresses.
    fn ends(&self, party: &Party) -> Result<Vec<End>, TraceError> {
        let with =
            |party: Option<&Arc<store::Party>>, addr| End { party: party.cloned(), addr, is_own_node: false };
        Ok(match party {
            Party::OwnNode => vec![End { party: None, addr: None, is_own_node: true }],
            Party::OwnNodeAt(address) => {
                let addr = Addr::from(*address);
                vec![End { is_own_node: true, ..with(self.store.owner(addr), Some(addr)) }]
            }
            Party::Address(address) => {
                let addr = Addr::from(*address);
                vec![with(self.store.owner(addr), Some(addr))]
            }
            Party::Pod { namespace, name } => {
                let unknown = || TraceError::UnknownPod { namespace: namespace.clone(), name: name.clone() };
                let party = self.store.pod_named(namespace, name).ok_or_else(unknown)?;
                let ends: Vec<_> = self
                    .store
                    .claimed_by(party)
                    .into_iter()
                    .map(|addr| with(Some(party), Some(addr)))
                    .collect();
                if ends.is_empty() { vec![with(Some(party), None)] } else { ends }
            }
        })
    }

    fn traced(&self, end: &End) -> TracedEnd {
        let group = end.party.as_ref().and_then(|it| self.store.group(it));
        let namespace = group.and_then(|it| it.namespace.as_ref());
        let pod = end.party.as_ref().zip(namespace);
        TracedEnd {
            pod: pod.map(|(pod, namespace)| (namespace.text().to_owned(), (*pod.name).to_owned())),
            address: end.addr.map(IpAddr::from),
            endpoint: end.party.as_ref().and_then(|it| self.store.endpoints_of(&it.uid).next()),
            is_own_node: end.is_own_node,
            is_ignored: end.party.as_ref().is_some_and(|it| it.kind == Kind::Ignored),
        }
    }

    fn judge(&self, direction: Direction, subject: &End, peer: &End, traffic: &Traffic<'_>) -> Step {
        let step = |is_allowed, because| Step { is_allowed, because };
        let pod = subject.party.as_ref().filter(|it| it.kind == Kind::Pod);
        let Some((pod, group)) = pod.and_then(|it| Some((it, self.store.group(it)?))) else {
            return step(true, Because::NotPoliced);
        };
        if peer.party.as_ref().is_some_and(|it| it.uid == pod.uid) {
            return step(true, Because::OwnAddress);
        }
        if direction == Direction::Ingress && peer.is_own_node {
            return step(true, Because::OwnNode);
        }
        let policies = self.store.selecting(group);
        let of = |is_tier: fn(Tier) -> bool| {
            let policies = policies.iter().filter(move |it| is_tier(it.policy.tier));
            policies.filter(|it| it.rules(direction).is_some())
        };
        let first_match = |is_tier| {
            let rules = of(is_tier).flat_map(|policy| {
                let rules = policy.rules(direction).unwrap_or_default().iter().enumerate();
                rules.map(move |(n, rule)| (policy, n, rule))
            });
            let mut matching = rules.filter(|(_, _, rule)| self.matches(rule, peer, traffic));
            matching.next().map(|(policy, n, rule)| (rule_id(policy, n), rule.action))
        };
        let decides = |found: Option<(RuleId, Action)>| match found {
            Some((rule, action @ (Action::Accept | Action::Deny))) => {
                Some(step(action == Action::Accept, Because::Rule(rule, action)))
            }
            Some((_, Action::Pass)) | None => None,
        };
        if let Some(step) = decides(first_match(|tier| matches!(tier, Tier::Admin(_)))) {
            return step;
        }
        let isolating: Vec<_> = of(|tier| tier == Tier::Namespaced).map(|it| it.policy.id.clone()).collect();
        if isolating.is_empty() {
            let baseline = decides(first_match(|tier| matches!(tier, Tier::Baseline(_))));
            return baseline.unwrap_or_else(|| step(true, Because::Default));
        }
        match first_match(|tier| tier == Tier::Namespaced) {
            Some((rule, action)) => step(true, Because::Rule(rule, action)),
            None if peer.is_own_node => step(true, Because::OwnNode),
            None => step(false, Because::NotAllowed(isolating)),
        }
    }

    fn matches(&self, rule: &CompiledRule, peer: &End, traffic: &Traffic<'_>) -> bool {
        let group =
            peer.party.as_ref().filter(|it| it.kind != Kind::Ignored).and_then(|it| self.store.group(it));
        let is_pod = peer.party.as_ref().is_some_and(|it| it.kind == Kind::Pod);
        let holds = |predicate: &Predicate| match predicate {
            Predicate::Blocks(blocks) => {
                peer.addr.is_some_and(|addr| blocks.iter().any(|block| block.contains(addr)))
            }
            Predicate::Pods(_) | Predicate::Nodes(_) => {
                group.is_some_and(|group| predicate.holds(group, &self.store))
            }
        };
        let is_peer = rule.any || (rule.any_pod && is_pod) || rule.predicates.iter().any(|it| holds(it));
        is_peer && is_port(&rule.ports, traffic)
    }
}

/// Whether a rule is about the traffic.
pub(crate) fn is_port(ports: &PortSet, traffic: &Traffic<'_>) -> bool {
    let Some(protocol) = Protocol::of_ip(traffic.protocol) else { return ports.any };
    let in_range = |first: u16, last: u16| (first..=last).contains(&traffic.port);
    let by_number = ports.ranges.iter().any(|it| it.protocol == protocol && in_range(it.first, it.last));
    let means = |port: &NamedPort| ports.names.iter().any(|name| name.means(port));
    let mut named = traffic.named.iter().filter(|it| it.protocol == protocol && it.number == traffic.port);
    ports.any || by_number || named.any(means)
}

fn rule_id(policy: &CompiledPolicy, rule: usize) -> RuleId {
    RuleId { policy: policy.policy.id.clone(), rule }
}
