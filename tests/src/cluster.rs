//! A cluster of one node: an API server on the node's loopback, and an agent that follows it.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::{
    apiserver::{ApiServer, Options, Resource, objects},
    node::{Node, POD_V4, POD_V6, on_node},
    pod::{NAMESPACE, Pod},
    sys::wait_until,
};

/// The API server, and what tests do with it.
pub struct Cluster {
    pub api: ApiServer,
}

/// Name of the node.
pub const NODE: &str = "node-1";
/// Where the agent finds the API server.
pub const KUBECONFIG: &str = "/run/kubeconfig";

/// Makes a node, a cluster with a Node object of two pod CIDRs, and an agent with some more flags that follows it;
/// and does something with them.
///
/// # Errors
/// What the closure says, or if one of them cannot be made.
pub fn with_cluster<T: Send>(
    flags: &[&str],
    run: impl FnOnce(&mut Node, &Cluster) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    with_cluster_of(&[POD_V4, POD_V6], flags, run)
}

/// The same with other pod CIDRs.
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
        wait_until("the agent follows and is ready", Duration::from_secs(10), || {
            let follows = cluster.api.open_watches().contains_key(&Resource::Pods);
            Ok(follows && node.http("/readyz")?.0 == 200)
        })?;
        run(node, &cluster)
    })
}

// === impl Cluster ===

impl Cluster {
    /// An API server that knows no nodes, and a kubeconfig for it.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn start(options: Options) -> anyhow::Result<Self> {
        let api = ApiServer::start(options)?;
        api.kubeconfig(Path::new(KUBECONFIG), None)?;
        Ok(Self { api })
    }

    /// Starts an agent that follows this cluster.
    ///
    /// # Errors
    /// If it does not serve.
    pub fn start_agent(&self, node: &mut Node, flags: &[&str]) -> anyhow::Result<()> {
        let follow = ["--kubeconfig", KUBECONFIG, "--node-name", NODE];
        node.start_agent_with(&[&follow[..], flags].concat())
    }

    /// A pod in the API, bound to the node, and its namespace: not attached yet.
    ///
    /// # Errors
    /// If either cannot be made.
    pub fn pod(&self, node: &Node, name: &str, annotations: &[(&str, &str)]) -> anyhow::Result<Pod> {
        let pod = node.pod(name)?;
        self.schedule(&pod, annotations)?;
        Ok(pod)
    }

    /// Creates a pod in the API that has a namespace already.
    ///
    /// # Errors
    /// If there is one of its name.
    pub fn schedule(&self, pod: &Pod, annotations: &[(&str, &str)]) -> anyhow::Result<()> {
        let mut object = objects::pod(NAMESPACE, &pod.name, NODE);
        for (name, value) in annotations {
            object = objects::with_annotation(object, name, value);
        }
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut).context("no metadata")?;
        metadata.insert("uid".to_owned(), json!(pod.uid));
        self.api.create(Resource::Pods, object)?;
        Ok(())
    }

    /// A pod in the API that is attached, by a runtime that hands over no annotations.
    ///
    /// # Errors
    /// If either cannot be made.
    pub fn attach(&self, node: &Node, name: &str) -> anyhow::Result<Pod> {
        let mut pod = self.pod(node, name, &[])?;
        let result = node.runtime()?.add(&pod)?;
        pod.attached(&result)?;
        Ok(pod)
    }

    /// Deletes a pod from the API.
    ///
    /// # Errors
    /// If it is not there.
    pub fn delete(&self, pod: &Pod) -> anyhow::Result<()> {
        self.api.delete(Resource::Pods, NAMESPACE, &pod.name)?;
        Ok(())
    }

    /// Annotates a pod in the API.
    ///
    /// # Errors
    /// If it is not there.
    pub fn annotate(&self, pod: &Pod, name: &str, value: &str) -> anyhow::Result<()> {
        self.api.patch(Resource::Pods, NAMESPACE, &pod.name, objects::annotation(name, value))?;
        Ok(())
    }
}
