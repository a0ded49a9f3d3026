//! What policies cost: run time per packet of pods with and without them.

use std::time::Duration;

use agent_common::{Endpoint, EndpointKey, GATEWAY_MAC, VifEntry, VifKey};
use anyhow::ensure;
use ferrule_tests::{
    packet::{IPV4, Ipv4, TCP},
    program::{Program, SkBuff, TC_ACT_REDIRECT, TC_ACT_UNSPEC},
};
use serde_json::json;

use super::{ACK, FIN, Policed, RST, SYN, UPLINK, policy, segment, with_policies};
use crate::table::{A, B, FAR_V4, Pod};

/// Enough that the places of answered flows are in use, and not in the caches of a CPU.
const CONNECTIONS: u16 = 12_000;
/// The first ones find their places empty.
const WARM: usize = 9_000;

/// Every delivery decrements the hop limit.
const HOPS: u8 = 254;
const ROUNDS: usize = 200;
/// Fewer than a pod may have.
const FIRST_PACKETS: u16 = 100;
const USED_PLACES: u16 = 3000;

/// The pod with the gateway's MAC: what one such pod gets is a packet that another one can send again.
fn with_gateway_mac(node: &mut Policed<'_>, pod: Pod) -> anyhow::Result<Pod> {
    let pod = Pod { mac: GATEWAY_MAC, ..pod };
    let key = VifKey { ifindex: pod.ifindex };
    let vif: VifEntry = node.vifs.get(&key, 0)?;
    node.vifs.insert(&key, &VifEntry { mac: pod.mac, ..vif }, 0)?;
    let endpoint = Endpoint { ifindex: pod.ifindex, mac: pod.mac, reserved: [0; 2] };
    node.endpoints.insert(&EndpointKey::ipv4(pod.v4), &endpoint, 0)?;
    Ok(pod)
}

fn frame(from: Pod, to: Pod, ports: (u16, u16), flags: u8) -> Vec<u8> {
    let ip = Ipv4 { ttl: HOPS + 1, ..Ipv4::new(from.v4, to.v4, TCP) };
    from.sends_v4(&ip.with(&segment(ports.0, ports.1, flags)))
}

/// The median, in nanoseconds: a machine with other load disturbs some rounds.
fn median(mut times: Vec<Duration>) -> u128 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default().as_nanos()
}

/// Runs of `from_pod` on a packet that is delivered, as often as its hop limit allows.
fn delivered(node: &mut Policed<'_>, from: Pod, packet: &[u8], times: u8) -> anyhow::Result<Duration> {
    let ran = node.repeat(Program::FromPod, SkBuff::on(from.ifindex), packet, times.into())?;
    ran.expect(TC_ACT_REDIRECT)?;
    Ok(ran.took)
}

/// The sum of a short connection's packets.
fn connection(node: &mut Policed<'_>, client: Pod, server: Pod, port: u16) -> anyhow::Result<Duration> {
    let mut took = Duration::ZERO;
    for (is_client, flags) in [
        (true, SYN),
        (false, SYN | ACK),
        (true, ACK),
        (true, ACK),
        (false, ACK),
        (true, FIN | ACK),
        (false, FIN | ACK),
        (true, ACK),
    ] {
        let (from, to) = if is_client { (client, server) } else { (server, client) };
        let ports = if is_client { (port, 81) } else { (81, port) };
        took += delivered(node, from, &frame(from, to, ports, flags), 1)?;
    }
    Ok(took)
}

/// Prints run times, to be compared within one run only, and asserts verdicts and flows.
#[test]
fn run_time_with_policies_is_printed() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]});
    let isolated = ["a", "b"].map(|app| policy(app, rules.clone())).to_vec();
    for (about, policies, flows) in
        [("no policy", Vec::new(), 0), ("both ends isolated", isolated, 2 + FIRST_PACKETS)]
    {
        with_policies(policies, |node| {
            let (a, b) = (with_gateway_mac(node, A)?, with_gateway_mac(node, B)?);
            // As on a node in use, whose places are those of ended flows.
            for port in 0..USED_PLACES {
                delivered(node, a, &frame(a, b, (60_000 + port, 80), SYN), 1)?;
            }
            for key in node.policy_pending.keys().collect::<Result<Vec<_>, _>>()? {
                node.policy_pending.remove(&key)?;
            }
            let mut first = Vec::new();
            for port in 0..FIRST_PACKETS {
                first.push(delivered(node, a, &frame(a, b, (40_000 + port, 80), SYN), 1)?);
            }
            let mut third = Vec::new();
            for port in 0..FIRST_PACKETS {
                delivered(node, b, &frame(b, a, (80, 40_000 + port), SYN | ACK), 1)?;
                third.push(delivered(node, a, &frame(a, b, (40_000 + port, 80), ACK), 1)?);
            }
            delivered(node, a, &frame(a, b, (50_000, 80), SYN), 1)?;
            delivered(node, b, &frame(b, a, (80, 50_000), SYN | ACK), 1)?;
            let far =
                |from, to, ports: (u16, u16)| Ipv4::new(from, to, TCP).with(&segment(ports.0, ports.1, ACK));
            let (to_far, from_far) =
                (a.sends_v4(&far(A.v4, FAR_V4, (50_000, 443))), far(FAR_V4, A.v4, (443, 50_000)));
            let from_far = a.receives(IPV4, &from_far);
            let (mut known, mut judged, mut received) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                known.push(delivered(node, a, &frame(a, b, (50_000, 80), ACK), HOPS)?);
                judged.push(delivered(node, a, &frame(a, b, (50_001, 80), RST), HOPS)?);
                node.run(Program::FromPod, SkBuff::on(A.ifindex), &to_far)?.expect(TC_ACT_UNSPEC)?;
                let skb = SkBuff::forwarded(UPLINK, A.ifindex);
                let ran = node.repeat(Program::ToPod, skb, &from_far, HOPS.into())?;
                ran.expect(TC_ACT_UNSPEC)?;
                received.push(ran.took);
            }
            println!("{about}: from_pod, first packets, run once each: {} ns", median(first));
            println!("{about}: from_pod, first packets after an answer: {} ns", median(third));
            println!("{about}: from_pod, packets that begin no flow: {} ns", median(judged));
            println!("{about}: from_pod, packets of a known flow: {} ns", median(known));
            println!("{about}: to_pod, packets of a known flow: {} ns", median(received));
            let kept = node.policy_flows.keys().count();
            let mut whole = Vec::new();
            for port in 0..CONNECTIONS {
                whole.push(connection(node, a, b, 33_000 + port)?);
            }
            println!("{about}: from_pod, all of a short connection: {} ns", median(whole.split_off(WARM)));
            ensure!(kept == usize::from(flows), "{kept} answered flows");
            Ok(())
        })
        .unwrap();
    }
}
