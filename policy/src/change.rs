//! What the compiler takes, and why it may refuse.

use std::{fmt, net::IpAddr, sync::Arc};

use crate::{EndpointId, Policy, PolicyId, object};

/// An event. Objects are behind pointers: very many wait at times.
#[derive(Debug, Clone)]
pub enum Change {
    /// A pod is new or changed.
    Pod(Arc<object::Pod>),
    /// A pod's object is gone. Pods are known by UID: a late event never affects a successor.
    PodGone {
        /// The pod's UID.
        uid: String,
    },
    /// A node is new or changed.
    Node(Box<object::Node>),
    /// A node is gone.
    NodeGone {
        /// The node's UID.
        uid: String,
    },
    /// A Service is new or changed.
    Service(Box<object::Service>),
    /// A Service is gone.
    ServiceGone {
        /// The Service's UID.
        uid: String,
    },
    /// All addresses of this node, of all its interfaces.
    HostAddresses(Vec<IpAddr>),
    /// A namespace is new or changed.
    Namespace(Box<object::Namespace>),
    /// A namespace is gone.
    NamespaceGone {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// A policy is new or changed.
    Policy(Arc<Policy>),
    /// A policy is gone.
    PolicyGone {
        /// Its name.
        id: PolicyId,
        /// Its UID.
        uid: String,
    },
    /// A pod got an interface on this node, or its interface changed.
    Endpoint(Endpoint),
    /// An interface is gone.
    EndpointGone {
        /// Its number.
        id: EndpointId,
    },
}

/// An interface of a pod on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its number.
    pub id: EndpointId,
    /// The pod's UID in the API.
    pub uid: String,
    /// The addresses that were plugged; the pod's status may not list them yet.
    pub addresses: Vec<IpAddr>,
}

/// How many rows each map takes, and how much the compiler keeps in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacities {
    /// Of `PEERS`.
    pub peers: usize,
    /// Of `BLOCKS`.
    pub blocks: usize,
    /// Of `RULESETS`.
    pub rulesets: usize,
    /// Of `RULES`.
    pub rules: usize,
    /// Of `NAMED`.
    pub named: usize,
    /// Of `PORTS`.
    pub ports: usize,
    /// Of the subjects in `VIFS`.
    pub endpoints: usize,
    /// Of either kind of [`Resource::Matches`].
    pub matches: usize,
}

/// What is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// The map `PEERS`.
    Peers,
    /// The map `BLOCKS`.
    Blocks,
    /// The map `RULESETS`.
    Rulesets,
    /// The map `RULES`.
    Rules,
    /// The map `NAMED`.
    Named,
    /// The map `PORTS`.
    Ports,
    /// The rows of `VIFS` that say what judges a pod.
    Subjects,
    /// The bits of a ruleset: sets of ports that differ, in the rules for one pod and direction.
    Bits,
    /// The compiler's memory: the pairs of a peer of some rule and a set of labels, or a class, that matches.
    Matches,
}

/// Changes that do not fit. Nothing was changed: what was compiled before stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Refused {
    /// What is full.
    pub resource: Resource,
    /// The rows that would be needed, with those in use.
    pub needed: usize,
    /// The rows that fit.
    pub capacity: usize,
    /// The policy whose rows did not fit, if a policy needs them.
    pub policy: Option<PolicyId>,
}

// === impl Capacities ===

impl Capacities {
    /// The matches that the compiler keeps by default, at about 40 bytes each. A policy of a megabyte may
    /// have ten thousand peers, each of which selects ten thousand pods or contains the others' blocks.
    pub const MATCHES: usize = 1 << 20;
}

impl Default for Capacities {
    fn default() -> Self {
        Self {
            peers: 1 << 16,
            blocks: 1 << 14,
            rulesets: 1 << 12,
            rules: 1 << 18,
            named: 1 << 16,
            ports: 1 << 14,
            endpoints: 1 << 12,
            matches: Self::MATCHES,
        }
    }
}

// === impl Resource ===

impl Resource {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Peers,
        Self::Blocks,
        Self::Rulesets,
        Self::Rules,
        Self::Named,
        Self::Ports,
        Self::Subjects,
        Self::Bits,
        Self::Matches,
    ];

    /// The name of the map; of what is none in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Peers => "PEERS",
            Self::Blocks => "BLOCKS",
            Self::Rulesets => "RULESETS",
            Self::Rules => "RULES",
            Self::Named => "NAMED",
            Self::Ports => "PORTS",
            Self::Subjects => "VIFS",
            Self::Bits => "bits",
            Self::Matches => "matches",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bits => f.write_str("a ruleset"),
            Self::Matches => f.write_str("the compiler"),
            map => write!(f, "the map {}", map.name()),
        }
    }
}

// === impl Refused ===

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, needed, capacity, policy } = self;
        let what = if *resource == Resource::Matches { "matches of peers" } else { "rows" };
        write!(f, "{resource} has room for {capacity} {what}, and {needed} are needed")?;
        match policy {
            Some(policy) => write!(f, ", by {policy}"),
            None => Ok(()),
        }
    }
}
