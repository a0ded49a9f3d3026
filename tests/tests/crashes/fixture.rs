//! The fixture: a node whose agent crashes repeatedly while bystanders' packets flow.

use std::{
    collections::BTreeSet,
    process::{Child, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{ApiServer, Options, Resource, objects},
    cluster::{Cluster, KUBECONFIG, NODE},
    node::{NODE_V4, Node, POD_V6},
    others,
    pod::Pod,
    runtime::Runtime,
    sys,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{invariants::Baseline, scenario::Scenario};

/// The node, its pods and the runtime's view of them.
pub struct Fixture<'a> {
    pub node: &'a mut Node,
    pub runtime: Runtime,
    /// Attached throughout; must not lose a packet.
    bystanders: Vec<Pod>,
    /// Pods of the scenario.
    pub pods: Vec<Pod>,
    /// Containers that the runtime knows to be attached.
    pub attached: BTreeSet<String>,
    /// Containers with an unknown state, because the agent died during a call.
    pub unknown: BTreeSet<String>,
    bare: Baseline,
    sandboxes: u32,
    ping: Option<Child>,
    cluster: Option<Cluster>,
    others: Option<Others>,
}

/// What the node has for other nodes, whichever they are now.
struct Others {
    are_joined: bool,
    alone: BTreeSet<String>,
    joined: Option<BTreeSet<String>>,
}

/// Large enough that no address has to be reused during the cooldown of 30 s.
const RANGES: [&str; 2] = ["10.244.0.0/19", POD_V6];

/// Other nodes: names, ranges, addresses. The second one is behind the router.
const OTHERS: [(&str, [&str; 2], &str); 2] = [
    ("node-2", ["10.9.2.0/24", "fd00:9:2::/64"], "192.0.2.2"),
    ("node-3", ["10.9.3.0/24", "fd00:9:3::/64"], "198.51.100.3"),
];
const TIMEOUT: Duration = Duration::from_secs(20);

/// Exceeds the number of pods.
const SANDBOXES: u32 = 50_000;

// === impl Fixture ===

impl<'a> Fixture<'a> {
    /// Starts an agent, and a continuous ping between two bystanders if the scenario has any.
    ///
    /// # Errors
    /// If the set-up fails.
    pub fn new(node: &'a mut Node, scenario: &Scenario) -> anyhow::Result<Self> {
        let cluster = scenario.has_cluster.then(|| Cluster::start(Options::default())).transpose()?;
        let follow: &[&str] = match &cluster {
            Some(cluster) => {
                let own = objects::with_addresses(objects::node(NODE, &RANGES), &[NODE_V4.parse()?]);
                cluster.api.create(Resource::Nodes, own)?;
                &["--kubeconfig", KUBECONFIG, "--node-name", NODE]
            }
            None => &["--standalone"],
        };
        let mut ranges: Vec<_> = RANGES.iter().flat_map(|range| ["--pod-cidr", range]).collect();
        match (&cluster, scenario.has_nodes) {
            (Some(_), true) => ranges.clear(),
            (Some(_), false) => ranges.push("--single-node"),
            (None, _) => {}
        }
        // With self-healing off, the checks see the state that the start itself leaves.
        let unhealed = &["--self-heal", "off"];
        node.start_agent_with(&[follow, &ranges, unhealed, scenario.flags].concat())?;
        // Empty annotations from the runtime: ADD does not wait for the API server.
        let call = json!({ "io.kubernetes.cri.pod-annotations": {} });
        let (runtime, bare) = (node.runtime()?.with("runtimeConfig", call), Baseline::take(node)?);
        let mut fixture = Self {
            node,
            runtime,
            bystanders: Vec::new(),
            pods: Vec::new(),
            attached: BTreeSet::new(),
            unknown: BTreeSet::new(),
            bare,
            sandboxes: 0,
            ping: None,
            cluster,
            others: None,
        };
        if scenario.has_nodes {
            sys::wait_until("the agent is ready", TIMEOUT, || Ok(fixture.node.http("/readyz")?.0 == 200))?;
            let alone = others::state()?;
            fixture.others = Some(Others { are_joined: false, alone, joined: None });
        }
        for name in ["bystander", "peer"].iter().filter(|_| scenario.has_bystanders) {
            let pod = fixture.attach(name)?;
            fixture.bystanders.push(pod);
        }
        fixture.begin_ping()?;
        Ok(fixture)
    }

    /// The API server of the cluster.
    ///
    /// # Errors
    /// If the scenario has none.
    pub fn api(&self) -> anyhow::Result<&ApiServer> {
        Ok(&self.cluster.as_ref().context("no cluster")?.api)
    }

    /// The pods that are attached throughout.
    pub fn bystanders(&self) -> &[Pod] {
        &self.bystanders
    }

    /// Creates a pod and attaches it.
    ///
    /// # Errors
    /// If ADD fails.
    pub fn attach(&mut self, name: &str) -> anyhow::Result<Pod> {
        let mut pod = self.node.pod(name)?;
        self.add(&mut pod)?;
        Ok(pod)
    }

    /// An ADD that must succeed and provide connectivity.
    ///
    /// # Errors
    /// If ADD fails or packets do not flow.
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
    /// If DEL fails.
    pub fn del(&mut self, pod: &Pod) -> anyhow::Result<()> {
        self.runtime.del(pod).with_context(|| format!("DEL of {}", pod.name))?;
        self.attached.remove(&pod.container_id);
        self.unknown.remove(&pod.container_id);
        Ok(())
    }

    /// Resolves unknown container states by querying the agent.
    ///
    /// # Errors
    /// If the agent does not answer.
    pub fn resolve_unknown(&mut self) -> anyhow::Result<()> {
        self.attached = &self.attached - &self.unknown;
        for it in self.node.attachments()? {
            let container = it.get("container_id").and_then(Value::as_str).unwrap_or_default();
            if self.unknown.contains(container) {
                self.attached.insert(container.to_owned());
            }
        }
        Ok(())
    }

    /// Replaces a deleted pod's sandbox by a new one.
    ///
    /// # Errors
    /// If the namespaces cannot be replaced.
    pub fn next_sandbox(&mut self, pod: Pod) -> anyhow::Result<Pod> {
        self.sandboxes += 1;
        let next = pod.new_sandbox(SANDBOXES + self.sandboxes)?;
        pod.remove()?;
        Ok(next)
    }

    /// The attachments that a GC names as valid: the bystanders'.
    pub fn valid(&self) -> Value {
        let name = |it: &Pod| json!({ "containerID": it.container_id, "ifname": "eth0" });
        self.bystanders.iter().map(name).collect()
    }

    /// Pings between the bystanders and from the node.
    ///
    /// # Errors
    /// If a ping fails.
    pub fn ping_bystanders(&self) -> anyhow::Result<()> {
        let [one, other] = self.bystanders.as_slice() else { return Ok(()) };
        for to in &other.addresses {
            one.ping(&to.to_string())?;
        }
        other.ping(NODE_V4).map(drop)
    }

    /// Checks registry, kernel and maps against the attached containers, and waits for what other nodes need.
    ///
    /// # Errors
    /// The differences.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.wait_for_others()?;
        self.bare.check(self.node, &self.attached)
    }

    /// Creates or deletes two other nodes: a neighbour, and one behind a router.
    ///
    /// # Errors
    /// If the scenario has no other nodes.
    pub fn set_joined(&mut self, are_joined: bool) -> anyhow::Result<()> {
        let others = self.others.as_mut().context("no other nodes")?;
        let api = &self.cluster.as_ref().context("no cluster")?.api;
        if std::mem::replace(&mut others.are_joined, are_joined) == are_joined {
            return Ok(());
        }
        for (name, ranges, address) in OTHERS {
            if are_joined {
                let mut object = objects::with_addresses(objects::node(name, &ranges), &[address.parse()?]);
                let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
                // The map has numbers that come from the UIDs.
                metadata.context("no metadata")?.insert("uid".to_owned(), json!(name));
                api.create(Resource::Nodes, object)?;
            } else {
                api.delete(Resource::Nodes, "", name)?;
            }
        }
        Ok(())
    }

    /// Waits until kernel and maps have what the other nodes need. The first time, what they need is what
    /// they get, and the agent finds no difference.
    ///
    /// # Errors
    /// The differences.
    pub fn wait_for_others(&mut self) -> anyhow::Result<()> {
        let Some(others) = &mut self.others else { return Ok(()) };
        if others.are_joined && others.joined.is_none() {
            sys::wait_until("there is a route to each range", TIMEOUT, || {
                let state = others::state()?;
                let has = |range: &&str| state.iter().any(|it| it.starts_with(&format!("{range} ")));
                Ok(OTHERS.iter().flat_map(|(_, ranges, _)| ranges).all(has))
            })?;
            let verify = || self.node.ctl(&["verify"]).map(|_| true);
            sys::wait_until("the agent finds no difference", TIMEOUT, verify)?;
            others.joined = Some(others::state()?);
        }
        let joined = others.joined.as_ref().filter(|_| others.are_joined);
        let expected = joined.unwrap_or(&others.alone);
        sys::wait_until("the node has what other nodes need", TIMEOUT, || {
            let found = others::state()?;
            let missing: Vec<_> = expected.difference(&found).collect();
            let more: Vec<_> = found.difference(expected).collect();
            ensure!(missing.is_empty() && more.is_empty(), "missing: {missing:#?}\nbesides: {more:#?}");
            Ok(true)
        })
    }

    /// Removes the namespaces of the deleted pods.
    ///
    /// # Errors
    /// If a namespace cannot be removed.
    pub fn clear(&mut self) -> anyhow::Result<()> {
        self.pods.drain(..).try_for_each(Pod::remove)
    }

    /// Deletes the bystanders, checks for leaks, and requires that none of their packets was lost.
    ///
    /// # Errors
    /// If something leaked or a packet was lost.
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
