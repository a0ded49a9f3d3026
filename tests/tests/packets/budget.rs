//! Costs: instructions that the verifier walks, and run time per packet.

use agent_common::{DropReason, Endpoint, EndpointKey, GATEWAY_MAC, NodeEntry, NodeKey, VifEntry, VifKey};
use anyhow::ensure;
use ferrule_tests::{
    packet::{Ipv4, Ipv6, UDP, data, frame, udp},
    program::{AllCounters, Log, Program, Programs, SkBuff, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC},
};

use crate::{
    node_tunnel::add_nodes,
    table::{A, B, FAR_V4, FAR_V6, NODE_V4, Pod, STRANGER, with_pods},
};

/// Limits of verified instructions, a little above the current numbers, so that a regression is seen. The
/// kernel's limit is a million. Kernels differ in how they prune: Linux 6.1 walks more than 6.18.
const BUDGET: [(Program, u32); 6] = [
    (Program::FromPod, 46_000),
    (Program::ToPod, 27_000),
    (Program::FromTunnel, 39_500),
    (Program::FromUplink, 37_000),
    (Program::ToTunnel, 22_500),
    (Program::ToLink, 26_000),
];

#[test]
fn verified_instructions_stay_within_budget() {
    let mut quiet = Programs::load(Log::Off).unwrap();
    let mut loud = Programs::load(Log::Trace).unwrap();
    let mut numbers = Vec::new();
    for (program, budget) in BUDGET {
        let off = quiet.verified_instructions(program).unwrap();
        let on = loud.verified_instructions(program).unwrap();
        numbers.push((program, budget, off, on));
        println!("{}: {off} verified instructions, {on} with logging, budget {budget}", program.name());
    }
    for (program, budget, off, on) in numbers {
        assert!(
            off <= budget,
            "{}: {off} verified instructions, over the budget of {budget}",
            program.name()
        );
        // The verifier prunes disabled logging. Two programs log nothing.
        assert!(
            off + 1000 < on || matches!(program, Program::ToTunnel | Program::ToLink),
            "{}: {off} verified instructions without logging, {on} with logging",
            program.name()
        );
    }
}

#[test]
fn without_flows_the_verifier_removes_the_code_that_counts_them() {
    let mut on = Programs::load(Log::Off).unwrap();
    let mut off = Programs::load_without_flows().unwrap();
    for program in [Program::FromPod, Program::ToPod, Program::FromTunnel, Program::FromUplink] {
        let [on, off] = [&mut on, &mut off].map(|it| it.verified_instructions(program).unwrap());
        // Linux 6.1 prunes more of it: 500 instructions of `to_pod` are left.
        assert!(off + 300 < on, "{}: {off} verified instructions without flows, {on} with", program.name());
    }
}

/// A pod with the gateway's MAC: a packet to itself comes out as a packet that it can send again.
fn pod_with_gateway_mac(programs: &mut Programs) -> anyhow::Result<Pod> {
    let pod = Pod { mac: GATEWAY_MAC, ..B };
    let (key, endpoint) =
        (VifKey { ifindex: pod.ifindex }, Endpoint { ifindex: pod.ifindex, mac: pod.mac, reserved: [0; 2] });
    let vif: VifEntry = programs.vifs.get(&key, 0)?;
    programs.vifs.insert(&key, &VifEntry { mac: pod.mac, ..vif }, 0)?;
    programs.endpoints.insert(&EndpointKey::ipv4(pod.v4), &endpoint, 0)?;
    programs.endpoints.insert(&EndpointKey::ipv6(pod.v6), &endpoint, 0)?;
    Ok(pod)
}

/// Prints run times, to be compared within one run only, and asserts counters: times depend on the machine
/// and its load.
#[test]
fn run_time_per_packet_is_printed() {
    const OFTEN: u32 = 100_000;
    // Every delivery decrements the hop limit.
    const HOPS: u32 = 254;
    with_pods(|programs| {
        let (own, payload) = (pod_with_gateway_mac(programs)?, udp(1, 2, &data(64)));
        let v4 = |from: Pod, source, destination| {
            from.sends_v4(&Ipv4 { ttl: 255, ..Ipv4::new(source, destination, UDP) }.with(&payload))
        };
        let v6 = |from: Pod, source, destination| {
            from.sends_v6(&Ipv6 { hop_limit: 255, ..Ipv6::new(source, destination, UDP) }.with(&payload))
        };
        let cases = [
            ("IPv4, delivered", own, v4(own, own.v4, own.v4), TC_ACT_REDIRECT, HOPS),
            ("IPv6, delivered", own, v6(own, own.v6, own.v6), TC_ACT_REDIRECT, HOPS),
            ("IPv4, to the stack", A, v4(A, A.v4, FAR_V4), TC_ACT_UNSPEC, OFTEN),
            ("IPv6, to the stack", A, v6(A, A.v6, FAR_V6), TC_ACT_UNSPEC, OFTEN),
            ("IPv4, spoofed", A, v4(A, NODE_V4, FAR_V4), TC_ACT_SHOT, OFTEN),
            ("spoofed MAC", A, frame(GATEWAY_MAC, B.mac, 0, &payload), TC_ACT_SHOT, OFTEN),
        ];
        for (about, from, packet, verdict, times) in cases {
            let before = programs.counters()?;
            // Warm up the caches.
            programs.repeat(Program::FromPod, SkBuff::on(from.ifindex), &packet, times)?;
            let ran = programs.repeat(Program::FromPod, SkBuff::on(from.ifindex), &packet, times)?;
            ran.expect(verdict)?;
            println!("from_pod, {about}: {} ns", ran.took.as_nanos());
            let counted = |counters: &AllCounters| {
                let counters = counters.get(&from.ifindex).copied().unwrap_or_default();
                let drops: u64 =
                    DropReason::ALL.iter().map(|reason| counters.egress.drops.get(*reason)).sum();
                counters.egress.packets + drops
            };
            let runs = counted(&programs.counters()?) - counted(&before);
            ensure!(
                runs == u64::from(2 * times),
                "{about}: {runs} packets counted, expected 2 times {times}"
            );
        }
        for (about, packet) in [("IPv4", v4(A, FAR_V4, A.v4)), ("IPv6", v6(A, FAR_V6, A.v6))] {
            let ran = programs.repeat(Program::ToPod, SkBuff::on(A.ifindex), &packet, OFTEN)?;
            ran.expect(TC_ACT_UNSPEC)?;
            println!("to_pod, {about}: {} ns", ran.took.as_nanos());
        }
        add_nodes(programs)?;
        for number in 0..1000_u16 {
            let [high, low] = number.to_be_bytes();
            let range = NodeEntry { id: u32::from(number) + 10, ..NodeEntry::default() };
            let address = NodeEntry { flags: NodeEntry::ADDRESS, ..range };
            programs.add_node(NodeKey::new([10, 100 + high, low, 0].into(), 24), range)?;
            programs.add_node(NodeKey::host([192, 168, high, low].into()), address)?;
        }
        programs.start_counting_link(STRANGER)?;
        for index in ["in the trie", "in the index"] {
            if index == "in the index" {
                programs.index_nodes()?;
            }
            for (about, packet) in [
                ("IPv4, from far away", v4(A, FAR_V4, A.v4)),
                ("IPv4, from a remote pod", v4(A, [10, 102, 77, 5], A.v4)),
                ("IPv6, from far away", v6(A, FAR_V6, A.v6)),
            ] {
                let ran = programs.repeat(Program::FromUplink, SkBuff::on(STRANGER), &packet, OFTEN)?;
                ran.expect(TC_ACT_UNSPEC)?;
                println!("from_uplink, {about}, of 1,000 nodes {index}: {} ns", ran.took.as_nanos());
            }
        }
        Ok(())
    })
    .unwrap();
}
