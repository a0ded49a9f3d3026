//! The watch of the agent's own Node object, which holds the node's pod CIDRs.

use std::{slice, sync::Arc};

use ipnet::IpNet;
use tokio::sync::watch::{Receiver, Sender, channel};

use super::Node;
use crate::{
    health::Reporter,
    watch::{Change, Scope, Sink, Watches},
};

struct NodeSink {
    name: String,
    ranges: Sender<Vec<IpNet>>,
    health: Arc<Reporter>,
}

/// Watches the Node object of a name. The receiver gets its pod CIDRs each time they change; they are empty
/// until the API server has delivered some. A deleted Node keeps its last pod CIDRs.
pub fn watch_own_node(watches: &Watches, name: &str, health: Arc<Reporter>) -> Receiver<Vec<IpNet>> {
    let (ranges, receiver) = channel(Vec::new());
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
                tracing::warn!(node = self.name, "the Node object was deleted; keeping its pod CIDRs");
            }
            Change::Synced if self.ranges.borrow().is_empty() => {
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
            Ok(ranges) if ranges.is_empty() => {}
            Ok(ranges) => {
                self.ranges.send_if_modified(|current| {
                    let changed = *current != ranges;
                    *current = ranges;
                    changed
                });
            }
            Err(invalid) => {
                self.health.unhealthy(format!("invalid spec.podCIDRs of the Node {}: {invalid}", self.name));
            }
        }
    }
}

/// All pod CIDRs of a Node, or those that are invalid.
fn pod_cidrs(node: &Node) -> Result<Vec<IpNet>, String> {
    let spec = &node.spec;
    // Before dual-stack support there was a single field.
    let single = slice::from_ref(&spec.pod_cidr);
    let texts = if spec.pod_cidrs.is_empty() { single } else { spec.pod_cidrs.as_slice() };
    let texts = texts.iter().filter(|text| !text.is_empty());
    texts.map(|text| text.parse().map_err(|_| format!("{text:?} is not a CIDR"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spec: &str) -> Result<Vec<IpNet>, String> {
        let json = format!(r#"{{"metadata":{{"name":"node"}},"spec":{spec}}}"#);
        pod_cidrs(&serde_json::from_str(&json).unwrap())
    }

    #[test]
    fn pod_cidrs_are_read_from_the_list_and_else_from_the_single_field() {
        let both = r#"{"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24","fd00::/64"]}"#;
        let expected: Vec<IpNet> = vec!["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
        assert_eq!(of(both).unwrap(), expected);
        assert_eq!(of(r#"{"podCIDR":"10.0.0.0/24"}"#).unwrap(), expected[..1]);
        assert_eq!(of("{}").unwrap(), []);
        assert!(of(r#"{"podCIDRs":["10.0.0.0/24","ten"]}"#).unwrap_err().contains("ten"));
    }
}
