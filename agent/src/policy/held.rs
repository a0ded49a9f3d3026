//! Changes that did not fit, and wait for others that make room.

use std::collections::BTreeMap;

use ferrule_policy::{Change, EndpointId, ObjectKey, PolicyId, Refused};

use super::queue::Queue;

/// Of each object the latest change that was refused.
#[derive(Default)]
pub(super) struct Held {
    changes: Queue,
    why: BTreeMap<ObjectKey, Refused>,
    /// Others were applied since the last attempt.
    pub(super) is_stale: bool,
}

// === impl Held ===

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
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

    pub(super) fn take(&mut self) -> Vec<Change> {
        self.why.clear();
        self.is_stale = false;
        self.changes.take()
    }

    /// What was refused, and why.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&Change, &Refused)> {
        self.changes.iter().filter_map(|change| Some((change, self.why.get(&change.object())?)))
    }

    /// Why an interface of a pod in a namespace is not judged as it should be: its own rows do not fit, or a
    /// policy that may apply to it is held.
    pub(super) fn obstacle(&self, id: EndpointId, namespace: &str) -> Option<&Refused> {
        let own = self.why.get(&ObjectKey::Endpoint(id));
        own.or_else(|| {
            let applies = |id: &PolicyId| id.namespace.as_deref().is_none_or(|it| it == namespace);
            let of_policy = self.why.iter().find(|(key, _)| match key {
                ObjectKey::Policy(id, _) => applies(id),
                _ => false,
            });
            of_policy.map(|(_, why)| why)
        })
    }
}
