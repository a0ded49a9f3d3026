//! Which policies select a pod, and in which order they judge.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use serde::Serialize;

use crate::{Compiler, Direction, Policy, PolicyId, Tier, store};

/// What judges a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// What it receives.
    pub ingress: Judges,
    /// What it sends.
    pub egress: Judges,
    /// Whether the pod's namespace is audited: what is denied is recorded, and passes.
    pub is_audited: bool,
    /// Whether the pod has ended, or uses the network of its node: no policy sees it.
    pub is_ignored: bool,
}

/// What judges one direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Judges {
    /// Whether NetworkPolicies isolate the pod: what none of them allows is denied.
    pub isolates: bool,
    /// The policies that say something about the direction, in the order of judgement.
    pub policies: Vec<Policy>,
}

/// Which pods are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// All that have a network of their own and have not ended.
    All,
    /// Those with an interface on this node.
    Local,
}

// === impl Compiler ===

impl Compiler {
    /// Explains a pod of any node; `None` if it is not known.
    pub fn explain(&self, namespace: &str, name: &str) -> Option<Explanation> {
        let party = self.store.pod_named(namespace, name)?;
        let group = self.store.group(party)?;
        let is_ignored = party.kind == store::Kind::Ignored;
        let policies = if is_ignored { Vec::new() } else { self.store.selecting(group) };
        let judges = |direction| {
            let policies = policies.iter().map(|it| &*it.policy);
            let policies: Vec<_> = policies.filter(|it| it.rules(direction).is_some()).cloned().collect();
            Judges { isolates: policies.iter().any(|it| it.tier == Tier::Namespaced), policies }
        };
        let namespace = group.namespace.as_ref().and_then(|it| self.store.namespaces.get(it));
        Some(Explanation {
            ingress: judges(Direction::Ingress),
            egress: judges(Direction::Egress),
            is_audited: !is_ignored && namespace.is_some_and(|it| it.is_audited),
            is_ignored,
        })
    }

    /// How many pods each policy selects; policies that select none are left out.
    pub fn selected(&self, counted: Counted) -> BTreeMap<PolicyId, usize> {
        let is_counted = |party: &&Arc<store::Party>| match counted {
            Counted::All => party.kind == store::Kind::Pod && !party.is_gone,
            Counted::Local => self.store.endpoints_of(&party.uid).next().is_some(),
        };
        let mut selected = BTreeMap::new();
        for (id, group) in self.store.groups.iter() {
            let members = self.store.members_of(*id).filter_map(|it| self.store.parties.get(&it));
            let pods = members.filter(is_counted).count();
            if pods == 0 {
                continue;
            }
            for policy in self.store.selecting(group) {
                *selected.entry(policy.policy.id.clone()).or_default() += pods;
            }
        }
        selected
    }

    /// A policy by its name.
    pub fn policy(&self, id: &PolicyId) -> Option<&Policy> {
        self.store.policies.get(id).map(|it| &*it.policy)
    }

    /// All policies.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.store.policies.values().map(|it| &*it.policy)
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
