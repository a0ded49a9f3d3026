//! The fixture: a node, a cluster and a runtime that operations are applied to, side by side with the model.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use ferrule_tests::{
    apiserver::{Resource, objects},
    cluster::Cluster,
    node::{NODE_V4, Node, map_delete},
    pod::{NAMESPACE, Pod, VIF},
    runtime::Runtime,
    sys,
};
use serde_json::json;

use crate::{
    batch::{Batch, BoundCall, Ended, call},
    invariants,
    linearize::check_batch,
    model::{ApiPod, Attached, Id, Model, Sandbox, VIF_REFUSED, vif_text},
    nodes::{NODES, NodeEvent},
    observe::{Link, Observed},
    operations::{Damage, Event, Op},
    policies::NO_APP,
};

/// A node, a cluster, and the model of their state.
pub struct Fixture<'a> {
    pub node: &'a mut Node,
    pub cluster: &'a Cluster,
    pub runtime: Runtime,
    pub model: Model,
    /// By sandbox number.
    pub pods: Vec<Pod>,
    pub foreign_links: BTreeMap<u32, Link>,
    synced: u32,
    /// Log of what happened, for failure messages.
    pub history: Vec<String>,
    /// Number of occurrences by kind, printed at the end.
    pub tally: BTreeMap<String, usize>,
}

/// Number of newest sandboxes that operations pick from, besides attached ones.
const RECENT: usize = 8;
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);

// === impl Fixture ===

impl<'a> Fixture<'a> {
    /// A fixture on a node with an agent and without attachments.
    ///
    /// # Errors
    /// If the unrelated interfaces cannot be created.
    pub fn new(node: &'a mut Node, cluster: &'a Cluster, pool: (Ipv4Addr, Ipv4Addr)) -> anyhow::Result<Self> {
        // Interfaces that resemble pod interfaces but belong to another program.
        for (name, alias) in [("stranger", "other:owner"), ("frstranger", "ferrules:are:not:ours")] {
            sys::run(&format!("ip link add {name} type veth peer name {name}1"))?;
            sys::run(&format!("ip link set {name} alias {alias} up"))?;
        }
        let runtime = node.runtime()?;
        let foreign_links = Observed::collect(node, true)?.links;
        let model = Model::new(pool);
        Ok(Self {
            node,
            cluster,
            runtime,
            model,
            pods: Vec::new(),
            foreign_links,
            synced: 0,
            history: Vec::new(),
            tally: BTreeMap::new(),
        })
    }

    /// Applies an operation and compares the node's state with the model.
    ///
    /// # Errors
    /// The differences.
    pub fn apply(&mut self, op: &Op) -> anyhow::Result<()> {
        match op {
            Op::MakePod { slot, vif } => self.make_pod(*slot, *vif, false)?,
            Op::Recreate { slot, vif } => self.make_pod(*slot, *vif, true)?,
            Op::Event(event) => {
                self.apply_event(*event)?;
                self.sync()?;
            }
            Op::Node(event) => {
                self.change_nodes(*event)?;
                if self.model.agent_runs {
                    self.expect_nodes()?;
                }
            }
            Op::Policy(event) => self.change_policies(*event)?,
            Op::Calls { calls, events, end } => {
                self.calls(calls, events, *end)?;
                return if self.model.agent_runs { self.expect_policies() } else { Ok(()) };
            }
            Op::EndNetns { pick } => self.end_netns(*pick, false)?,
            Op::ReplaceNetns { pick } => self.end_netns(*pick, true)?,
            Op::Damage { pick, how } => self.damage(*pick, *how)?,
            Op::Ping { from, to } => self.ping(*from, *to)?,
            Op::AgentDown { kill, meanwhile, at_start } if self.model.agent_runs => {
                self.agent_down(*kill, meanwhile, at_start)?;
                self.expect_policies()?;
                return self.expect_nodes();
            }
            Op::AgentDown { .. } => {}
        }
        if self.model.agent_runs {
            self.expect_policies()?;
        }
        self.verify(self.batch())
    }

    /// Waits until the agent has processed all API events. Events arrive in order, and a pod with an
    /// unreadable VIF is refused as soon as the agent sees the pod.
    ///
    /// # Errors
    /// If the agent does not catch up.
    pub fn sync(&mut self) -> anyhow::Result<()> {
        if !self.model.agent_runs {
            return Ok(());
        }
        self.synced += 1;
        let name = format!("sync-{}", self.synced);
        let pod = Pod {
            uid: format!("ffffffff-0000-4000-8000-{:012}", self.synced),
            namespace: NAMESPACE.to_owned(),
            container_id: name.clone(),
            netns: PathBuf::from("/run/netns/outside"),
            addresses: Vec::new(),
            name,
        };
        self.cluster.schedule(&pod, &[(VIF, "{")])?;
        sys::wait_until("the agent has processed all API events", SYNC_TIMEOUT, || {
            Ok(self.runtime.call("ADD", &pod)?.into_error()?.code == VIF_REFUSED)
        })?;
        self.cluster.delete(&pod)
    }

    fn make_pod(&mut self, slot: u8, vif: u8, again: bool) -> anyhow::Result<()> {
        let name = format!("p{slot}");
        if again && self.model.api.pods.contains_key(&name) {
            self.apply_event(Event::Delete { slot })?;
        }
        let mut pod = self.node.pod(&name)?;
        let existing = self.model.api.pods.get(&name).map(|it| it.uid.clone());
        match &existing {
            Some(uid) => pod.uid.clone_from(uid),
            None => {
                let text = vif_text(vif);
                let annotations: Vec<_> = text.iter().map(|text| (VIF, text.as_str())).collect();
                self.cluster.schedule(&pod, &annotations)?;
                self.model.api.pods.insert(name.clone(), ApiPod { uid: pod.uid.clone(), vif, app: NO_APP });
            }
        }
        self.log(format!("pod {name} ({}) with VIF {vif} gets sandbox #{}", pod.uid, self.pods.len()));
        self.model.sandboxes.push(Sandbox {
            name,
            uid: pod.uid.clone(),
            container: pod.container_id.clone(),
            alive: true,
            generation: 0,
        });
        self.pods.push(pod);
        self.remove_unused_namespaces()?;
        if existing.is_none() { self.sync() } else { Ok(()) }
    }

    /// Removes the namespaces of sandboxes that operations no longer pick.
    fn remove_unused_namespaces(&mut self) -> anyhow::Result<()> {
        let used: BTreeSet<Id> = self.pickable().into_iter().collect();
        for (id, sandbox) in self.model.sandboxes.iter_mut().enumerate() {
            if sandbox.alive && !used.contains(&id) {
                sandbox.alive = false;
                self.pods.get(id).context("no such pod")?.clone().remove()?;
            }
        }
        Ok(())
    }

    pub fn apply_event(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Delete { slot } => {
                let name = format!("p{slot}");
                if self.model.api.pods.contains_key(&name) {
                    self.log(format!("pod {name} is deleted from the API"));
                    self.model.api.delete(&name);
                    self.cluster.api.delete(Resource::Pods, NAMESPACE, &name)?;
                }
            }
            Event::Annotate { slot, vif } => {
                let name = format!("p{slot}");
                if let Some(pod) = self.model.api.pods.get_mut(&name) {
                    pod.vif = vif;
                    self.log(format!("pod {name} is annotated with VIF {vif}"));
                    let patch = match vif_text(vif) {
                        Some(text) => objects::annotation(VIF, &text),
                        None => json!({ "metadata": { "annotations": { VIF: null } } }),
                    };
                    self.cluster.api.patch(Resource::Pods, NAMESPACE, &name, patch)?;
                }
            }
        }
        Ok(())
    }

    fn end_netns(&mut self, pick: u16, replace: bool) -> anyhow::Result<()> {
        let Some(id) = self.pick(pick) else { return Ok(()) };
        let pod = self.pods.get(id).context("no such pod")?;
        let sandbox = self.model.sandboxes.get_mut(id).context("no such sandbox")?;
        if sandbox.alive {
            pod.clone().remove()?;
            sandbox.alive = false;
        }
        if replace {
            sys::make_netns(&pod.netns)?;
            sandbox.alive = true;
            sandbox.generation += 1;
        }
        self.log(format!("the namespace of #{id} is {}", if replace { "replaced" } else { "removed" }));
        Ok(())
    }

    fn damage(&mut self, pick: u16, how: Damage) -> anyhow::Result<()> {
        let Some(id) = self.pick_of(pick, |model, id, it| model.is_whole(id, it)) else { return Ok(()) };
        let pod = self.pods.get(id).context("no such pod")?;
        let attached = self.model.attached.get_mut(&id).context("not attached")?;
        let host = &attached.host_ifname;
        let v4 = attached.addresses.iter().find(|it| it.is_ipv4()).context("no IPv4 address")?;
        let (ifindex, _) = attached.host_link.context("the host interface is unknown")?;
        let line = match how {
            Damage::HostRoute => format!("ip route del {v4} dev {host}"),
            Damage::FromPod => format!("tc filter del dev {host} ingress"),
            Damage::ToPod => format!("tc filter del dev {host} egress"),
            Damage::VifsEntry => map_delete("VIFS", &ifindex.to_ne_bytes()),
            Damage::EndpointEntry => {
                let IpAddr::V4(v4) = v4 else { bail!("{v4} is not IPv4") };
                map_delete("ENDPOINTS", &v4.to_ipv6_mapped().octets())
            }
            Damage::Link => format!("ip link del {host}"),
            Damage::PodRoute => "ip route del default".to_owned(),
            Damage::PodAddress => "ip addr flush dev eth0 scope global".to_owned(),
        };
        if how.is_on_host() {
            sys::run(&line)?
        } else {
            pod.run(&line)?
        };
        attached.damage.insert(how);
        self.count(format!("damaged {how:?}"));
        self.log(format!("#{id} is damaged: {line}"));
        Ok(())
    }

    fn ping(&mut self, from: u16, to: u16) -> anyhow::Result<()> {
        let whole = |model: &Model, id, it: &_| model.is_whole(id, it);
        let (Some(from), Some(to)) = (self.pick_of(from, whole), self.pick_of(to, whole)) else {
            return Ok(());
        };
        self.count("ping".to_owned());
        self.log(format!("#{from} pings the node and #{to}"));
        let pod = self.pods.get(from).context("no such pod")?;
        let addresses = |id: Id| self.model.attached.get(&id).map(|it| &it.addresses);
        let (own, others) = addresses(from).zip(addresses(to)).context("not attached")?;
        let others =
            others.iter().filter(|other| from != to && own.iter().any(|it| it.is_ipv4() == other.is_ipv4()));
        for to in others.copied().chain([NODE_V4.parse()?]) {
            let Some(expected) = self.shall_reach(from, to) else { continue };
            let (to, pinged) = (to.to_string(), pod.ping(&to.to_string()));
            if expected {
                pinged.with_context(|| self.diagnose_ping(pod, &to))?;
            } else {
                ensure!(pinged.is_err(), "#{from} reaches {to}, which policies deny");
            }
        }
        Ok(())
    }

    /// Diagnostics for a failed ping.
    fn diagnose_ping(&self, pod: &Pod, to: &str) -> String {
        let in_pod = ["ip -s addr", "ip route", "ip -6 route", "ip neigh"].map(|line| pod.run(line));
        let checked = self.runtime.check(pod);
        let again = pod.ping(to);
        let attachments = self.node.ctl(&["attachments"]);
        format!("in the pod: {in_pod:#?}\nCHECK: {checked:?}\nsecond ping: {again:?}\n{attachments:?}")
    }

    /// Sandboxes that operations pick from.
    pub fn pickable(&self) -> Vec<Id> {
        let recent = self.pods.len().saturating_sub(RECENT)..self.pods.len();
        let all: BTreeSet<Id> = self.model.attached.keys().copied().chain(recent).collect();
        all.into_iter().collect()
    }

    pub fn pick(&self, pick: u16) -> Option<Id> {
        let all = self.pickable();
        all.get(usize::from(pick).checked_rem(all.len())?).copied()
    }

    fn pick_of(&self, pick: u16, is_meant: impl Fn(&Model, Id, &Attached) -> bool) -> Option<Id> {
        let all = self.model.attached.iter().filter(|(id, it)| is_meant(&self.model, **id, it));
        let all: Vec<Id> = all.map(|(id, _)| *id).collect();
        all.get(usize::from(pick).checked_rem(all.len())?).copied()
    }

    pub fn batch(&self) -> Batch {
        let (apis, now) = (vec![self.model.api.clone()], Instant::now());
        Batch { answers: Vec::new(), apis, ended: Ended::No, starts: false, from: now, to: now }
    }

    /// Checks a batch against the model and compares the node's state with the model.
    pub fn verify(&mut self, mut batch: Batch) -> anyhow::Result<()> {
        batch.to = Instant::now();
        let agent_runs = self.model.agent_runs;
        // Garbage collection during the snapshot appears in one place and not in the other.
        let may_be_collected = self.model.attached.iter().any(|(id, it)| self.model.may_be_orphan(*id, it));
        let mut tries = if may_be_collected { 3 } else { 1 };
        loop {
            let seen = Observed::collect(self.node, agent_runs)?;
            let mut model = self.model.clone();
            let checked = check_batch(&mut model, &batch, &seen);
            let mut found: Vec<String> = checked.err().into_iter().collect();
            if found.is_empty() {
                found = invariants::differences(&model, &seen, &self.foreign_links);
            }
            tries -= 1;
            if found.is_empty() {
                self.model = model;
                return Ok(());
            }
            ensure!(
                tries > 0,
                "{}\n\nExpected: {:#?}\n\nFound: {seen:#?}",
                found.join("\n"),
                self.model.attached
            );
        }
    }

    pub fn log(&mut self, what: String) {
        self.history.push(what);
    }

    pub fn count(&mut self, what: String) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// Deletes all attachments, pods and namespaces.
    ///
    /// # Errors
    /// If a step fails or leaves a difference.
    pub fn clear(&mut self) -> anyhow::Result<()> {
        self.log("everything is deleted from node and API".to_owned());
        for (sandbox, pod) in self.model.sandboxes.iter_mut().zip(&self.pods) {
            if sandbox.alive {
                sandbox.alive = false;
                pod.clone().remove()?;
            }
        }
        let all: Vec<Id> = self.model.attached.keys().copied().collect();
        let mut batch = self.batch();
        for id in all {
            let pod = self.pods.get(id).context("no such pod")?;
            batch.answers.push(call(BoundCall::Del(id), &self.runtime, "DEL", pod)?);
        }
        for slot in 0..crate::operations::SLOTS {
            self.apply_event(Event::Delete { slot })?;
        }
        self.delete_policies()?;
        for node in 0..NODES {
            self.change_nodes(NodeEvent::Leave { node })?;
        }
        self.verify(batch)?;
        self.sync()?;
        self.expect_nodes()?;
        self.model.sandboxes.clear();
        self.pods.clear();
        self.history.clear();
        // The agent appends to this file.
        fs::write("/run/ferrule-agent.log", "").context("cannot empty the agent's log")
    }
}
