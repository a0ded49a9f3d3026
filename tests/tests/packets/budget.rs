//! What the programs cost: the verifier, in instructions that it walks through, and a packet, in time.

use agent_common::{DropReason, Endpoint, EndpointKey, GATEWAY_MAC, VifEntry, VifKey};
use anyhow::ensure;
use ferrule_tests::{
    packet::{Ipv4, Ipv6, UDP, data, frame, udp},
    program::{AllCounters, Beside, Log, Program, Programs, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC},
};

use crate::table::{A, B, FAR_V4, FAR_V6, NODE_V4, Pod, with_pods};

/// The most that the verifier may walk through. The kernel's own limit is a million; ours is a little above what
/// it takes now, so that a change which makes it walk further is seen. Kernels differ in how they walk.
const BUDGET: [(Program, u32); 2] = [(Program::FromPod, 6000), (Program::ToPod, 1900)];

#[test]
fn the_verifiers_budget_is_kept() {
    let mut quiet = Programs::load(Log::Off).unwrap();
    let mut loud = Programs::load(Log::Trace).unwrap();
    for (program, budget) in BUDGET {
        let off = quiet.verified_instructions(program).unwrap();
        let on = loud.verified_instructions(program).unwrap();
        println!(
            "{}: {off} verified instructions, {on} with logging on; the budget is {budget}",
            program.name()
        );
        assert!(
            off <= budget,
            "{}: {off} verified instructions, and {budget} are the budget",
            program.name()
        );
        // Logging that is off is gone: the verifier does not even look at it.
        assert!(
            off * 2 < on,
            "{}: {off} verified instructions with logging off, {on} with it",
            program.name()
        );
    }
}

/// A pod that looks like its own gateway: what it sends to itself comes out such that it can be sent again.
fn echoing(programs: &mut Programs) -> anyhow::Result<Pod> {
    let pod = Pod { mac: GATEWAY_MAC, ..B };
    let (key, endpoint) =
        (VifKey { ifindex: pod.ifindex }, Endpoint { ifindex: pod.ifindex, mac: pod.mac, reserved: [0; 2] });
    let vif: VifEntry = programs.vifs.get(&key, 0)?;
    programs.vifs.insert(key, VifEntry { mac: pod.mac, ..vif }, 0)?;
    programs.endpoints.insert(EndpointKey::ipv4(pod.v4), endpoint, 0)?;
    programs.endpoints.insert(EndpointKey::ipv6(pod.v6), endpoint, 0)?;
    Ok(pod)
}

/// Prints what a packet costs. Asserts what was counted, and no time: that depends on the machine, and on who
/// else uses it. Compare within one run only.
#[test]
fn the_cost_of_a_packet_is_printed() {
    const OFTEN: u32 = 100_000;
    // As often as a packet can lose a hop.
    const HOPS: u32 = 254;
    with_pods(|programs| {
        let (own, payload) = (echoing(programs)?, udp(1, 2, &data(64)));
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
            // Once for the caches.
            programs.repeat(Program::FromPod, Beside::on(from.ifindex), &packet, times)?;
            let ran = programs.repeat(Program::FromPod, Beside::on(from.ifindex), &packet, times)?;
            ran.expect(verdict)?;
            println!("from_pod, {about}: {} ns", ran.took.as_nanos());
            let counted = |counters: &AllCounters| {
                let counters = counters.get(&from.ifindex).copied().unwrap_or_default();
                let drops: u64 = DropReason::ALL.iter().map(|reason| counters.drops.get(*reason)).sum();
                counters.egress.packets + drops
            };
            let runs = counted(&programs.counters()?) - counted(&before);
            ensure!(runs == u64::from(2 * times), "{about}: {runs} packets are counted, of 2 times {times}");
        }
        for (about, packet) in [("IPv4", v4(A, FAR_V4, A.v4)), ("IPv6", v6(A, FAR_V6, A.v6))] {
            let ran = programs.repeat(Program::ToPod, Beside::on(A.ifindex), &packet, OFTEN)?;
            ran.expect(TC_ACT_UNSPEC)?;
            println!("to_pod, {about}: {} ns", ran.took.as_nanos());
        }
        Ok(())
    })
    .unwrap();
}
