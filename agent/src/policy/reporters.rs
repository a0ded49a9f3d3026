//! Which nodes write Events about a policy: all nodes see its troubles.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The nodes that are known.
#[derive(Default)]
pub struct Reporters {
    /// The name of this node.
    own: String,
    nodes: Mutex<BTreeSet<String>>,
}

/// Nodes that write an Event about the same policy: some may be away.
const REPORTERS: usize = 3;

// === impl Reporters ===

impl Reporters {
    pub fn new(own: &str) -> Self {
        Self { own: own.to_owned(), nodes: Mutex::default() }
    }

    pub(super) fn add(&self, node: &str) {
        let mut nodes = self.nodes();
        if !nodes.contains(node) {
            nodes.insert(node.to_owned());
        }
    }

    pub(super) fn remove(&self, node: &str) {
        self.nodes().remove(node);
    }

    /// Whether this node is one of those that write Events about a policy. All nodes choose the same ones.
    pub(super) fn have_own(&self, uid: &str) -> bool {
        let rank = |node: &str| {
            let mut hasher = DefaultHasher::new();
            (uid, node).hash(&mut hasher);
            hasher.finish()
        };
        let own = rank(&self.own);
        let nodes = self.nodes();
        let before = nodes.iter().filter(|node| **node != self.own && rank(node) < own);
        before.take(REPORTERS).count() < REPORTERS
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reporters(own: &str, nodes: &[String]) -> Reporters {
        let reporters = Reporters::new(own);
        nodes.iter().for_each(|node| reporters.add(node));
        reporters
    }

    #[test]
    fn three_nodes_of_many_write_events_about_a_policy_and_other_nodes_about_another() {
        let names: Vec<_> = (0..200).map(|i| format!("node-{i}")).collect();
        let chosen = |uid: &str| -> Vec<_> {
            names.iter().filter(|own| reporters(own, &names).have_own(uid)).cloned().collect()
        };
        let (first, second) = (chosen("u1"), chosen("u2"));
        assert_eq!((first.len(), second.len()), (3, 3));
        assert_ne!(first, second);
        // Where those are gone, others step in.
        let other = names.iter().find(|name| !first.contains(name)).unwrap();
        let reporters = reporters(other, &names);
        names.iter().filter(|name| *name != other).for_each(|name| reporters.remove(name));
        assert!(reporters.have_own("u1"));
    }

    #[test]
    fn a_node_that_knows_few_others_writes_events() {
        for nodes in [&[][..], &["a"], &["b", "c"], &["a", "b", "c"]] {
            let nodes: Vec<_> = nodes.iter().map(|it| (*it).to_owned()).collect();
            assert!(reporters("a", &nodes).have_own("u"), "{nodes:?}");
        }
    }
}
