//! Changes that did not fit, and wait for others that make room.

use std::collections::{BTreeMap, BTreeSet};

use ferrule_policy::{Change, EndpointId, ObjectKey, PolicyId, Refused};

use super::queue::Queue;

/// Of each object the latest change that was refused.
#[derive(Default)]
pub(super) struct Held {
    changes: Queue,
    why: BTreeMap<ObjectKey, Refused>,
    /// Policies for which stubs stand in.
    stubs: BTreeSet<ObjectKey>,
    /// Others were applied since the last attempt.
    pub(super) is_stale: bool,
}

/// A change that was refused.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) change: &'a Change,
    pub(super) why: &'a Refused,
    /// A stub stands in: the pods that the policy selects are isolated.
    pub(super) is_stub: bool,
}

// === impl Held ===

impl Held {
    /// What does not fit of a complete state, in which stubs stand in for it.
    pub(super) fn of_state(refused: Vec<(Change, Refused)>) -> Self {
        // Policies that are compiled one after the other need more room than together, until rows go.
        let mut held = Self { is_stale: !refused.is_empty(), ..Self::default() };
        for (change, why) in refused {
            held.stubs.insert(change.object());
            held.hold(change, why);
        }
        held
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(super) fn hold(&mut self, change: Change, why: Refused) {
        self.why.insert(change.object(), why);
        self.changes.push(change);
    }

    /// Forgets what later changes have replaced.
    pub(super) fn forget(&mut self, later: &[Change]) {
        for key in later.iter().map(Change::object) {
            self.changes.remove(&key);
            self.why.remove(&key);
        }
    }

    /// Takes the changes for another attempt. The stubs stay meanwhile.
    pub(super) fn take(&mut self) -> Vec<Change> {
        self.why.clear();
        self.is_stale = false;
        self.changes.take()
    }

    /// Forgets the stubs of all that was taken. To be called after each attempt.
    pub(super) fn settle(&mut self) {
        self.stubs.retain(|key| self.why.contains_key(key));
    }

    /// What was refused, and why.
    pub(super) fn refused(&self) -> impl Iterator<Item = Entry<'_>> {
        self.changes.iter().filter_map(|change| {
            let key = change.object();
            Some(Entry { change, why: self.why.get(&key)?, is_stub: self.stubs.contains(&key) })
        })
    }

    /// Why an interface of a pod in a namespace is not judged as it should be: its own rows do not fit, or a
    /// policy that may apply to it is held, without a stub.
    pub(super) fn obstacle(&self, id: EndpointId, namespace: &str) -> Option<&Refused> {
        let own = self.why.get(&ObjectKey::Endpoint(id));
        own.or_else(|| {
            let applies = |id: &PolicyId| id.namespace.as_deref().is_none_or(|it| it == namespace);
            let of_policy = self.why.iter().find(|(key, _)| match key {
                ObjectKey::Policy(id, _) => applies(id) && !self.stubs.contains(key),
                _ => false,
            });
            of_policy.map(|(_, why)| why)
        })
    }
}
