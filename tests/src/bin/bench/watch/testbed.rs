//! The test bed: a node, an API server in this process, and an agent that watches it.

use std::{fs, thread, time::Duration};

use anyhow::Context as _;
use ferrule_tests::{
    apiserver::{Options, Resource, objects},
    cluster::{Cluster, NODE},
    node::{Node, POD_V6},
    pod::{NAMESPACE, Pod},
    sys::wait_until,
};
use serde_json::{Value, json};

use super::table::{Goal, Table};
use crate::cpu;

pub(super) struct Testbed<'a> {
    pub(super) node: &'a mut Node,
    pub(super) cluster: Cluster,
    flags: Vec<&'static str>,
    /// Number of pods in the API.
    pub(super) pods: usize,
}

/// Metric: number of pods that the agent knows.
const PODS_METRIC: &str = r#"ferrule_watch_objects{source="pods"}"#;
/// Large enough for all pods of a run: released addresses stay in cooldown.
const POD_V4: &str = "10.244.0.0/16";
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// By then, the checkpoint is durable and the allocator has returned its free memory.
const SETTLE_TIME: Duration = Duration::from_secs(4);

// === impl Bed ===

impl<'a> Testbed<'a> {
    /// The API server's history holds `changes` and some more.
    pub(super) fn new(node: &'a mut Node, flags: &[&'static str], changes: usize) -> anyhow::Result<Self> {
        let cluster = Cluster::start(Options { history_limit: changes + 10_000, ..Options::default() })?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_V4, POD_V6]))?;
        let flags = [&["--watch-max-backoff", "1"], flags].concat();
        Ok(Self { node, cluster, flags, pods: 0 })
    }

    /// Starts an agent without a checkpoint and waits until it knows all pods.
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        self.node.stop_agent()?;
        // The checkpoint does not exist before the first start.
        let _ = fs::remove_dir_all("/run/ferrule/watch");
        self.cluster.start_agent(self.node, &self.flags)?;
        self.wait_for_sync()
    }

    pub(super) fn create(&mut self, count: usize) -> anyhow::Result<()> {
        for number in self.pods..self.pods + count {
            self.cluster.api.create(Resource::Pods, pod(&name(number)))?;
        }
        self.pods += count;
        if self.node.http("/readyz").is_ok() { self.wait_for_sync() } else { Ok(()) }
    }

    /// Attaches the first `count` pods.
    pub(super) fn attach(&self, count: usize) -> anyhow::Result<Vec<Pod>> {
        let runtime = self.node.runtime()?;
        let attach = |number| {
            let mut pod = self.node.pod(&name(number))?;
            let object = self.cluster.api.get(Resource::Pods, NAMESPACE, &pod.name).context("no such pod")?;
            object
                .pointer("/metadata/uid")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .clone_into(&mut pod.uid);
            runtime.add(&pod)?;
            Ok(pod)
        };
        (0..count).map(attach).collect()
    }

    pub(super) fn agent(&self) -> anyhow::Result<cpu::Agent> {
        cpu::Agent::find()
    }

    /// Adds the agent's memory to the table, once it has settled.
    pub(super) fn measure_memory(
        &self,
        what: &str,
        goal: impl Into<Option<Goal>>,
        table: &mut Table,
    ) -> anyhow::Result<()> {
        thread::sleep(SETTLE_TIME);
        let mebibytes = |field: &str| anyhow::Ok(self.node.agent_status(field)? as f64 / 1024.0);
        table.add(format!("RSS, {what}"), mebibytes("VmRSS")?, "MiB", goal);
        table.add("  anonymous (the rest is file-backed)", mebibytes("RssAnon")?, "MiB", None);
        table.add("  peak so far", mebibytes("VmHWM")?, "MiB", None);
        Ok(())
    }

    fn wait_for_sync(&self) -> anyhow::Result<()> {
        let pods = self.pods as f64;
        wait_until("the agent knows all pods", TIMEOUT, || Ok(self.node.metric(PODS_METRIC)? == pods))
    }
}

pub(super) fn name(number: usize) -> String {
    format!("web-6b7f6db5c9-{number:05}")
}

/// A pod of this node, as large as typical pods; the agent must skip most of its fields.
pub(super) fn pod(name: &str) -> Value {
    let env = |number: usize| json!({ "name": format!("SETTING_{number:02}"), "value": format!("value-of-{number}") });
    let fields = |number: usize| {
        (format!("k:{{\"name\":\"SETTING_{number:02}\"}}"), json!({ ".": {}, "f:name": {}, "f:value": {} }))
    };
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    let id = "0123456789abcdef".repeat(4);
    let mut object = objects::pod(NAMESPACE, name, NODE);
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
