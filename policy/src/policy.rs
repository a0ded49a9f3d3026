//! Policies of both APIs in one form: what the decoders make and the compiler takes.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::{Addr, Prefix, object::Problem};

/// A NetworkPolicy or a ClusterNetworkPolicy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// Which policy this is.
    pub id: PolicyId,
    /// Tells a policy from its successor of the same name.
    pub uid: String,
    /// When its rules are judged.
    pub tier: Tier,
    /// The pods that it applies to.
    pub subject: PodSet,
    /// `None` if it says nothing about what its subjects receive.
    pub ingress: Option<Vec<Rule>>,
    /// `None` if it says nothing about what its subjects send.
    pub egress: Option<Vec<Rule>>,
    /// What was not understood, and what follows from that.
    pub problems: Vec<Problem>,
}

/// The name of a policy. NetworkPolicies have a namespace, ClusterNetworkPolicies do not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId {
    /// `None` for a ClusterNetworkPolicy.
    pub namespace: Option<String>,
    /// The object's name.
    pub name: String,
}

/// The order of judgement: tiers first, then the priorities inside of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Tier {
    /// ClusterNetworkPolicies before all NetworkPolicies; the lowest priority first.
    Admin(u16),
    /// NetworkPolicies: their union, final for the pods that they isolate.
    Namespaced,
    /// ClusterNetworkPolicies for pods that no NetworkPolicy isolates.
    Baseline(u16),
}

/// A rule. Its place in [`Policy::ingress`] or [`Policy::egress`] is its number in the object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Only ClusterNetworkPolicies name their rules.
    pub name: Option<String>,
    /// What happens to the traffic that matches.
    pub action: Action,
    /// Whose traffic matches.
    pub peers: Peers,
    /// Which traffic matches.
    pub ports: Ports,
}

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Action {
    /// Final.
    Accept,
    /// Final.
    Deny,
    /// The next tier judges.
    Pass,
}

/// The peers of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Peers {
    /// All addresses, also outside of the cluster.
    Any,
    /// The union; without elements no peer at all.
    Of(Vec<Peer>),
}

/// A set of peers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Peer {
    /// Pods by labels.
    Pods(PodSet),
    /// Addresses, those of pods too.
    Block(Block),
    /// The addresses of nodes, by the nodes' labels.
    Nodes(Selector),
}

/// Pods by namespace and labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PodSet {
    /// In which namespaces.
    pub namespaces: Namespaces,
    /// Which pods there.
    pub pods: Selector,
}

/// A set of namespaces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Namespaces {
    /// One, by its name.
    Named(String),
    /// By their labels.
    Matching(Selector),
}

/// A prefix without some of its parts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Hash)]
pub struct Block {
    /// The prefix.
    pub cidr: Prefix,
    /// Sorted.
    pub except: Vec<Prefix>,
}

/// The ports of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Ports {
    /// Every packet, also of protocols without ports.
    Any,
    /// The union; without elements no traffic at all.
    Of(Vec<Port>),
}

/// A set of destination ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Port {
    /// By number.
    Range {
        /// The one protocol that matches.
        protocol: Protocol,
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
    },
    /// By the name that the destination pod gives to its ports.
    Named {
        /// `None` is any protocol.
        protocol: Option<Protocol>,
        /// The name.
        name: String,
    },
}

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// IP protocol 6.
    Tcp,
    /// IP protocol 17.
    Udp,
    /// IP protocol 132.
    Sctp,
}

/// A direction, from the pod's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// What the pod receives.
    Ingress,
    /// What the pod sends.
    Egress,
}

/// A label selector; all requirements must hold, and without any it matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Selector(pub Vec<Requirement>);

/// A requirement on the label `key`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// What must hold.
    pub is: Condition,
}

/// What must hold for a label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Condition {
    /// The label has one of these values.
    In(Vec<String>),
    /// The label has none of these values, or is missing.
    NotIn(Vec<String>),
    /// The label is there.
    Exists,
    /// The label is missing.
    DoesNotExist,
}

// === impl Policy ===

impl Policy {
    /// The rules of a direction; `None` if the policy says nothing about it.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// How many rules the policy has, in both directions.
    pub fn number_of_rules(&self) -> usize {
        [&self.ingress, &self.egress].into_iter().flatten().map(Vec::len).sum()
    }
}

// === impl PolicyId ===

impl PolicyId {
    /// The name of a NetworkPolicy.
    pub fn namespaced(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }

    /// The name of a ClusterNetworkPolicy.
    pub fn cluster(name: impl Into<String>) -> Self {
        Self { namespace: None, name: name.into() }
    }
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "NetworkPolicy {namespace}/{}", self.name),
            None => write!(f, "ClusterNetworkPolicy {}", self.name),
        }
    }
}

impl fmt::Debug for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for PolicyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl Block ===

impl Block {
    /// Whether an address is in the block.
    pub fn contains(&self, addr: Addr) -> bool {
        self.cidr.contains(addr) && !self.except.iter().any(|it| it.contains(addr))
    }
}

// === impl Protocol ===

impl Protocol {
    /// The protocol of an IP packet; `None` if it has no ports.
    pub fn of_ip(number: u8) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp].into_iter().find(|it| it.number() == number)
    }

    /// The number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

// === impl Selector ===

impl Selector {
    /// Matches everything.
    pub fn all() -> Self {
        Self::default()
    }
}
