//! A node on which an agent dies, again and again, while others' packets flow.

use std::{
    collections::BTreeSet,
    process::{Child, Stdio},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Options, Resource, objects},
    cluster::{Cluster, KUBECONFIG, NODE},
    node::{NODE_V4, Node, POD_V6},
    pod::Pod,
    runtime::Runtime,
    sys,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{scenario::Scenario, truth::Bare};

/// The node, and who is on it.
pub struct World<'a> {
    pub node: &'a mut Node,
    pub runtime: Runtime,
    /// Attached all the time, and not to notice anything.
    bystanders: Vec<Pod>,
    /// Those that the runtime works with.
    pub pods: Vec<Pod>,
    /// The containers that it has attached.
    pub attached: BTreeSet<String>,
    /// Those of which it does not know it, since the agent died.
    pub unsure: BTreeSet<String>,
    bare: Bare,
    sandboxes: u32,
    ping: Option<Child>,
    /// There as long as the node.
    _cluster: Option<Cluster>,
}

/// Enough that no address has to be used again: they rest for half a minute.
const RANGES: [&str; 2] = ["10.244.0.0/19", POD_V6];

/// More than there are pods.
const SANDBOXES: u32 = 50_000;

// === impl World ===

impl<'a> World<'a> {
    /// Starts an agent, and lets one bystander ping another, if there are any.
    ///
    /// # Errors
    /// If they cannot be made.
    pub fn new(node: &'a mut Node, scenario: &Scenario) -> anyhow::Result<Self> {
        let cluster = scenario.has_cluster.then(|| Cluster::start(Options::default())).transpose()?;
        let follow: &[&str] = match &cluster {
            Some(cluster) => {
                cluster.api.create(Resource::Nodes, objects::node(NODE, &RANGES))?;
                &["--kubeconfig", KUBECONFIG, "--node-name", NODE]
            }
            None => &["--standalone"],
        };
        let ranges: Vec<_> = RANGES.iter().flat_map(|range| ["--pod-cidr", range]).collect();
        // What a start leaves is to be seen, and not what is mended right after it.
        let unhealed = &["--self-heal", "off"];
        node.start_agent_with(&[follow, &ranges, unhealed, scenario.flags].concat())?;
        // A pod without annotations, of which no API server has to be waited for.
        let call = json!({ "io.kubernetes.cri.pod-annotations": {} });
        let (runtime, bare) = (node.runtime()?.with("runtimeConfig", call), Bare::look(node)?);
        let mut world = Self {
            node,
            runtime,
            bystanders: Vec::new(),
            pods: Vec::new(),
            attached: BTreeSet::new(),
            unsure: BTreeSet::new(),
            bare,
            sandboxes: 0,
            ping: None,
            _cluster: cluster,
        };
        for name in ["bystander", "peer"].iter().filter(|_| scenario.has_bystanders) {
            let pod = world.attach(name)?;
            world.bystanders.push(pod);
        }
        world.begin_ping()?;
        Ok(world)
    }

    /// A pod that is attached.
    ///
    /// # Errors
    /// If it is not to be.
    pub fn attach(&mut self, name: &str) -> anyhow::Result<Pod> {
        let mut pod = self.node.pod(name)?;
        self.add(&mut pod)?;
        Ok(pod)
    }

    /// An ADD that must succeed, and after which packets flow.
    ///
    /// # Errors
    /// If they do not.
    pub fn add(&mut self, pod: &mut Pod) -> anyhow::Result<()> {
        let result = self.runtime.add(pod).with_context(|| format!("ADD of {}", pod.name))?;
        pod.attached(&result)?;
        self.attached.insert(pod.container_id.clone());
        self.runtime.check(pod).with_context(|| format!("CHECK of {}", pod.name))?;
        pod.ping(NODE_V4).map(drop)
    }

    /// A DEL that must succeed.
    ///
    /// # Errors
    /// If it does not.
    pub fn del(&mut self, pod: &Pod) -> anyhow::Result<()> {
        self.runtime.del(pod).with_context(|| format!("DEL of {}", pod.name))?;
        self.attached.remove(&pod.container_id);
        self.unsure.remove(&pod.container_id);
        Ok(())
    }

    /// Sees of which containers that the runtime is unsure of the agent knows.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn find_out(&mut self) -> anyhow::Result<()> {
        self.attached = &self.attached - &self.unsure;
        for it in self.node.attachments()? {
            let container = it.get("container_id").and_then(Value::as_str).unwrap_or_default();
            if self.unsure.contains(container) {
                self.attached.insert(container.to_owned());
            }
        }
        Ok(())
    }

    /// The sandbox that follows a pod's, which a runtime has deleted and taken down.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn next_sandbox(&mut self, pod: Pod) -> anyhow::Result<Pod> {
        self.sandboxes += 1;
        let next = pod.new_sandbox(SANDBOXES + self.sandboxes)?;
        pod.remove()?;
        Ok(next)
    }

    /// What the runtime is to name in a GC: the bystanders.
    pub fn valid(&self) -> Value {
        let name = |it: &Pod| json!({ "containerID": it.container_id, "ifname": "eth0" });
        self.bystanders.iter().map(name).collect()
    }

    /// The bystanders reach each other and the node.
    ///
    /// # Errors
    /// If they do not.
    pub fn packets_flow(&self) -> anyhow::Result<()> {
        let [one, other] = self.bystanders.as_slice() else { return Ok(()) };
        for to in &other.addresses {
            one.ping(&to.to_string())?;
        }
        other.ping(NODE_V4).map(drop)
    }

    /// All there is, is what should be.
    ///
    /// # Errors
    /// What is not.
    pub fn check(&self) -> anyhow::Result<()> {
        self.bare.check(self.node, &self.attached)
    }

    /// Takes the pods' namespaces down; they have been deleted.
    ///
    /// # Errors
    /// If one cannot be.
    pub fn clear(&mut self) -> anyhow::Result<()> {
        self.pods.drain(..).try_for_each(Pod::remove)
    }

    /// DELs the bystanders, after which nothing is left. None of their packets was lost.
    ///
    /// # Errors
    /// If something is left, or was lost.
    pub fn end(mut self) -> anyhow::Result<()> {
        let lost = self.end_ping();
        for pod in std::mem::take(&mut self.bystanders) {
            self.del(&pod)?;
        }
        self.check()?;
        lost
    }

    fn begin_ping(&mut self) -> anyhow::Result<()> {
        let [one, other] = self.bystanders.as_slice() else { return Ok(()) };
        let to = other.addresses.first().context("no address")?.to_string();
        let mut command = one.command("ping")?;
        command.args(["-n", "-q", "-i", "0.01", &to]).stdout(Stdio::piped());
        self.ping = Some(sys::die_with_parent(&mut command).spawn()?);
        Ok(())
    }

    fn end_ping(&mut self) -> anyhow::Result<()> {
        let Some(ping) = self.ping.take() else { return Ok(()) };
        kill(Pid::from_raw(ping.id().cast_signed()), Signal::SIGINT)?;
        let output = ping.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(text.contains(" 0% packet loss"), "packets of a bystander were lost: {text}");
        Ok(())
    }
}
