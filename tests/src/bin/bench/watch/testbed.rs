//! The test bed: a node, an API server in this process, and an agent that watches it.

use std::{fs, time::Duration};

use anyhow::Context as _;
use ferrule_tests::{
    apiserver::{Options, Resource, objects},
    cluster::{Cluster, NODE},
    node::{Node, POD_V6},
    pod::{NAMESPACE, Pod},
    sys::wait_until,
};
use serde_json::Value;

use crate::{
    cpu, memory,
    table::{Goal, Table},
    typical,
};

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
            self.cluster.api.create(Resource::Pods, typical::pod(NAMESPACE, &name(number), NODE))?;
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
        memory::measure(self.node, what, goal, table)
    }

    fn wait_for_sync(&self) -> anyhow::Result<()> {
        let pods = self.pods as f64;
        wait_until("the agent knows all pods", TIMEOUT, || Ok(self.node.metric(PODS_METRIC)? == pods))
    }
}

pub(super) fn name(number: usize) -> String {
    format!("web-6b7f6db5c9-{number:05}")
}
