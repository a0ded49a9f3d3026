//! What the agent's own Node object says about this node: its pod CIDRs, and what keeps pods off.

use std::sync::Arc;

use tokio::sync::watch::{Receiver, Sender, channel};

use super::Node;
use crate::{health::Reporter, ipam::Ranges, watch::Change};

/// The own Node object, as it changes.
pub struct OwnNode {
    name: String,
    ranges: Option<(Sender<Ranges>, Arc<Reporter>)>,
    marks: Sender<Marks>,
}

/// What keeps pods off this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// Whether the Node object is known.
    pub is_known: bool,
    /// The condition `NetworkUnavailable`, if it is True or False.
    pub is_network_unavailable: Option<bool>,
    /// Whether the Node has the taint [`super::STARTUP_TAINT`].
    pub has_startup_taint: bool,
}

// === impl OwnNode ===

impl OwnNode {
    /// The Node object of a name.
    pub fn new(name: &str) -> (Self, Receiver<Marks>) {
        let (marks, receiver) = channel(Marks::default());
        (Self { name: name.to_owned(), ranges: None, marks }, receiver)
    }

    /// The receiver gets the node's ranges each time they change. A Node that is deleted, or that lost its
    /// pod CIDRs, withdraws them: another node may get them.
    pub fn follow_ranges(&mut self, health: Arc<Reporter>) -> Receiver<Ranges> {
        let (ranges, receiver) = channel(Ranges::Awaited);
        self.ranges = Some((ranges, health));
        receiver
    }

    pub(super) fn apply(&self, change: &Change<Node>) {
        match change {
            Change::Applied(node) if node.name() == self.name => self.update(node),
            Change::Gone { key, .. } if key.as_str() == self.name => {
                self.mark(Marks::default());
                self.withdraw(format!(
                    "the Node object {} was deleted, so that another node may get its pod CIDRs",
                    self.name
                ));
            }
            Change::Synced => self.await_ranges(),
            Change::Applied(_) | Change::Gone { .. } => {}
        }
    }

    fn update(&self, node: &Node) {
        self.mark(Marks {
            is_known: true,
            is_network_unavailable: node.is_network_unavailable,
            has_startup_taint: node.has_startup_taint,
        });
        match node.pod_cidrs() {
            Ok(Some(ranges)) => self.set(Ranges::Known(ranges)),
            // A new Node has none until a controller assigns them; nothing assigns others to an old one.
            Ok(None) => self.withdraw(format!("the Node object {} has no spec.podCIDRs", self.name)),
            Err(invalid) => {
                let why = format!("invalid spec.podCIDRs of the Node {}: {invalid}", self.name);
                if let Some((_, health)) = &self.ranges {
                    health.unhealthy(why.clone());
                }
                self.withdraw(why);
            }
        }
    }

    fn await_ranges(&self) {
        let Some((ranges, health)) = &self.ranges else { return };
        if *ranges.borrow() == Ranges::Awaited {
            health
                .starting(format!("waiting for a controller to set spec.podCIDRs of the Node {}", self.name));
        }
    }

    /// An agent that has never had ranges goes on waiting for them.
    fn withdraw(&self, why: String) {
        if self.ranges.as_ref().is_some_and(|(ranges, _)| *ranges.borrow() != Ranges::Awaited) {
            self.set(Ranges::Withdrawn(why));
        }
    }

    fn set(&self, ranges: Ranges) {
        if let Some((sender, _)) = &self.ranges {
            replace(sender, ranges);
        }
    }

    fn mark(&self, marks: Marks) {
        replace(&self.marks, marks);
    }
}

fn replace<T: PartialEq>(sender: &Sender<T>, value: T) {
    sender.send_if_modified(|current| {
        let changed = *current != value;
        *current = value;
        changed
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        health::{Health, State},
        watch::ObjectKey,
    };

    fn node(spec: &str) -> Change<Node> {
        named("node", spec)
    }

    fn named(name: &str, spec: &str) -> Change<Node> {
        let json = format!(r#"{{"metadata":{{"name":"{name}","uid":"u1"}},"spec":{spec}}}"#);
        Change::applied(serde_json::from_str(&json).unwrap())
    }

    fn own() -> (OwnNode, Receiver<Ranges>, Receiver<Marks>, Health) {
        let health = Health::default();
        let (mut own, marks) = OwnNode::new("node");
        let ranges = own.follow_ranges(Arc::new(health.component("ranges", true, "waiting")));
        (own, ranges, marks, health)
    }

    fn gone(name: &str) -> Change<Node> {
        Change::Gone { key: ObjectKey::new("", name), uid: "u1".to_owned() }
    }

    #[test]
    fn a_deleted_node_and_one_without_pod_cidrs_withdraw_the_ranges() {
        let (own, mut ranges, _marks, _health) = own();
        let mut now = || ranges.borrow_and_update().clone();
        let why = |ranges| if let Ranges::Withdrawn(why) = ranges { why } else { panic!("{ranges:?}") };
        own.apply(&node("{}"));
        assert_eq!(now(), Ranges::Awaited, "the controller has not assigned any");
        own.apply(&node(r#"{"podCIDRs":["10.0.0.0/24"]}"#));
        assert_eq!(now().nets(), ["10.0.0.0/24".parse().unwrap()]);
        own.apply(&gone("node"));
        assert!(why(now()).contains("the Node object node was deleted"));
        own.apply(&node("{}"));
        assert!(why(now()).contains("the Node object node has no spec.podCIDRs"));
        own.apply(&node(r#"{"podCIDRs":["10.0.1.0/24"]}"#));
        assert_eq!(now().nets(), ["10.0.1.0/24".parse().unwrap()]);
        own.apply(&node(r#"{"podCIDRs":["ten"]}"#));
        assert!(why(now()).contains("ten"));
    }

    #[test]
    fn other_nodes_change_no_range_of_this_one() {
        let (own, mut ranges, _marks, _health) = own();
        own.apply(&node(r#"{"podCIDRs":["10.0.0.0/24"]}"#));
        ranges.mark_unchanged();
        own.apply(&named("node-2", r#"{"podCIDRs":["10.0.1.0/24"]}"#));
        own.apply(&gone("node-2"));
        own.apply(&node(r#"{"podCIDRs":["10.0.0.0/24"],"unschedulable":true}"#));
        assert!(!ranges.has_changed().unwrap());
    }

    #[test]
    fn an_agent_that_never_had_ranges_waits_for_them() {
        let (own, ranges, _marks, health) = own();
        own.apply(&gone("node"));
        own.apply(&Change::Synced);
        let component = health.components()["ranges"].clone();
        assert_eq!((component.state, *ranges.borrow() == Ranges::Awaited), (State::Starting, true));
        assert!(component.why.contains("spec.podCIDRs of the Node node"), "{}", component.why);
    }

    #[test]
    fn the_marks_of_the_node_are_those_of_its_object() {
        let (own, _ranges, marks, _health) = own();
        own.apply(&named("node-2", r#"{"taints":[{"key":"ferrule.dev/agent-not-ready"}]}"#));
        assert_eq!(*marks.borrow(), Marks::default());
        own.apply(&node(r#"{"taints":[{"key":"ferrule.dev/agent-not-ready","effect":"NoExecute"}]}"#));
        assert!(marks.borrow().is_known && marks.borrow().has_startup_taint);
        own.apply(&node("{}"));
        assert!(!marks.borrow().has_startup_taint);
        own.apply(&gone("node"));
        assert!(!marks.borrow().is_known);
    }
}
