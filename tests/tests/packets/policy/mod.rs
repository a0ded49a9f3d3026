//! Policies: verdicts of compiled rules, and the flows that they allow.

mod budget;
mod cost;
mod engine;
mod flows;
mod fragments;
mod icmp;
mod pairs;
mod random;
mod remote;
mod rules;
mod servers;
mod services;
mod tiers;
mod upstream;

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use agent_common::{
    DropReason,
    event::{DropRecord, Event},
    policy::Subject,
};
use anyhow::{Context as _, ensure};
use ferrule_policy::{Change, Compiler, Endpoint, EndpointId, Op, Table};
use ferrule_tests::{
    packet::{IPV4, IPV6, Ipv4, Ipv4Address, Ipv6, Ipv6Address, tcp},
    program::{Program, Programs, SkBuff, TC_ACT_SHOT},
};
use serde_json::{Value, json};

use self::engine::world;
use crate::{
    node_tunnel::add_indexed_nodes,
    table::{A, B, NODE_V4, NODE_V6, ONLY_V4, Pod, v6, with_pods},
};

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// An interface by which packets of other hosts come.
pub const UPLINK: u32 = 2;
/// A pod of another node with the label `app=r`, and one whose labels are not known.
pub const REMOTE_V4: Ipv4Address = [10, 244, 2, 5];
pub const REMOTE_V6: Ipv6Address = v6([0xfd00, 0x10, 0x244, 2, 0, 0, 0, 5]);
pub const FRESH_V4: Ipv4Address = [10, 244, 2, 6];

/// A node whose pods `A`, `B` and `ONLY_V4` have the labels `app=a`, `app=b` and `app=c`, and policies. `B`
/// gives the name `web` to TCP port 8080.
pub struct Policed<'a> {
    programs: &'a mut Programs,
    compiler: Compiler,
}

/// Runs a closure on a node with policies.
pub fn with_policies<T: Send>(
    policies: impl IntoIterator<Item = Change> + Send,
    run: impl FnOnce(&mut Policed<'_>) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    with_pods(|programs| {
        add_indexed_nodes(programs)?;
        let mut policed = Policed { programs, compiler: Compiler::default() };
        let namespace = json!({"metadata": {"name": "default", "uid": "default"}});
        let node = json!({"metadata": {"name": "n1", "uid": "n1"}, "status": {"addresses": [
            {"type": "InternalIP", "address": std::net::Ipv4Addr::from(NODE_V4)},
            {"type": "InternalIP", "address": std::net::Ipv6Addr::from(NODE_V6)}]}});
        policed.apply([
            Change::Namespace(serde_json::from_value(namespace)?),
            Change::Node(serde_json::from_value(node)?),
            pod("a", A.v4, Some(A.v6))?,
            pod("b", B.v4, Some(B.v6))?,
            pod("c", ONLY_V4.v4, None)?,
            pod("r", REMOTE_V4, Some(REMOTE_V6))?,
            endpoint("a", A),
            endpoint("b", B),
            endpoint("c", ONLY_V4),
        ])?;
        policed.apply(policies)?;
        run(&mut policed)
    })
}

fn pod(name: &str, v4: Ipv4Address, v6: Option<Ipv6Address>) -> anyhow::Result<Change> {
    let v4 = json!({"ip": std::net::Ipv4Addr::from(v4)});
    let v6 = v6.map(|it| json!({"ip": std::net::Ipv6Addr::from(it)}));
    let addresses: Vec<_> = [v4].into_iter().chain(v6).collect();
    let port = if name == "b" { 8080 } else { 80 };
    Ok(Change::Pod(Arc::new(serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": name, "uid": name, "labels": {"app": name}},
        "spec": {"containers": [{"ports": [{"name": "web", "protocol": "TCP", "containerPort": port}]}]},
        "status": {"phase": "Running", "podIPs": addresses},
    }))?)))
}

fn endpoint(name: &str, pod: Pod) -> Change {
    let v6 = (pod.v6 != [0; 16]).then(|| pod.v6.into());
    let addresses = [pod.v4.into()].into_iter().chain(v6).collect();
    Change::Endpoint(Endpoint { id: EndpointId(pod.ifindex), uid: name.to_owned(), addresses })
}

/// A NetworkPolicy of the pod with a label `app`.
pub fn policy(app: &str, spec: Value) -> Change {
    let spec = with(spec, json!({"podSelector": {"matchLabels": {"app": app}}}));
    world::network_policy("default", &format!("of-{app}"), &spec)
}

/// A ClusterNetworkPolicy of the pod with a label `app`.
pub fn cluster_policy(app: &str, tier: &str, spec: Value) -> Change {
    let subject = json!({"pods": {"podSelector": {"matchLabels": {"app": app}}}});
    let spec = with(spec, json!({"tier": tier, "priority": 10, "subject": subject}));
    let name = format!("{tier}-{app}").to_lowercase();
    world::cluster_policy(&name, &name, &spec)
}

/// An object with more fields.
fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut object, more) {
        fields.extend(more);
    }
    object
}

/// Peers: the pod with a label `app`.
pub fn app(name: &str) -> Value {
    json!({"podSelector": {"matchLabels": {"app": name}}})
}

/// A TCP segment with these flags.
pub fn segment(from: u16, to: u16, flags: u8) -> Vec<u8> {
    let mut segment = tcp(from, to, b"");
    segment.iter_mut().skip(13).take(1).for_each(|byte| *byte = flags);
    segment
}

pub fn v4(from: Ipv4Address, to: Ipv4Address, protocol: u8, payload: &[u8]) -> Vec<u8> {
    Ipv4::new(from, to, protocol).with(payload)
}

pub fn v6_of(from: Ipv6Address, to: Ipv6Address, protocol: u8, payload: &[u8]) -> Vec<u8> {
    Ipv6::new(from, to, protocol).with(payload)
}

fn ethertype(packet: &[u8]) -> u16 {
    if packet.first().is_some_and(|byte| byte >> 4 == 6) { IPV6 } else { IPV4 }
}

// === impl Policed ===

impl Policed<'_> {
    /// Compiles changes, and writes the rows that they change.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> anyhow::Result<()> {
        for op in self.compiler.apply(changes)?.ops {
            match op {
                Op::Endpoint(EndpointId(ifindex), row) => {
                    self.programs.set_subject(ifindex, row.map(Subject::from))?;
                }
                op => self.programs.rules.apply(Table::A, &op)?,
            }
        }
        Ok(())
    }

    /// Changes what judges a pod.
    pub fn change(&mut self, pod: Pod, change: impl FnOnce(&mut Subject)) -> anyhow::Result<()> {
        let mut subject = self.judging(pod)?;
        change(&mut subject);
        self.set_subject(pod.ifindex, Some(subject))
    }

    /// What judges a pod.
    pub fn judging(&self, pod: Pod) -> anyhow::Result<Subject> {
        self.subject(pod.ifindex)?.context("nothing judges the pod")
    }

    /// Whether `from_pod` passes an IP packet of a pod.
    pub fn sends(&mut self, from: Pod, packet: &[u8]) -> anyhow::Result<bool> {
        let frame = from.sends(ethertype(packet), packet);
        let ran = self.run(Program::FromPod, SkBuff::on(from.ifindex), &frame)?;
        Ok(ran.verdict != TC_ACT_SHOT)
    }

    /// Whether `to_pod` passes an IP packet that came by an interface; 0: the host sends it.
    pub fn receives(&mut self, to: Pod, via: u32, packet: &[u8]) -> anyhow::Result<bool> {
        let frame = to.receives(ethertype(packet), packet);
        let ran = self.run(Program::ToPod, SkBuff::forwarded(via, to.ifindex), &frame)?;
        Ok(ran.verdict != TC_ACT_SHOT)
    }

    /// Checks steps one after the other: what happens, and whether the packet passes.
    pub fn check(&mut self, steps: &[(&str, Step, bool)]) -> anyhow::Result<()> {
        for (about, step, expected) in steps {
            let passes = match step {
                Step::Sends(pod, packet) => self.sends(*pod, packet),
                Step::Receives(pod, via, packet) => self.receives(*pod, *via, packet),
            };
            let passes = passes.with_context(|| (*about).to_owned())?;
            let words = |passes| if passes { "passes" } else { "is denied" };
            ensure!(passes == *expected, "{about}: expected {}, {}", words(*expected), words(passes));
        }
        Ok(())
    }

    /// Drops for a reason at a pod: those of its packets, and those of packets to it.
    pub fn drops(&self, pod: Pod, reason: DropReason) -> anyhow::Result<(u64, u64)> {
        let counters = self.counters()?.get(&pod.ifindex).copied().unwrap_or_default();
        Ok((counters.egress.drops.get(reason), counters.ingress.drops.get(reason)))
    }

    /// The records of drops since the last call.
    pub fn records(&mut self) -> anyhow::Result<Vec<DropRecord>> {
        let records = self.events()?.into_iter().filter_map(|event| match event {
            Event::Drop(drop) => Some(drop),
            Event::Flow(_) => None,
        });
        Ok(records.collect())
    }
}

impl Deref for Policed<'_> {
    type Target = Programs;

    fn deref(&self) -> &Programs {
        self.programs
    }
}

impl DerefMut for Policed<'_> {
    fn deref_mut(&mut self) -> &mut Programs {
        self.programs
    }
}

/// A packet at a program.
pub enum Step {
    /// From a pod.
    Sends(Pod, Vec<u8>),
    /// From the host's stack to a pod, by an interface.
    Receives(Pod, u32, Vec<u8>),
}
