//! The watches of the node's pods, of their KuryrPorts, of all nodes, and of the ranges of Services.

use super::{InitialSync, KuryrPort, Node, OwnNode, Pod, PodChange, Pods, ServiceCidr};
use crate::watch::{Change, Scope, Sink, Watches};

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

struct NodeSink<F> {
    own: OwnNode,
    on_change: F,
}

struct ServiceCidrSink<F>(F);

/// Watches the pods of a node. `on_change` gets the key of each pod that was added, modified or deleted,
/// after `pods` was updated; it must not block.
pub fn watch_pods(
    watches: &Watches,
    node_name: &str,
    pods: Pods,
    on_change: impl Fn(PodChange) + Send + Sync + 'static,
    initial_sync: Option<InitialSync>,
) {
    let selector = Some(("fieldSelector", format!("spec.nodeName={node_name}")));
    let scope = Scope { name: Pods::WATCH, path: "/api/v1/pods", selector };
    watches.add(scope, PodSink { pods, on_change, initial_sync });
}

/// Watches the KuryrPorts of a node's pods.
pub fn watch_kuryr_ports(watches: &Watches, node_name: &str, pods: Pods, initial_sync: Option<InitialSync>) {
    let selector = Some(("labelSelector", format!("{KURYR_NODE_LABEL}={node_name}")));
    let scope = Scope { name: KURYR_PORTS, path: "/apis/openstack.org/v1/kuryrports", selector };
    watches.add(scope, KuryrPortSink { pods, initial_sync });
}

/// Watches all nodes. `on_change` gets each change, after `own` has followed it; it must not block.
pub fn watch_nodes(
    watches: &Watches,
    own: OwnNode,
    on_change: impl Fn(Change<Node>) + Send + Sync + 'static,
) {
    let scope = Scope { name: "nodes", path: "/api/v1/nodes", selector: None };
    watches.add(scope, NodeSink { own, on_change });
}

/// Watches the ranges of Services, which are objects since Kubernetes 1.33. `on_change` gets each change; it
/// must not block.
pub fn watch_service_cidrs(
    watches: &Watches,
    on_change: impl Fn(Change<ServiceCidr>) + Send + Sync + 'static,
) {
    let path = "/apis/networking.k8s.io/v1/servicecidrs";
    let scope = Scope { name: "servicecidrs", path, selector: None };
    watches.add(scope, ServiceCidrSink(on_change));
}

impl<F: Fn(Change<ServiceCidr>) + Send + Sync + 'static> Sink<ServiceCidr> for ServiceCidrSink<F> {
    fn apply(&self, change: Change<ServiceCidr>) {
        (self.0)(change);
    }
}

impl<F: Fn(Change<Node>) + Send + Sync + 'static> Sink<Node> for NodeSink<F> {
    fn apply(&self, change: Change<Node>) {
        self.own.apply(&change);
        (self.on_change)(change);
    }
}

impl<F: Fn(PodChange) + Send + Sync + 'static> Sink<Pod> for PodSink<F> {
    fn apply(&self, change: Change<Pod>) {
        let is_synced = matches!(change, Change::Synced);
        if let Some(change) = self.pods.apply_pod(change) {
            (self.on_change)(change);
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{cluster::PodRef, health::Health, watch::ObjectKey};

    fn object<T: serde::de::DeserializeOwned>() -> T {
        serde_json::from_str(
            r#"{"metadata":{"namespace":"n","name":"web","uid":"u1"},"spec":{"podUid":"u1"}}"#,
        )
        .unwrap()
    }

    #[test]
    fn each_change_of_a_pod_is_applied_before_it_is_announced() {
        let pods = Pods::default();
        let health = Health::default();
        let initial_sync = InitialSync::new(&[Pods::WATCH], health.component("vifs", true, "listing"));
        let seen = Mutex::new(Vec::new());
        let web = PodRef { namespace: "n".to_owned(), name: "web".to_owned(), uid: "u1".to_owned() };
        let seen = std::sync::Arc::new(seen);
        let on_change = {
            let (seen, pods, web) = (std::sync::Arc::clone(&seen), pods.clone(), web.clone());
            move |change: PodChange| {
                seen.lock().unwrap().push((change.key.to_string(), change.is_end, pods.uid_at(&web)));
            }
        };
        let sink = PodSink { pods: pods.clone(), on_change, initial_sync: Some(initial_sync) };
        sink.apply(Change::applied(object()));
        assert!(!health.is_ready());
        sink.apply(Change::Gone { key: ObjectKey::new("n", "web"), uid: "u1".to_owned() });
        assert!(!pods.is_synced() && !health.is_ready());
        sink.apply(Change::Synced);
        assert!(pods.is_synced() && health.is_ready());
        let expected = [("n/web".to_owned(), false, Some("u1".to_owned())), ("n/web".to_owned(), true, None)];
        assert_eq!(*seen.lock().unwrap(), expected);
    }

    #[test]
    fn kuryr_ports_are_applied_and_the_end_of_their_list_is_reported() {
        let (pods, health) = (Pods::default(), Health::default());
        let initial_sync = InitialSync::new(&[KURYR_PORTS], health.component("vifs", true, "listing"));
        let sink = KuryrPortSink { pods: pods.clone(), initial_sync: Some(initial_sync) };
        let web = PodRef { namespace: "n".to_owned(), name: "web".to_owned(), uid: "u1".to_owned() };
        sink.apply(Change::applied(object()));
        assert!(pods.kuryr(&web, false).is_some() && !health.is_ready());
        sink.apply(Change::Synced);
        assert!(health.is_ready());
        assert!(!pods.is_synced(), "the pods have not been listed");
    }
}
