//! What the API server tells goes where it belongs: pods and KuryrPorts to the registry, the node's ranges to the IPAM.

use std::sync::Arc;

use ipnet::IpNet;

use crate::{
    cni::{Node, VifSource},
    config::Kubernetes,
    health::Reporter,
    plug::host,
    reconcile::Queue,
    registry::Pods,
    watch::{self, Change, KuryrPort, Object as _, Pod, Scope, Sink, Watches},
};

/// The node's pods, and who is told besides the registry.
struct PodSink {
    node: Arc<Node>,
    queue: Queue,
    known: Option<Reporter>,
}

/// Kuryr's decisions for them.
struct PortSink {
    node: Arc<Node>,
}

/// The ranges that a controller gave to this node.
struct RangeSink {
    node: Arc<Node>,
    name: String,
    health: Arc<Reporter>,
}

/// Kuryr labels its ports with the node that they are for.
const KURYR_LABEL: &str = "kuryr.openstack.org/nodeName";

/// Follows all that this node has to know. `known` says when its pods are, `ranges` when there are ranges; each is there if
/// ADD needs it.
pub fn follow(
    watches: &Watches,
    node: &Arc<Node>,
    cluster: &Kubernetes,
    queue: Queue,
    known: Option<Reporter>,
    ranges: Option<Reporter>,
) {
    let name = &cluster.node_name;
    let of_node = |what: &str| ("fieldSelector", format!("{what}={name}"));
    let pods = Scope { name: Pods::WATCH, path: "/api/v1/pods", selector: of_node("spec.nodeName") };
    watches.add(pods, PodSink { node: Arc::clone(node), queue, known });
    if node.policy.source == VifSource::Kuryr {
        let selector = ("labelSelector", format!("{KURYR_LABEL}={name}"));
        let ports = Scope { name: "kuryrports", path: "/apis/openstack.org/v1/kuryrports", selector };
        watches.add(ports, PortSink { node: Arc::clone(node) });
    }
    if let Some(health) = ranges {
        let nodes = Scope { name: "node", path: "/api/v1/nodes", selector: of_node("metadata.name") };
        watches
            .add(nodes, RangeSink { node: Arc::clone(node), name: name.clone(), health: Arc::new(health) });
    }
}

/// Gives the IPAM its ranges, and makes the node forward what goes to and from them. May block.
///
/// # Errors
/// If the ranges are unfit, or the kernel or the store refuses.
pub fn use_ranges(node: &Node, ranges: &[IpNet]) -> anyhow::Result<()> {
    let own = host::addresses()?;
    node.registry.set_ranges(ranges, &own)?;
    Ok(host::forward(ranges)?)
}

impl Sink<Pod> for PodSink {
    fn apply(&self, change: Change<Pod>) {
        if let (Change::Synced, Some(known)) = (&change, &self.known) {
            known.healthy("the node's pods are known");
        }
        if let Some(key) = self.node.registry.pods.pod(change) {
            self.queue.add(key);
        }
    }
}

impl Sink<KuryrPort> for PortSink {
    fn apply(&self, change: Change<KuryrPort>) {
        self.node.registry.pods.port(change);
    }
}

impl Sink<watch::Node> for RangeSink {
    fn apply(&self, change: Change<watch::Node>) {
        match change {
            Change::Applied(node) => self.ranges_of(&node),
            Change::Gone { .. } => {
                tracing::warn!(node = self.name, "the Node object is gone; its pod CIDRs stay in use");
            }
            Change::Synced if self.node.registry.ranges().borrow().is_empty() => {
                let name = &self.name;
                self.health.starting(format!(
                    "the node {name} has no spec.podCIDRs yet: a controller has to give it some"
                ));
            }
            Change::Synced => {}
        }
    }
}

// === impl RangeSink ===

impl RangeSink {
    fn ranges_of(&self, node: &watch::Node) {
        let one = std::slice::from_ref(&node.spec.pod_cidr).iter().filter(|it| !it.is_empty());
        let texts: Vec<&String> =
            if node.spec.pod_cidrs.is_empty() { one.collect() } else { node.spec.pod_cidrs.iter().collect() };
        let ranges: Result<Vec<IpNet>, _> = texts.iter().map(|text| text.parse()).collect();
        let Ok(ranges) = ranges else {
            self.health.unhealthy(format!(
                "the spec.podCIDRs of the node {} are none: {texts:?}",
                node.metadata().name
            ));
            return;
        };
        if ranges.is_empty() || *self.node.registry.ranges().borrow() == ranges {
            return;
        }
        let (node, health) = (Arc::clone(&self.node), Arc::clone(&self.health));
        // The kernel and the store are asked, which may take its time.
        tokio::task::spawn_blocking(move || match use_ranges(&node, &ranges) {
            Ok(()) => {
                let texts: Vec<_> = ranges.iter().map(IpNet::to_string).collect();
                tracing::info!(ranges = texts.join(", "), "the node has pod CIDRs");
                health.healthy(texts.join(", "));
            }
            Err(error) => health.unhealthy(format!("the node's pod CIDRs cannot be used: {error:#}")),
        });
    }
}
