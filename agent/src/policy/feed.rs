//! Tells the enforcer about the cluster.
//!
//! Policies are watched always; what they ask about (namespaces, the pods of all nodes, Services) only while
//! there is one. Enforcement begins when all of that is listed: rows that follow from a part of it would be
//! open.

mod discovery;
mod follow;
mod problems;
mod state;
mod unlisted;

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ferrule_policy::{Change, Policy, PolicyId, object::DecodeError};
use tokio::sync::watch;

use self::{
    problems::Problems,
    state::{Kind, News, Order, Phase, State, Wanted},
};
use super::{Enforcer, Reporters};
use crate::{
    cluster::Node,
    events::Events,
    health::Reporter,
    watch::{self as watches, Object, ObjectKey, Sink},
};

/// Follows the cluster for an [`Enforcer`].
pub struct Feed {
    enforcer: Arc<Enforcer>,
    inner: Mutex<Inner>,
    wanted: watch::Sender<Wanted>,
    problems: Problems,
    reporters: Arc<Reporters>,
    health: Reporter,
}

struct Inner {
    state: State,
    /// What the health reports.
    shown: Option<Shown>,
}

#[derive(PartialEq, Eq)]
struct Shown {
    phase: Phase,
    policies: usize,
    missing: Vec<&'static str>,
    /// See [`State::unread`].
    unread: Vec<String>,
}

/// Passes on what one watch brings. `read` returns nothing for an object that says nothing.
struct Channel<F> {
    feed: Arc<Feed>,
    kind: Kind,
    generation: Option<u64>,
    read: F,
}

// === impl Feed ===

impl Feed {
    pub fn new(
        enforcer: Arc<Enforcer>,
        events: Events,
        reporters: Arc<Reporters>,
        health: Reporter,
    ) -> Arc<Self> {
        let inner = Inner { state: State::new(), shown: None };
        let feed = Self {
            enforcer,
            inner: Mutex::new(inner),
            wanted: watch::Sender::new(Wanted::Nothing),
            problems: Problems::new(events, Arc::clone(&reporters)),
            reporters,
            health,
        };
        feed.update(|_| Vec::new());
        Arc::new(feed)
    }

    /// Takes over a change of a Node. Never waits.
    pub fn apply_node(&self, change: &watches::Change<Node>) {
        match change {
            watches::Change::Applied(node) => self.reporters.add(node.name()),
            watches::Change::Gone { key, .. } => self.reporters.remove(key.name()),
            watches::Change::Synced => {}
        }
        self.update(|state| state.apply_node(change));
    }

    /// Takes over all addresses of this node. Never waits.
    pub fn set_own_addresses(&self, addresses: &[IpAddr]) {
        self.update(|state| state.set_own_addresses(addresses));
    }

    /// Applies a change, and what follows from it: in order, whichever thread it comes from.
    fn update(&self, change: impl FnOnce(&mut State) -> Vec<Order>) {
        let mut inner = self.inner();
        for order in change(&mut inner.state) {
            match order {
                Order::Expect(why) => self.enforcer.expect(&why),
                Order::Replace(all) => self.enforcer.replace(all),
                Order::Submit(change) => self.enforcer.submit(change),
            }
        }
        let state = &inner.state;
        let shown = Shown {
            phase: state.phase(),
            policies: state.policies(),
            missing: state.missing(),
            unread: state.unread().to_vec(),
        };
        let wanted = state.wanted();
        if inner.shown.as_ref() != Some(&shown) {
            let warned = inner.shown.as_ref().map_or(&[][..], |it| &it.unread);
            if !shown.unread.is_empty() && warned != shown.unread {
                let why = unread(&shown.unread);
                tracing::error!(why, "ClusterNetworkPolicies are not enforced");
            }
            self.show(&shown);
            inner.shown = Some(shown);
        }
        self.wanted.send_if_modified(|before| std::mem::replace(before, wanted) != wanted);
    }

    fn show(&self, Shown { phase, policies, missing, unread: versions }: &Shown) {
        let missing = missing.join(", ");
        match phase {
            _ if !versions.is_empty() => self.health.unhealthy(unread(versions)),
            Phase::Unlisted => self.health.starting(format!("waiting for the list of {missing}")),
            Phase::Assumed => self.health.healthy(format!(
                "open, with --policy-unlisted=open: policies have never been listed; waiting for the list of {missing}"
            )),
            Phase::Open => self.health.healthy("open: the cluster has no policy"),
            // No failure before it takes long: see `Feed::gathering_takes_long`.
            Phase::Gathering if self.health.state() == Some(crate::health::State::Healthy) => {
                self.health.healthy(gathering(*policies, &missing));
            }
            Phase::Gathering => self.health.starting(gathering(*policies, &missing)),
            Phase::Enforcing if *policies == 0 => {
                self.health
                    .healthy("the last policy is gone; what policies ask about is followed for a while");
            }
            Phase::Enforcing => {
                self.health.healthy(format!("following the policies ({policies}), and what they ask about"))
            }
        }
    }

    /// New pods have been waiting for a while.
    fn gathering_takes_long(&self, generation: u64) {
        let inner = self.inner();
        if inner.state.wanted() == Wanted::Gather(generation) {
            let missing = inner.state.missing().join(", ");
            self.health.unhealthy(gathering(inner.state.policies(), &missing));
        }
    }

    fn policy(&self, policy: Policy) -> Change {
        self.enforcer.clear_undecodable(&policy.id, None);
        if !policy.problems.is_empty() {
            self.problems.report(&policy);
        }
        Change::Policy(Arc::new(policy))
    }

    fn undecodable(&self, error: &DecodeError, uid: &str) {
        self.enforcer.set_undecodable(error, uid);
        self.problems.report_undecodable(error, uid);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the cluster means to deny would pass, and nothing else would say so.
fn unread(versions: &[String]) -> String {
    format!(
        "ClusterNetworkPolicies are not enforced: the cluster serves them as {} of policy.networking.k8s.io, and \
         this agent reads {version}; upgrade the agent, or let the definition of the type serve {version}, too",
        versions.join(", "),
        version = discovery::VERSION,
    )
}

fn gathering(policies: usize, missing: &str) -> String {
    format!("gathering what the policies ({policies}) ask about; waiting for the list of {missing}")
}

// === impl Channel ===

impl<T: Object, F: Fn(&T) -> Option<Change> + Send + Sync + 'static> Sink<T> for Channel<F> {
    fn apply(&self, change: watches::Change<T>) {
        let news = match change {
            watches::Change::Applied(object) => {
                let Some(change) = (self.read)(&object) else { return };
                News::Applied { key: object.key(), uid: object.uid().to_owned(), change }
            }
            watches::Change::Gone { key, uid } => {
                if self.kind == Kind::ClusterNetworkPolicy {
                    self.feed.enforcer.clear_undecodable(&PolicyId::cluster(key.name()), Some(&uid));
                }
                News::Gone { key, uid }
            }
            watches::Change::Synced => News::Listed,
        };
        self.feed.update(|state| state.apply(self.kind, self.generation, news));
    }

    /// The successor first: the removal alone would open pods for a while.
    fn replace(&self, object: Arc<T>, key: ObjectKey, uid: String) {
        self.apply(watches::Change::Applied(object));
        self.apply(watches::Change::Gone { key, uid });
    }
}
