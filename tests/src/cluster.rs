//! A cluster of one node: an API server on the node's loopback, and an agent that watches it.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::{
    apiserver::{ApiServer, Options, Resource, objects},
    node::{Node, POD_V4, POD_V6, on_node},
    pod::Pod,
    sys::wait_until,
};

/// A test API server, and shortcuts for creating and attaching pods.
pub struct Cluster {
    pub api: ApiServer,
}

pub const NODE: &str = "node-1";
/// The kubeconfig file that the agent reads.
pub const KUBECONFIG: &str = "/run/kubeconfig";

/// Runs `run` on a node whose agent watches an API server with a Node object of two pod CIDRs. `flags` are
/// additional agent flags.
///
/// # Errors
/// The closure's error, or a failure to set up the node.
pub fn with_cluster<T: Send>(
    flags: &[&str],
    run: impl FnOnce(&mut Node, &Cluster) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    with_cluster_of(&[POD_V4, POD_V6], flags, run)
}

/// As [`with_cluster`], with other pod CIDRs.
///
/// # Errors
/// As [`with_cluster`].
pub fn with_cluster_of<T: Send>(
    pod_cidrs: &[&str],
    flags: &[&str],
    run: impl FnOnce(&mut Node, &Cluster) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    on_node(|node| {
        let cluster = Cluster::start(Options::default())?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, pod_cidrs))?;
        cluster.start_agent(node, flags)?;
        wait_until("the agent watches and is ready", Duration::from_secs(10), || {
            let follows = cluster.api.open_watches().contains_key(&Resource::Pods);
            Ok(follows && node.http("/readyz")?.0 == 200)
        })?;
        run(node, &cluster)
    })
}

/// Creates an existing sandbox's pod in the API, bound to a node.
///
/// # Errors
/// If a pod of this name exists.
pub fn schedule(api: &ApiServer, node: &str, pod: &Pod, annotations: &[(&str, &str)]) -> anyhow::Result<()> {
    let mut object = objects::pod(&pod.namespace, &pod.name, node);
    for (name, value) in annotations {
        object = objects::with_annotation(object, name, value);
    }
    let metadata =
        object.get_mut("metadata").and_then(Value::as_object_mut).context("the object has no metadata")?;
    metadata.insert("uid".to_owned(), json!(pod.uid));
    api.create(Resource::Pods, object)?;
    Ok(())
}

// === impl Cluster ===

impl Cluster {
    /// An empty API server and a kubeconfig for it.
    ///
    /// # Errors
    /// If the server cannot listen.
    pub fn start(options: Options) -> anyhow::Result<Self> {
        let api = ApiServer::start(options)?;
        api.kubeconfig(Path::new(KUBECONFIG), None)?;
        Ok(Self { api })
    }

    /// Starts an agent that watches this cluster.
    ///
    /// # Errors
    /// If the agent does not serve.
    pub fn start_agent(&self, node: &mut Node, flags: &[&str]) -> anyhow::Result<()> {
        let follow = ["--kubeconfig", KUBECONFIG, "--node-name", NODE];
        node.start_agent_with(&[&follow[..], flags].concat())
    }

    /// Whether the agent has set the condition `NetworkUnavailable` of its Node to False.
    #[must_use]
    pub fn has_announced(&self) -> bool {
        let node = self.api.get(Resource::Nodes, "", NODE).unwrap_or_default();
        let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
        let wanted = |it: &Value| {
            it.get("type").is_some_and(|it| it == "NetworkUnavailable")
                && it.get("status").is_some_and(|it| it == "False")
        };
        conditions.is_some_and(|all| all.iter().any(wanted))
    }

    /// Creates a pod in the API, bound to the node, and its network namespace. The pod is not attached.
    ///
    /// # Errors
    /// If either cannot be created.
    pub fn pod(&self, node: &Node, name: &str, annotations: &[(&str, &str)]) -> anyhow::Result<Pod> {
        let pod = node.pod(name)?;
        self.schedule(&pod, annotations)?;
        Ok(pod)
    }

    /// Creates an existing sandbox's pod in the API.
    ///
    /// # Errors
    /// If a pod of this name exists.
    pub fn schedule(&self, pod: &Pod, annotations: &[(&str, &str)]) -> anyhow::Result<()> {
        schedule(&self.api, NODE, pod, annotations)
    }

    /// Creates a pod in the API and attaches it, with a runtime that passes no annotations.
    ///
    /// # Errors
    /// If either step fails.
    pub fn attach(&self, node: &Node, name: &str) -> anyhow::Result<Pod> {
        let mut pod = self.pod(node, name, &[])?;
        let result = node.runtime()?.add(&pod)?;
        pod.attached(&result)?;
        Ok(pod)
    }

    /// Deletes a pod from the API.
    ///
    /// # Errors
    /// If the pod does not exist.
    pub fn delete(&self, pod: &Pod) -> anyhow::Result<()> {
        self.api.delete(Resource::Pods, &pod.namespace, &pod.name)?;
        Ok(())
    }

    /// Waits until the agent has reported, by an Event, that the pod's ADD waits for something.
    ///
    /// # Errors
    /// If there is no such Event within ten seconds.
    pub fn wait_until_add_waits(&self, pod: &Pod, missing: &str) -> anyhow::Result<()> {
        let waits = |event: &Value| {
            let note = event["message"].as_str().or(event["note"].as_str()).unwrap_or_default();
            let reason = event["reason"].as_str().unwrap_or_default();
            reason.starts_with("CNIWaitingFor")
                && note.contains(missing)
                && [&event["involvedObject"], &event["regarding"]]
                    .iter()
                    .any(|it| it["uid"] == pod.uid.as_str())
        };
        wait_until("the ADD waits", Duration::from_secs(10), || {
            let events = self.api.list(Resource::Events);
            ensure!(events.iter().any(waits), "no Event about {missing}: {events:#?}");
            Ok(true)
        })
    }

    /// Annotates a pod in the API.
    ///
    /// # Errors
    /// If the pod does not exist.
    pub fn annotate(&self, pod: &Pod, name: &str, value: &str) -> anyhow::Result<()> {
        self.api.patch(Resource::Pods, &pod.namespace, &pod.name, objects::annotation(name, value))?;
        Ok(())
    }
}
