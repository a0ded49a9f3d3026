//! Which policies select a pod, and in which order they judge.

use std::{cmp::Reverse, sync::Arc};

use serde::Serialize;

use crate::{Compiler, Direction, Policy, Tier, store};

/// What judges a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// What it receives.
    pub ingress: Judges,
    /// What it sends.
    pub egress: Judges,
}

/// What judges one direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Judges {
    /// Whether NetworkPolicies isolate the pod: what none of them allows is denied.
    pub isolates: bool,
    /// The policies that say something about the direction, in the order of judgement.
    pub policies: Vec<Policy>,
}

// === impl Compiler ===

impl Compiler {
    /// Explains a pod of any node; `None` if it is not known.
    pub fn explain(&self, namespace: &str, name: &str) -> Option<Explanation> {
        let group = self.store.group(self.store.pod_named(namespace, name)?)?;
        let policies = self.store.selecting(group);
        let judges = |direction| {
            let policies = policies.iter().map(|it| &it.policy);
            let policies: Vec<_> = policies.filter(|it| it.rules(direction).is_some()).cloned().collect();
            Judges { isolates: policies.iter().any(|it| it.tier == Tier::Namespaced), policies }
        };
        Some(Explanation { ingress: judges(Direction::Ingress), egress: judges(Direction::Egress) })
    }

    /// All policies.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.store.policies.values().map(|it| &it.policy)
    }
}

// === impl Store ===

impl store::Store {
    /// The pod of a name; if there are several, the one that lives, and then the youngest.
    pub(crate) fn pod_named(&self, namespace: &str, name: &str) -> Option<&Arc<store::Party>> {
        let facet = store::Facet::Namespace(self.words.find(namespace)?);
        let members = self.groups_with(&facet).flat_map(|group| self.members_of(group));
        let parties = members.filter_map(|id| self.parties.get(&id)).filter(|party| *party.name == *name);
        parties.min_by_key(|it| {
            (it.is_gone, it.kind == store::Kind::Ignored, it.is_deleting, Reverse(it.created))
        })
    }
}
