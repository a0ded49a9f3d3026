//! The watches of the node's pods and of their KuryrPorts.

use super::{InitialSync, KuryrPort, Pod, Pods};
use crate::watch::{Change, ObjectKey, Scope, Sink, Watches};

/// Name of the watch of KuryrPorts.
pub const KURYR_PORTS: &str = "kuryrports";

/// The label in which Kuryr stores the node of a KuryrPort.
const KURYR_NODE_LABEL: &str = "kuryr.openstack.org/nodeName";

struct PodSink<F> {
    pods: Pods,
    on_change: F,
    initial_sync: Option<InitialSync>,
}

struct KuryrPortSink {
    pods: Pods,
    initial_sync: Option<InitialSync>,
}

/// Watches the pods of a node. `on_change` gets the key of each pod that was added, modified or deleted,
/// after `pods` was updated; it must not block.
pub fn watch_pods(
    watches: &Watches,
    node_name: &str,
    pods: Pods,
    on_change: impl Fn(ObjectKey) + Send + Sync + 'static,
    initial_sync: Option<InitialSync>,
) {
    let selector = ("fieldSelector", format!("spec.nodeName={node_name}"));
    let scope = Scope { name: Pods::WATCH, path: "/api/v1/pods", selector };
    watches.add(scope, PodSink { pods, on_change, initial_sync });
}

/// Watches the KuryrPorts of a node's pods.
pub fn watch_kuryr_ports(watches: &Watches, node_name: &str, pods: Pods, initial_sync: Option<InitialSync>) {
    let selector = ("labelSelector", format!("{KURYR_NODE_LABEL}={node_name}"));
    let scope = Scope { name: KURYR_PORTS, path: "/apis/openstack.org/v1/kuryrports", selector };
    watches.add(scope, KuryrPortSink { pods, initial_sync });
}

impl<F: Fn(ObjectKey) + Send + Sync + 'static> Sink<Pod> for PodSink<F> {
    fn apply(&self, change: Change<Pod>) {
        let is_synced = matches!(change, Change::Synced);
        if let Some(key) = self.pods.apply_pod(change) {
            (self.on_change)(key);
        }
        if let Some(initial_sync) = self.initial_sync.as_ref().filter(|_| is_synced) {
            initial_sync.listed(Pods::WATCH);
        }
    }
}

impl Sink<KuryrPort> for KuryrPortSink {
    fn apply(&self, change: Change<KuryrPort>) {
        let is_synced = matches!(change, Change::Synced);
        self.pods.apply_kuryr_port(change);
        if let Some(initial_sync) = self.initial_sync.as_ref().filter(|_| is_synced) {
            initial_sync.listed(KURYR_PORTS);
        }
    }
}
