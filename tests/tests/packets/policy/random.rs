//! Random clusters and policies: the programs agree with `ferrule_policy::lookup`, which the compiler's own
//! tests compare with an oracle.
//!
//! `FERRULE_POLICIES=10000` sets the number of clusters, for hours instead of seconds.

use std::{collections::BTreeMap, env, net::IpAddr};

use agent_common::{
    DropReason, Endpoint, EndpointKey, GATEWAY_MAC, NodeEntry, NodeKey, VifEntry, VifKey,
    policy::{PackedSubject, Subject},
};
use anyhow::{Context as _, ensure};
use fastrand::Rng;
use ferrule_policy::{Compiler, Direction, EndpointId, Op, Origin, Packet, Reason, Table, Verdict, lookup};
use ferrule_tests::{
    packet::{ICMP, ICMPV6, IPV4, IPV6, Ipv4, Ipv6, frame},
    program::{Program, Programs, SkBuff, TC_ACT_SHOT, with_programs},
};

use super::{
    RST, UPLINK,
    engine::{
        random,
        world::{End, World, packet},
    },
    segment,
};

const CLUSTERS: u64 = 12;
const EDITS: usize = 4;
const PACKETS: usize = 400;
/// Added to the number of an endpoint: its host interface.
pub const FIRST: u32 = 200;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn clusters() -> anyhow::Result<u64> {
    match env::var("FERRULE_POLICIES") {
        Ok(number) => number.parse().with_context(|| format!("FERRULE_POLICIES is not a number: {number}")),
        Err(_) => Ok(CLUSTERS),
    }
}

/// Writes the changes of the compiler's rows.
pub fn apply(programs: &mut Programs, ops: impl IntoIterator<Item = Op>) -> anyhow::Result<()> {
    for op in ops {
        match op {
            Op::Endpoint(EndpointId(id), row) => {
                let key = VifKey { ifindex: FIRST + id };
                if programs.vifs.get(&key, 0).is_err() {
                    programs.vifs.insert(&key, &vif("", PackedSubject::default()), 0)?;
                }
                programs.set_subject(key.ifindex, row.map(Subject::from))?;
            }
            op => programs.rules.apply(Table::A, &op)?,
        }
    }
    Ok(())
}

/// A row without addresses.
fn vif(uid: &str, subject: PackedSubject) -> VifEntry {
    VifEntry {
        ipv4: [0; 4],
        flags: 0,
        ipv6: [0; 16],
        mac: MAC,
        mtu: 1500,
        subject,
        slot: 0,
        stack_flows: 0,
        stack_peers: [0; 32],
        reserved: 0,
        generation: 1,
        pod: VifEntry::text(uid),
        pod_uid: VifEntry::text(uid),
        ifname: VifEntry::text("eth0"),
    }
}

/// `VIFS` and `ENDPOINTS` of the pods of this node.
pub fn plug(programs: &mut Programs, world: &World) -> anyhow::Result<()> {
    let known: Vec<EndpointKey> = programs.endpoints.keys().collect::<Result<_, _>>()?;
    for key in known {
        programs.endpoints.remove(&key)?;
    }
    for (id, uid) in &world.endpoints {
        let ifindex = FIRST + id;
        let subject = programs.subject(ifindex).ok().flatten().map(|it| it.pack());
        let mut vif = vif(uid, subject.unwrap_or_default());
        let endpoint = Endpoint { ifindex, mac: MAC, reserved: [0; 2] };
        for address in &world.pods.get(uid).context("no pod")?.addresses {
            let key = match address {
                IpAddr::V4(it) => {
                    vif.ipv4 = it.octets();
                    vif.flags |= VifEntry::HAS_IPV4;
                    EndpointKey::ipv4(it.octets())
                }
                IpAddr::V6(it) => {
                    vif.ipv6 = it.octets();
                    vif.flags |= VifEntry::HAS_IPV6;
                    EndpointKey::ipv6(it.octets())
                }
            };
            programs.endpoints.insert(&key, &endpoint, 0)?;
        }
        programs.vifs.insert(&VifKey { ifindex }, &vif, 0)?;
        programs.start_counting(ifindex)?;
    }
    Ok(())
}

fn address(end: End<'_>) -> IpAddr {
    match end {
        End::Pod(_, address) | End::Outside(address) | End::OwnNode(address) => address,
    }
}

/// The host interface of a pod of this node.
fn interface(world: &World, end: End<'_>) -> Option<u32> {
    let End::Pod(uid, _) = end else { return None };
    world.endpoints.iter().find(|(_, it)| *it == uid).map(|(id, _)| FIRST + id)
}

/// An IP packet that begins no flow, if its protocol permits.
fn bytes(from: IpAddr, to: IpAddr, (protocol, port): (u8, u16), number: u16) -> (u16, Vec<u8>) {
    let payload = match protocol {
        ICMP => vec![8, 0, 0, 0, (number >> 8) as u8, number as u8, 0, 1],
        _ => segment(number, port, RST),
    };
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            (IPV4, Ipv4::new(from.octets(), to.octets(), protocol).with(&payload))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let (protocol, payload) = match protocol {
                ICMP => (ICMPV6, [&[128][..], payload.get(1..).unwrap_or_default()].concat()),
                protocol => (protocol, payload),
            };
            (IPV6, Ipv6::new(from.octets(), to.octets(), protocol).with(&payload))
        }
        _ => (0, Vec::new()),
    }
}

fn reason(direction: Direction, verdict: &Verdict) -> DropReason {
    match (verdict.reason, direction) {
        (Reason::PeerUnknown, _) => DropReason::PeerUnknown,
        (Reason::NotReady, _) => DropReason::PolicyUnknown,
        (_, Direction::Egress) => DropReason::PolicyEgress,
        (_, Direction::Ingress) => DropReason::PolicyIngress,
    }
}

/// All drops by policies: interface, whether of packets to the pod, and reason.
fn drops(programs: &Programs) -> anyhow::Result<BTreeMap<(u32, bool, u32), u64>> {
    let mut all = BTreeMap::new();
    for (ifindex, counters) in programs.counters()? {
        for (is_ingress, traffic) in [(false, &counters.egress), (true, &counters.ingress)] {
            for reason in DropReason::ALL {
                all.insert((ifindex, is_ingress, *reason as u32), traffic.drops.get(*reason));
            }
        }
    }
    Ok(all)
}

/// One packet between two ends, as the programs and as the compiler's rows judge it. `None` if no program
/// sees such a packet.
pub fn check(
    programs: &mut Programs,
    compiler: &Compiler,
    world: &World,
    (from, to): (End<'_>, End<'_>),
    traffic: (u8, u16),
    number: u16,
) -> anyhow::Result<Option<bool>> {
    let (sender, receiver) = (interface(world, from), interface(world, to));
    let (ethertype, packet_bytes) = bytes(address(from), address(to), traffic, number);
    let is_in_range = |end: End<'_>| is_in_range(address(end));
    let mut verdicts = Vec::new();
    if let Some(ifindex) = sender {
        // What goes to the own node is judged otherwise: `services` tests that.
        if matches!(to, End::OwnNode(_)) {
            return Ok(None);
        }
        verdicts.push((ifindex, Direction::Egress, from, to));
    }
    if let Some(ifindex) = receiver {
        verdicts.push((ifindex, Direction::Ingress, to, from));
    }
    if verdicts.is_empty() || ethertype == 0 {
        return Ok(None);
    }
    let mut denied = None;
    for (ifindex, direction, own, peer) in verdicts {
        let mut judged = packet(world, direction, own, peer, traffic).context("no endpoint")?;
        // The stack may translate what goes there: a later program judges, but for rules about the own node.
        if direction == Direction::Egress && receiver.is_none() {
            let marks = compiler.rows().peer(judged.peer.into());
            match marks.map(|row| (row.is_own_node, row.is_service)) {
                Some((true, _)) => judged.origin = Origin::OwnNode,
                Some((false, true)) => continue,
                _ => {}
            }
        }
        let judged = Packet { in_pod_range: is_in_range(peer) && judged.origin == Origin::Other, ..judged };
        let verdict = lookup(compiler.rows(), &judged);
        if !verdict.is_allowed {
            denied = Some((ifindex, direction, reason(direction, &verdict)));
            break;
        }
    }
    let before = drops(programs)?;
    let frame = frame(if sender.is_some() { GATEWAY_MAC } else { MAC }, MAC, ethertype, &packet_bytes);
    let ran = match (sender, receiver) {
        (Some(ifindex), _) => programs.run(Program::FromPod, SkBuff::on(ifindex), &frame)?,
        (None, Some(ifindex)) => {
            let via = if matches!(from, End::OwnNode(_)) { 0 } else { UPLINK };
            programs.run(Program::ToPod, SkBuff::forwarded(via, ifindex), &frame)?
        }
        (None, None) => return Ok(None),
    };
    let mut expected = before;
    if let Some((ifindex, direction, reason)) = denied {
        *expected.entry((ifindex, direction == Direction::Ingress, reason as u32)).or_default() += 1;
    }
    let passes = ran.verdict != TC_ACT_SHOT;
    ensure!(
        passes == denied.is_none() && drops(programs)? == expected,
        "{from:?} to {to:?}, {traffic:?}: expected {denied:?}, got {ran:?}"
    );
    Ok(Some(passes))
}

/// Another node's range of pods, in the second half of the cluster's addresses.
fn is_in_range(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(it) if it.octets().starts_with(&[10, 0, 1]))
}

#[test]
fn random_policies_judge_fresh_flows_as_the_compilers_lookup_does() {
    let interfaces: Vec<u32> = (1..=random::LAST_INTERFACE).map(|id| FIRST + id).collect();
    let (passed, denied) = with_programs(&interfaces, |programs| {
        let other = NodeEntry { id: 2, ..NodeEntry::default() };
        programs.add_node(NodeKey::new([10, 0, 1, 0].into(), 24), other)?;
        programs.index_nodes()?;
        programs.start_counting(0)?;
        let (mut passed, mut denied) = (0_u32, 0_u32);
        for seed in 0..clusters()? {
            let mut rng = Rng::with_seed(seed);
            let mut world = random::world(&mut rng);
            let mut compiler = Compiler::default();
            apply(programs, compiler.apply(world.changes())?.ops)?;
            for edit in 0..=EDITS {
                if edit > 0 {
                    let changes = random::edit(&mut rng, &mut world);
                    apply(programs, compiler.apply(changes)?.ops)?;
                }
                plug(programs, &world)?;
                let ends = random::ends(&world);
                let Some(last) = u16::try_from(PACKETS).ok() else { continue };
                for number in 0..last {
                    let some = |rng: &mut Rng| ends.get(rng.usize(..ends.len())).copied();
                    let (Some(from), Some(to)) = (some(&mut rng), some(&mut rng)) else { continue };
                    let traffic = random::TRAFFIC.get(rng.usize(..6)).copied().unwrap_or_default();
                    let result = check(programs, &compiler, &world, (from, to), traffic, number)
                        .with_context(|| format!("cluster {seed}, edit {edit}, packet {number}"))?;
                    passed += u32::from(result == Some(true));
                    denied += u32::from(result == Some(false));
                }
                forget(programs)?;
            }
            // The rows go as the endpoints and policies do.
            let rows: Vec<Op> = compiler.rows().all().collect();
            apply(programs, rows.into_iter().rev().map(without))?;
        }
        Ok((passed, denied))
    })
    .unwrap();
    println!("{passed} packets pass, {denied} are denied");
    assert!(passed > 500 && denied > 500, "{passed} packets pass, {denied} are denied");
}

/// Forgets the flows of protocols other than TCP, whose packets begin one.
pub fn forget(programs: &mut Programs) -> anyhow::Result<()> {
    for key in programs.policy_pending.keys().collect::<Result<Vec<_>, _>>()? {
        programs.policy_pending.remove(&key)?;
    }
    Ok(())
}

/// The removal of a row.
pub fn without(op: Op) -> Op {
    match op {
        Op::Peer(key, _) => Op::Peer(key, None),
        Op::Block(key, _) => Op::Block(key, None),
        Op::Ruleset(key, _) => Op::Ruleset(key, None),
        Op::Rule(key, _) => Op::Rule(key, None),
        Op::Named(key, _) => Op::Named(key, None),
        Op::Port(key, _) => Op::Port(key, None),
        Op::Endpoint(key, _) => Op::Endpoint(key, None),
    }
}
