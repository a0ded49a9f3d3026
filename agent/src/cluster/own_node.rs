//! The watch of the agent's own Node object, which holds the node's pod CIDRs.

use std::{slice, sync::Arc};

use tokio::sync::watch::{Receiver, Sender, channel};

use super::Node;
use crate::{
    health::Reporter,
    ipam::{PodCidrs, Ranges, parse_cidr},
    watch::{Change, Scope, Sink, Watches},
};

struct NodeSink {
    name: String,
    ranges: Sender<Ranges>,
    health: Arc<Reporter>,
}

/// Watches the Node object of a name. The receiver gets the node's ranges each time they change. A Node that
/// is deleted, or that lost its pod CIDRs, withdraws them: another node may get them.
pub fn watch_own_node(watches: &Watches, name: &str, health: Arc<Reporter>) -> Receiver<Ranges> {
    let (ranges, receiver) = channel(Ranges::Awaited);
    let selector = ("fieldSelector", format!("metadata.name={name}"));
    let scope = Scope { name: "node", path: "/api/v1/nodes", selector };
    watches.add(scope, NodeSink { name: name.to_owned(), ranges, health });
    receiver
}

impl Sink<Node> for NodeSink {
    fn apply(&self, change: Change<Node>) {
        match change {
            Change::Applied(node) => self.update(&node),
            Change::Gone { .. } => {
                self.withdraw(format!(
                    "the Node object {} was deleted, so that another node may get its pod CIDRs",
                    self.name
                ));
            }
            Change::Synced if *self.ranges.borrow() == Ranges::Awaited => {
                self.health.starting(format!(
                    "waiting for a controller to set spec.podCIDRs of the Node {}",
                    self.name
                ));
            }
            Change::Synced => {}
        }
    }
}

// === impl NodeSink ===

impl NodeSink {
    fn update(&self, node: &Node) {
        match pod_cidrs(node) {
            Ok(Some(ranges)) => self.set(Ranges::Known(ranges)),
            // A new Node has none until a controller assigns them; nothing assigns others to an old one.
            Ok(None) => self.withdraw(format!("the Node object {} has no spec.podCIDRs", self.name)),
            Err(invalid) => {
                let why = format!("invalid spec.podCIDRs of the Node {}: {invalid}", self.name);
                self.health.unhealthy(why.clone());
                self.withdraw(why);
            }
        }
    }

    /// An agent that has never had ranges goes on waiting for them.
    fn withdraw(&self, why: String) {
        if *self.ranges.borrow() != Ranges::Awaited {
            self.set(Ranges::Withdrawn(why));
        }
    }

    fn set(&self, ranges: Ranges) {
        self.ranges.send_if_modified(|current| {
            let changed = *current != ranges;
            *current = ranges;
            changed
        });
    }
}

/// The pod CIDRs of a Node, if it has any, or why they are invalid.
fn pod_cidrs(node: &Node) -> Result<Option<PodCidrs>, String> {
    let spec = &node.spec;
    // Before dual-stack support there was a single field.
    let single = slice::from_ref(&spec.pod_cidr);
    let texts = if spec.pod_cidrs.is_empty() { single } else { spec.pod_cidrs.as_slice() };
    let texts = texts.iter().filter(|text| !text.is_empty());
    let ranges = texts.map(|text| parse_cidr(text)).collect::<Result<Vec<_>, _>>();
    let ranges = ranges.and_then(PodCidrs::new).map_err(|error| error.to_string())?;
    Ok(Some(ranges).filter(|ranges| !ranges.nets().is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        health::{Health, State},
        watch::ObjectKey,
    };

    fn node(spec: &str) -> Node {
        serde_json::from_str(&format!(r#"{{"metadata":{{"name":"node","uid":"u1"}},"spec":{spec}}}"#))
            .unwrap()
    }

    fn of(spec: &str) -> Result<Option<String>, String> {
        Ok(pod_cidrs(&node(spec))?.map(|ranges| ranges.to_string()))
    }

    fn sink() -> (NodeSink, Health) {
        let health = Health::default();
        let reporter = Arc::new(health.component("ranges", true, "waiting"));
        (NodeSink { name: "node".to_owned(), ranges: Sender::default(), health: reporter }, health)
    }

    fn gone() -> Change<Node> {
        Change::Gone { key: ObjectKey::new("", "node"), uid: "u1".to_owned() }
    }

    #[test]
    fn pod_cidrs_are_read_in_their_order_from_the_list_and_else_from_the_single_field() {
        let both = r#"{"podCIDR":"fd00::/64","podCIDRs":["fd00::/64","10.0.0.0/24"]}"#;
        assert_eq!(of(both), Ok(Some("fd00::/64, 10.0.0.0/24".to_owned())));
        assert_eq!(of(r#"{"podCIDR":"10.0.0.0/24"}"#), Ok(Some("10.0.0.0/24".to_owned())));
        assert_eq!(of("{}"), Ok(None));
        assert!(of(r#"{"podCIDRs":["10.0.0.0/24","ten"]}"#).unwrap_err().contains("ten"));
        assert!(of(r#"{"podCIDRs":["10.0.0.0/31"]}"#).unwrap_err().contains("too small"));
    }

    #[test]
    fn a_deleted_node_and_one_without_pod_cidrs_withdraw_the_ranges() {
        let (sink, _health) = sink();
        let mut ranges = sink.ranges.subscribe();
        let mut now = || ranges.borrow_and_update().clone();
        let why = |ranges| if let Ranges::Withdrawn(why) = ranges { why } else { panic!("{ranges:?}") };
        sink.apply(Change::applied(node("{}")));
        assert_eq!(now(), Ranges::Awaited, "the controller has not assigned any");
        sink.apply(Change::applied(node(r#"{"podCIDRs":["10.0.0.0/24"]}"#)));
        assert_eq!(now().nets(), ["10.0.0.0/24".parse().unwrap()]);
        sink.apply(gone());
        assert!(why(now()).contains("the Node object node was deleted"));
        sink.apply(Change::applied(node("{}")));
        assert!(why(now()).contains("the Node object node has no spec.podCIDRs"));
        sink.apply(Change::applied(node(r#"{"podCIDRs":["10.0.1.0/24"]}"#)));
        assert_eq!(now().nets(), ["10.0.1.0/24".parse().unwrap()]);
        sink.apply(Change::applied(node(r#"{"podCIDRs":["ten"]}"#)));
        assert!(why(now()).contains("ten"));
    }

    #[test]
    fn an_agent_that_never_had_ranges_waits_for_them() {
        let (sink, health) = sink();
        sink.apply(gone());
        sink.apply(Change::Synced);
        let component = health.components()["ranges"].clone();
        assert_eq!((component.state, *sink.ranges.borrow() == Ranges::Awaited), (State::Starting, true));
        assert!(component.why.contains("spec.podCIDRs of the Node node"), "{}", component.why);
    }
}
