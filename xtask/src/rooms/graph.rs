//! A directed graph and its circles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Nodes are names; an edge leads from the importing node to the imported one.
#[derive(Debug, Default)]
pub(super) struct Graph(BTreeMap<String, BTreeSet<String>>);

// === impl Graph ===

impl Graph {
    pub(super) fn add(&mut self, from: String, to: String) {
        self.0.entry(from).or_default().insert(to);
    }

    /// A shortest circle for each set of nodes that reach each other; it starts and ends with the same node.
    pub(super) fn circles(&self) -> Vec<Vec<String>> {
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for node in self.0.keys() {
            if seen.contains(node) {
                continue;
            }
            if let Some(circle) = self.circle(node) {
                seen.extend(circle.iter().cloned());
                circles.push(circle);
            }
        }
        circles
    }

    /// A shortest way from a node back to itself, by breadth-first search.
    fn circle(&self, node: &String) -> Option<Vec<String>> {
        let mut ways = VecDeque::from([vec![node]]);
        let mut reached = BTreeSet::new();
        while let Some(way) = ways.pop_front() {
            for next in way.last().and_then(|last| self.0.get(*last)).into_iter().flatten() {
                let mut way = way.clone();
                way.push(next);
                if next == node {
                    return Some(way.into_iter().cloned().collect());
                }
                if reached.insert(next) {
                    ways.push_back(way);
                }
            }
        }
        None
    }
}
