//! What is known of the cluster, and what follows for the enforcer. Pure.
//!
//! ```text
//!            no policy                      a policy
//! Unlisted ─────────────▶ Open ◀──────────────────────────┐
//!     │                    │ ▲                            │
//!     │ a policy  a policy │ │ no policy    no policy for │
//!     │                    ▼ │                   a while  │
//!     └───────────────▶ Gathering ───────────────▶ Enforcing
//!                                  all is listed
//! ```
//!
//! Instead of Unlisted, the phase is Assumed after a while, if the operator wants new pods to be open then.
//! An agent whose predecessor followed peers until its end begins with Gathering.

use std::{
    collections::{BTreeMap, HashMap},
    mem::take,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use ferrule_policy::{Change, PolicyId};

use crate::{cluster::Node, policy::objects, watch::ObjectKey};

/// A type of object that policies concern, but nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    NetworkPolicy,
    ClusterNetworkPolicy,
    Namespace,
    Pod,
    Service,
}

/// A change of one kind.
#[derive(Debug)]
pub(super) enum News {
    Applied { key: ObjectKey, uid: String, change: Change },
    Gone { key: ObjectKey, uid: String },
    Listed,
}

/// What to tell the enforcer.
#[derive(Debug)]
pub(super) enum Order {
    Expect(String),
    Replace(Vec<Change>),
    Submit(Change),
}

/// What to watch besides policies and nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Nothing,
    /// For the first rows. Watches of one generation never bring news of another.
    Gather(u64),
    Follow(u64),
    /// For no policy, in case the next one comes soon.
    Idle(u64),
}

/// Which version of ClusterNetworkPolicies the cluster serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Served {
    Nothing,
    Known,
    /// Only versions that this agent does not read.
    Others(Vec<String>),
}

#[derive(Debug)]
pub(super) struct State {
    phase: Phase,
    /// Of [`Wanted`].
    generation: u64,
    lists: BTreeMap<Kind, List>,
    /// The UIDs of all policies.
    policies: BTreeMap<(Kind, ObjectKey), String>,
    nodes: HashMap<ObjectKey, Arc<Node>>,
    has_nodes: bool,
    /// The addresses of this node.
    own: Option<Vec<IpAddr>>,
    /// The versions of ClusterNetworkPolicies that the cluster serves and this agent does not read.
    unread: Vec<String>,
    /// What the enforcer was last told to be missing.
    expected: Vec<&'static str>,
    /// The cluster had no policy before.
    is_first: bool,
}

/// The state of enforcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Whether the cluster has policies is unknown.
    Unlisted,
    /// The same, and pods are open until it is known.
    Assumed,
    Open,
    Gathering,
    Enforcing,
}

/// What is known of one kind.
#[derive(Debug, Default)]
struct List {
    is_listed: bool,
    /// What the enforcer does not have yet.
    held: HashMap<ObjectKey, Change>,
}

/// 500 nodes list their peers in a second.
const FOR_NODE: Duration = Duration::from_millis(2);
/// The spread delays the first policy by this at most, and ADDs wait.
const MAX_SPREAD: Duration = Duration::from_secs(2);
const POLICIES: [Kind; 2] = [Kind::NetworkPolicy, Kind::ClusterNetworkPolicy];
const PEERS: [Kind; 3] = [Kind::Namespace, Kind::Pod, Kind::Service];

// === impl State ===

impl State {
    pub(super) fn new() -> Self {
        let lists = POLICIES.into_iter().chain(PEERS).map(|kind| (kind, List::default())).collect();
        Self {
            phase: Phase::Unlisted,
            generation: 0,
            lists,
            policies: BTreeMap::new(),
            nodes: HashMap::new(),
            has_nodes: false,
            own: None,
            unread: Vec::new(),
            expected: Vec::new(),
            is_first: false,
        }
    }

    /// Applies what a watch says. `generation` is that of the watch; policies have none.
    pub(super) fn apply(&mut self, kind: Kind, generation: Option<u64>, news: News) -> Vec<Order> {
        let is_old = generation.is_some_and(|it| it != self.generation || self.wanted() == Wanted::Nothing);
        let Some(list) = self.lists.get_mut(&kind).filter(|_| !is_old) else { return Vec::new() };
        let passes = self.phase == Phase::Enforcing && list.is_listed;
        let mut orders = Vec::new();
        match news {
            News::Applied { key, uid, change } => {
                if kind.is_policy() {
                    self.policies.insert((kind, key.clone()), uid.clone());
                }
                if passes {
                    orders.push(Order::Submit(change));
                } else {
                    list.held.insert(key, change);
                }
            }
            News::Gone { key, uid } => {
                let id = (kind, key);
                if self.policies.get(&id).is_some_and(|known| *known == uid) {
                    self.policies.remove(&id);
                }
                let (_, key) = id;
                let gone = kind.gone(&key, uid);
                if list.held.get(&key).is_some_and(|held| held.object() == gone.object()) {
                    list.held.remove(&key);
                }
                if passes {
                    orders.push(Order::Submit(gone));
                }
            }
            News::Listed => {
                list.is_listed = true;
                if self.phase == Phase::Enforcing {
                    orders.extend(list.take().map(Order::Submit));
                }
            }
        }
        self.step(orders)
    }

    /// Whether the cluster can have ClusterNetworkPolicies. Until that is known, their list is not complete.
    /// Those in a version that this agent does not read are not there for it.
    pub(super) fn discovered(&mut self, served: Served) -> Vec<Order> {
        if let Some(list) = self.lists.get_mut(&Kind::ClusterNetworkPolicy) {
            list.is_listed = served != Served::Known;
        }
        self.unread = if let Served::Others(versions) = served { versions } else { Vec::new() };
        self.step(Vec::new())
    }

    pub(super) fn apply_node(&mut self, change: &crate::watch::Change<Node>) -> Vec<Order> {
        use crate::watch::Change as Watched;
        let news = match change {
            Watched::Applied(node) => {
                self.nodes.insert(node.key.clone(), Arc::clone(node));
                (self.phase == Phase::Enforcing).then(|| Change::Node(Box::new(objects::node(node))))
            }
            Watched::Gone { key, uid } => {
                if self.nodes.get(key).is_some_and(|node| *node.uid == **uid) {
                    self.nodes.remove(key);
                }
                Some(Change::NodeGone { uid: uid.clone() })
            }
            Watched::Synced => {
                self.has_nodes = true;
                None
            }
        };
        let news = news.filter(|_| self.phase == Phase::Enforcing);
        self.step(news.map(Order::Submit).into_iter().collect())
    }

    pub(super) fn set_own_addresses(&mut self, addresses: &[IpAddr]) -> Vec<Order> {
        if self.own.as_deref() == Some(addresses) {
            return Vec::new();
        }
        self.own = Some(addresses.to_vec());
        let change = || Order::Submit(Change::HostAddresses(addresses.to_vec()));
        self.step((self.phase == Phase::Enforcing).then(change).into_iter().collect())
    }

    /// Gathers at once, because an earlier agent has followed peers until its end.
    pub(super) fn expect_policies(&mut self) -> Vec<Order> {
        if self.phase != Phase::Unlisted {
            return Vec::new();
        }
        self.phase = Phase::Gathering;
        self.generation += 1;
        self.step(Vec::new())
    }

    /// Takes the cluster for one without policies, until they are listed.
    pub(super) fn assume_open(&mut self) -> Vec<Order> {
        if self.phase != Phase::Unlisted {
            return Vec::new();
        }
        self.phase = Phase::Assumed;
        vec![Order::Replace(Vec::new())]
    }

    /// Stops enforcing, if no policy has come for a while.
    pub(super) fn idle_no_longer(&mut self, generation: u64) -> Vec<Order> {
        if self.wanted() == Wanted::Idle(generation) { self.open() } else { Vec::new() }
    }

    pub(super) fn wanted(&self) -> Wanted {
        match self.phase {
            Phase::Unlisted | Phase::Assumed | Phase::Open => Wanted::Nothing,
            Phase::Gathering => Wanted::Gather(self.generation),
            Phase::Enforcing if self.policies.is_empty() => Wanted::Idle(self.generation),
            Phase::Enforcing => Wanted::Follow(self.generation),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// The versions of ClusterNetworkPolicies that are served and not read, if no other is.
    pub(super) fn unread(&self) -> &[String] {
        &self.unread
    }

    /// The number of policies.
    pub(super) fn policies(&self) -> usize {
        self.policies.len()
    }

    /// What has to be listed first.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let (policies, peers): (&[_], &[_]) = match self.phase {
            Phase::Unlisted | Phase::Assumed => (&POLICIES, &[]),
            Phase::Gathering => (&POLICIES, &PEERS),
            Phase::Open | Phase::Enforcing => return Vec::new(),
        };
        let kinds = policies.iter().chain(peers).filter(|kind| !self.has(&[**kind]));
        let mut missing: Vec<_> = kinds.map(|kind| kind.plural()).collect();
        if self.phase == Phase::Gathering {
            missing.extend((!self.has_nodes).then_some("Nodes"));
            missing.extend(self.own.is_none().then_some("this node's addresses"));
        }
        missing
    }

    /// The longest wait before peers are listed: all nodes see the first policy of the cluster at once. None
    /// at start, when nodes come one after the other.
    pub(super) fn spread(&self) -> Duration {
        let nodes = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        if self.is_first { FOR_NODE.saturating_mul(nodes).min(MAX_SPREAD) } else { Duration::ZERO }
    }

    fn step(&mut self, mut orders: Vec<Order>) -> Vec<Order> {
        let lacks_policies = self.policies.is_empty() && self.has(&POLICIES);
        match self.phase {
            Phase::Unlisted | Phase::Assumed | Phase::Gathering if lacks_policies => {
                orders.extend(self.open());
            }
            Phase::Unlisted | Phase::Assumed | Phase::Open if !self.policies.is_empty() => {
                self.is_first = self.phase != Phase::Unlisted;
                self.phase = Phase::Gathering;
                self.generation += 1;
                orders.extend(self.gather());
            }
            Phase::Gathering => orders.extend(self.gather()),
            Phase::Unlisted | Phase::Assumed | Phase::Open | Phase::Enforcing => {}
        }
        orders
    }

    /// Begins to enforce if nothing is missing.
    fn gather(&mut self) -> Vec<Order> {
        let missing = self.missing();
        if !missing.is_empty() {
            if missing == self.expected {
                return Vec::new();
            }
            let why = format!("waiting for the list of {}", missing.join(", "));
            self.expected = missing;
            return vec![Order::Expect(why)];
        }
        self.expected = Vec::new();
        self.phase = Phase::Enforcing;
        let mut all: Vec<_> = self.lists.values_mut().flat_map(List::take).collect();
        all.extend(self.nodes.values().map(|node| Change::Node(Box::new(objects::node(node)))));
        all.push(Change::HostAddresses(self.own.clone().unwrap_or_default()));
        vec![Order::Replace(all)]
    }

    fn open(&mut self) -> Vec<Order> {
        self.phase = Phase::Open;
        self.expected = Vec::new();
        for kind in PEERS {
            self.lists.insert(kind, List::default());
        }
        vec![Order::Replace(Vec::new())]
    }

    fn has(&self, kinds: &[Kind]) -> bool {
        kinds.iter().all(|kind| self.lists.get(kind).is_some_and(|list| list.is_listed))
    }
}

// === impl List ===

impl List {
    fn take(&mut self) -> impl Iterator<Item = Change> + use<> {
        take(&mut self.held).into_values()
    }
}

// === impl Kind ===

impl Kind {
    fn is_policy(self) -> bool {
        POLICIES.contains(&self)
    }

    fn plural(self) -> &'static str {
        match self {
            Self::NetworkPolicy => "NetworkPolicies",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicies",
            Self::Namespace => "Namespaces",
            Self::Pod => "Pods",
            Self::Service => "Services",
        }
    }

    fn gone(self, key: &ObjectKey, uid: String) -> Change {
        match self {
            Self::NetworkPolicy => {
                Change::PolicyGone { id: PolicyId::namespaced(key.namespace(), key.name()), uid }
            }
            Self::ClusterNetworkPolicy => Change::PolicyGone { id: PolicyId::cluster(key.name()), uid },
            Self::Namespace => Change::NamespaceGone { name: key.name().to_owned(), uid },
            Self::Pod => Change::PodGone { uid },
            Self::Service => Change::ServiceGone { uid },
        }
    }
}

#[cfg(test)]
mod tests;
