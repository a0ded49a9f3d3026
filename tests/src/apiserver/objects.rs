//! Builders for API objects. Each returns a plain value that tests can modify further.

use std::net::IpAddr;

use serde_json::{Value, json};

/// A running pod, bound to a node.
#[must_use]
pub fn pod(namespace: &str, name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
        "spec": {
            "nodeName": node,
            "containers": [{ "name": "main", "image": "registry.example/main:1" }],
            "restartPolicy": "Always",
            "serviceAccountName": "default",
        },
        "status": { "phase": "Running", "qosClass": "BestEffort" },
    })
}

/// A node with its pod CIDRs.
#[must_use]
pub fn node(name: &str, pod_cidrs: &[&str]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "spec": { "podCIDR": pod_cidrs.first(), "podCIDRs": pod_cidrs },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

/// A node with InternalIPs.
#[must_use]
pub fn with_addresses(node: Value, addresses: &[IpAddr]) -> Value {
    let internal = |address: &IpAddr| json!({ "type": "InternalIP", "address": address.to_string() });
    let addresses: Vec<_> = addresses.iter().map(internal).collect();
    merged(node, &json!({ "status": { "addresses": addresses } }))
}

#[must_use]
pub fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } },
        "spec": { "finalizers": ["kubernetes"] },
        "status": { "phase": "Active" },
    })
}

/// A NetworkPolicy.
#[must_use]
pub fn network_policy(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": namespace },
        "spec": spec,
    })
}

/// A ClusterNetworkPolicy.
#[must_use]
pub fn cluster_network_policy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": { "name": name },
        "spec": spec,
    })
}

/// A range of Services' addresses.
#[must_use]
pub fn service_cidr(name: &str, ranges: &[&str]) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": { "name": name },
        "spec": { "cidrs": ranges },
    })
}

/// A Service with addresses of the cluster.
#[must_use]
pub fn service(namespace: &str, name: &str, addresses: &[IpAddr]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": addresses.first(),
            "clusterIPs": addresses,
            "ports": [{ "protocol": "TCP", "port": 80, "targetPort": 8080 }],
        },
        "status": { "loadBalancer": {} },
    })
}

/// A pod's KuryrPort as Kuryr's controller creates it. `vifs` maps interface names to VIFs in its status;
/// empty means that the VIFs are not decided yet.
#[must_use]
pub fn kuryr_port(namespace: &str, name: &str, node: &str, pod_uid: &str, vifs: Value) -> Value {
    json!({
        "apiVersion": "openstack.org/v1",
        "kind": "KuryrPort",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": { "kuryr.openstack.org/nodeName": node },
            "finalizers": ["kuryr.openstack.org/kuryrport-finalizer"],
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod_uid }],
        },
        "spec": { "podUid": pod_uid, "podNodeName": node, "podStatic": false },
        "status": { "vifs": vifs },
    })
}

#[must_use]
pub fn with_annotation(object: Value, name: &str, value: &str) -> Value {
    merged(object, &annotation(name, value))
}

#[must_use]
pub fn with_label(object: Value, name: &str, value: &str) -> Value {
    merged(object, &json!({ "metadata": { "labels": { name: value } } }))
}

#[must_use]
pub fn with_finalizers(object: Value, finalizers: &[&str]) -> Value {
    merged(object, &json!({ "metadata": { "finalizers": finalizers } }))
}

/// The merge patch that sets an annotation.
#[must_use]
pub fn annotation(name: &str, value: &str) -> Value {
    json!({ "metadata": { "annotations": { name: value } } })
}

/// The merge patch that sets a pod's phase; `Succeeded` and `Failed` end the pod.
#[must_use]
pub fn phase(phase: &str) -> Value {
    json!({ "status": { "phase": phase } })
}

/// The merge patch that sets a KuryrPort's VIFs.
#[must_use]
pub fn vifs(vifs: Value) -> Value {
    json!({ "status": { "vifs": vifs } })
}

/// An object after a merge patch.
#[must_use]
pub fn merged(mut object: Value, patch: &Value) -> Value {
    json_patch::merge(&mut object, patch);
    object
}
