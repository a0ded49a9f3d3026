//! Objects as large as those of real clusters.

use ferrule_tests::apiserver::objects;
use serde_json::{Value, json};

/// A running pod, as large as typical pods; the agent must skip most of its fields.
pub(crate) fn pod(namespace: &str, name: &str, node: &str) -> Value {
    let env = |number: usize| json!({ "name": format!("SETTING_{number:02}"), "value": format!("value-of-{number}") });
    let fields = |number: usize| {
        (format!("k:{{\"name\":\"SETTING_{number:02}\"}}"), json!({ ".": {}, "f:name": {}, "f:value": {} }))
    };
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    let id = "0123456789abcdef".repeat(4);
    let mut object = objects::pod(namespace, name, node);
    let more = json!({
        "metadata": {
            "generateName": "web-6b7f6db5c9-",
            "labels": { "app.kubernetes.io/name": "web", "app.kubernetes.io/part-of": "shop", "pod-template-hash": "6b7f6db5c9" },
            "annotations": { "prometheus.io/scrape": "true", "prometheus.io/port": "8080", "checksum/config": id },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-6b7f6db5c9", "controller": true,
                "blockOwnerDeletion": true, "uid": "0f0e0d0c-0b0a-4000-8000-000000000000",
            }],
            "managedFields": [{
                "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "time": "2026-01-01T00:00:00Z",
                "fieldsV1": { "f:spec": { "f:containers": { "k:{\"name\":\"main\"}": {
                    ".": {}, "f:image": {}, "f:env": (0..16).map(fields).collect::<serde_json::Map<_, _>>(),
                } } } },
            }],
        },
        "spec": {
            "containers": [{
                "name": "main", "image": "registry.example/shop/web:1.27.3", "imagePullPolicy": "IfNotPresent",
                "env": (0..16).map(env).collect::<Vec<_>>(),
                "ports": [{ "containerPort": 8080, "protocol": "TCP", "name": "http" }],
                "resources": { "limits": { "memory": "256Mi" }, "requests": { "cpu": "100m", "memory": "256Mi" } },
                "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080, "scheme": "HTTP" }, "periodSeconds": 10 },
                "volumeMounts": [{
                    "name": "kube-api-access-abcde", "readOnly": true,
                    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                }],
            }],
            "tolerations": [
                { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
            ],
        },
        "status": {
            "hostIP": "192.0.2.1", "podIP": "10.244.0.9", "podIPs": [{ "ip": "10.244.0.9" }],
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": conditions,
            "containerStatuses": [{
                "name": "main", "ready": true, "started": true, "restartCount": 0,
                "image": "registry.example/shop/web:1.27.3", "imageID": format!("registry.example/shop/web@sha256:{id}"),
                "containerID": format!("containerd://{id}"), "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
            }],
        },
    });
    json_patch::merge(&mut object, &more);
    object
}
