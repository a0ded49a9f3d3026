//! `FLOW_STATS`: packets and bytes of flows, and their records.

use agent_common::{
    EndpointKey, FlowKey, VifEntry, VifKey,
    event::{Event, FlowRecord, FlowStats},
};
use anyhow::{Context as _, bail, ensure};
use ferrule_tests::{
    packet::{ICMP, IPV4, Ipv4, Ipv6, TCP, UDP, data, echo, tcp, udp},
    program::{Program, Programs, SkBuff},
};

use crate::table::{A, B, FAR_V4, FAR_V6, GENERATION, NODE_V4, Pod, with_pods};

const NEW: u32 = 1;
const ACTIVE: u32 = 2;
const CLOSED: u32 = 3;
const INGRESS: u32 = 1;
const EGRESS: u32 = 2;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

fn records(programs: &mut Programs) -> anyhow::Result<Vec<FlowRecord>> {
    let one = |event| match event {
        Event::Flow(flow) => Ok(flow),
        Event::Drop(drop) => bail!("a drop: {drop:?}"),
    };
    programs.events()?.into_iter().map(one).collect()
}

/// The states of the records since the last call.
fn states(programs: &mut Programs) -> anyhow::Result<Vec<u32>> {
    Ok(records(programs)?.iter().map(|record| record.state).collect())
}

fn send(programs: &mut Programs, from: Pod, packet: &[u8]) -> anyhow::Result<()> {
    let ran = programs.run(Program::FromPod, SkBuff::on(from.ifindex), packet)?;
    ensure!(ran.verdict != ferrule_tests::program::TC_ACT_SHOT, "dropped");
    Ok(())
}

/// A TCP segment between two pods, with these flags.
fn segment(from: Pod, to: Pod, ports: (u16, u16), flags: u8) -> Vec<u8> {
    let mut segment = tcp(ports.0, ports.1, b"");
    segment.iter_mut().skip(13).take(1).for_each(|byte| *byte = flags);
    from.sends_v4(&Ipv4::new(from.v4, to.v4, TCP).with(&segment))
}

fn stats(programs: &Programs, protocol: u8, one: ([u8; 4], u16), other: ([u8; 4], u16)) -> Option<FlowStats> {
    let end = |(address, port)| (EndpointKey::ipv4(address), port);
    programs.flow_stats.get(&FlowKey::between(protocol, end(one), end(other)), 0).ok()
}

#[test]
fn no_flow_is_counted_until_sampling_is_on() {
    with_pods(|programs| {
        send(programs, A, &segment(A, B, (40000, 80), SYN))?;
        ensure!(programs.flow_stats.keys().count() == 0 && states(programs)?.is_empty());
        programs.sample_flows(1)?;
        send(programs, A, &segment(A, B, (40000, 80), ACK))?;
        ensure!(programs.flow_stats.keys().count() == 1 && states(programs)? == [NEW]);
        programs.sample_flows(0)?;
        send(programs, A, &segment(A, B, (40001, 80), SYN))?;
        ensure!(programs.flow_stats.keys().count() == 1 && states(programs)?.is_empty());
        Ok(())
    })
    .unwrap();
}

#[test]
fn both_directions_of_a_connection_are_one_flow_with_a_first_and_a_last_record() {
    with_pods(|programs| {
        programs.sample_flows(1)?;
        let (there, back) = ((40000, 80), (80, 40000));
        send(programs, A, &segment(A, B, there, SYN))?;
        let [new] = records(programs)?.try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
        ensure!((new.state, new.stats.ifindex, new.stats.direction) == (NEW, A.ifindex, EGRESS), "{new:?}");
        ensure!(new.stats.generation == GENERATION && new.time == new.stats.first, "{new:?}");
        send(programs, B, &segment(B, A, back, SYN | ACK))?;
        send(programs, A, &segment(A, B, there, ACK))?;
        send(programs, A, &segment(A, B, there, FIN | ACK))?;
        ensure!(states(programs)?.is_empty());
        send(programs, B, &segment(B, A, back, FIN | ACK))?;
        let [closed] = records(programs)?.try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
        // A has the lower address: 10.244.0.5 and .6. A segment without data has 54 bytes.
        let FlowStats { from_low, from_high, .. } = closed.stats;
        ensure!((closed.state, closed.suppressed, closed.lost) == (CLOSED, 0, 0), "{closed:?}");
        ensure!((from_low.packets, from_low.bytes) == (3, 162), "{closed:?}");
        ensure!((from_high.packets, from_high.bytes) == (2, 108), "{closed:?}");
        ensure!(
            closed.stats.flags_of_low == SYN | ACK | FIN && closed.stats.opened_by_high == 0,
            "{closed:?}"
        );
        ensure!((closed.flow.low_port, closed.flow.high_port, closed.flow.protocol) == (40000, 80, 6));
        // The last segment, and then a new connection from the same port.
        send(programs, A, &segment(A, B, there, ACK))?;
        ensure!(states(programs)?.is_empty(), "a closed flow has a second last record");
        send(programs, A, &segment(A, B, there, SYN))?;
        let [reopened] = records(programs)?.try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
        ensure!((reopened.state, reopened.stats.from_low.packets) == (NEW, 1), "{reopened:?}");
        ensure!(reopened.stats.from_high.packets == 0 && reopened.stats.flags_of_low == SYN, "{reopened:?}");
        send(programs, B, &segment(B, A, back, RST | ACK))?;
        ensure!(states(programs)? == [CLOSED]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_end_that_sends_first_has_opened_the_flow() {
    with_pods(|programs| {
        programs.sample_flows(1)?;
        send(programs, B, &segment(B, A, (40000, 80), SYN))?;
        let [new] = records(programs)?.try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
        ensure!(new.stats.opened_by_high == 1 && new.stats.from_high.packets == 1, "{new:?}");
        ensure!(new.stats.flags_of_high == SYN && new.stats.flags_of_low == 0, "{new:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_flow_is_recorded_again_after_a_minute_only() {
    const MINUTE: u64 = 60_000_000_000;
    with_pods(|programs| {
        programs.sample_flows(1)?;
        let packet = A.sends_v4(&Ipv4::new(A.v4, B.v4, UDP).with(&udp(1000, 53, b"x")));
        send(programs, A, &packet)?;
        ensure!(states(programs)? == [NEW]);
        let ends = [(EndpointKey::ipv4(A.v4), 1000), (EndpointKey::ipv4(B.v4), 53)];
        let key = FlowKey::between(UDP, ends[0], ends[1]);
        let known = programs.flow_stats.get(&key, 0)?;
        for (age, expected) in [(MINUTE - 5_000_000_000, &[][..]), (MINUTE + 1, &[ACTIVE])] {
            // As if time had passed; the programs look at the clock at once.
            let aged = FlowStats {
                reported: known.reported.saturating_sub(age),
                look_at: known.look_at.wrapping_sub(6000),
                ..known
            };
            ensure!(known.reported > age, "the machine was booted less than a minute ago");
            programs.flow_stats.insert(&key, &aged, 0)?;
            send(programs, A, &packet)?;
            ensure!(states(programs)? == expected, "after {age} ns");
        }
        send(programs, A, &packet)?;
        ensure!(states(programs)?.is_empty(), "a second record within the minute");
        Ok(())
    })
    .unwrap();
}

#[test]
fn packets_with_the_world_are_counted_at_the_pod_in_both_directions() {
    with_pods(|programs| {
        programs.sample_flows(1)?;
        send(programs, A, &A.sends_v4(&Ipv4::new(A.v4, FAR_V4, UDP).with(&udp(1000, 53, &data(8)))))?;
        let answer = A.receives(IPV4, &Ipv4::new(FAR_V4, A.v4, UDP).with(&udp(53, 1000, &data(20))));
        programs.run(Program::ToPod, SkBuff::forwarded(1, A.ifindex), &answer)?;
        let flow = stats(programs, UDP, (A.v4, 1000), (FAR_V4, 53)).context("no flow")?;
        // The pod's address is the lower one. Ethernet, IPv4 and UDP headers have 42 bytes.
        ensure!((flow.from_low.packets, flow.from_low.bytes) == (1, 50), "{flow:?}");
        ensure!((flow.from_high.packets, flow.from_high.bytes) == (1, 62), "{flow:?}");
        let request = A.receives(IPV4, &Ipv4::new(NODE_V4, A.v4, UDP).with(&udp(7, 8, b"")));
        programs.run(Program::ToPod, SkBuff::on(A.ifindex), &request)?;
        let flow = stats(programs, UDP, (A.v4, 8), (NODE_V4, 7)).context("no flow from the node")?;
        ensure!((flow.direction, flow.ifindex, flow.opened_by_high) == (INGRESS, A.ifindex, 1), "{flow:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn echoes_and_protocols_without_ports_are_flows_too() {
    with_pods(|programs| {
        programs.sample_flows(1)?;
        let ping = Ipv4::new(A.v4, FAR_V4, ICMP).with(&echo(b"x"));
        send(programs, A, &A.sends_v4(&ping))?;
        send(programs, A, &A.sends_v4(&Ipv4::new(A.v4, FAR_V4, 253).with(&data(30))))?;
        let all = records(programs)?;
        let id = u16::from_be_bytes([ping[24], ping[25]]);
        let ports = |protocol: u8| {
            let of = all.iter().find(|record| record.flow.protocol == protocol);
            of.map(|record| (record.flow.low_port, record.flow.high_port))
        };
        ensure!(ports(ICMP) == Some((id, id)), "{all:?}");
        ensure!(ports(253) == Some((0, 0)), "{all:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn one_in_many_flows_is_counted_with_both_directions() {
    const FLOWS: u16 = 400;
    with_pods(|programs| {
        programs.sample_flows(4)?;
        for port in 0..FLOWS {
            send(programs, A, &A.sends_v6(&Ipv6::new(A.v6, B.v6, UDP).with(&udp(1024 + port, 53, b""))))?;
            send(programs, B, &B.sends_v6(&Ipv6::new(B.v6, A.v6, UDP).with(&udp(53, 1024 + port, b""))))?;
        }
        let mut counted = 0;
        for flow in programs.flow_stats.iter() {
            let (_, stats) = flow?;
            ensure!((stats.from_low.packets, stats.from_high.packets) == (1, 1), "{stats:?}");
            counted += 1;
        }
        ensure!((60..140).contains(&counted), "{counted} of {FLOWS} flows");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pod_with_many_flows_displaces_its_own_only() {
    const FLOWS: u16 = 40_000;
    const SHARE: usize = 1024;
    with_pods(|programs| {
        programs.sample_flows(1)?;
        let of_b: Vec<_> = (0..3)
            .map(|number| B.sends_v4(&Ipv4::new(B.v4, A.v4, UDP).with(&udp(1000 + number, 53, b"x"))))
            .collect();
        of_b.iter().try_for_each(|packet| send(programs, B, packet))?;
        // Both to the other pod and to the world: neither takes places of the other pod.
        for port in 0..FLOWS {
            let to = if port % 2 == 0 { B.v4 } else { FAR_V4 };
            send(programs, A, &A.sends_v4(&Ipv4::new(A.v4, to, UDP).with(&udp(port, 7, b""))))?;
        }
        let all: Vec<_> = programs.flow_stats.iter().collect::<Result<_, _>>()?;
        let of_a = all.iter().filter(|(_, stats)| stats.ifindex == A.ifindex).count();
        ensure!((SHARE / 2..=SHARE).contains(&of_a), "{of_a} flows of one pod");
        of_b.iter().try_for_each(|packet| send(programs, B, packet))?;
        for number in 0..3 {
            let flow = stats(programs, UDP, (B.v4, 1000 + number), (A.v4, 53)).context("no flow")?;
            ensure!(flow.from_high.packets == 2, "another pod has displaced the flow: {flow:?}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_new_flow_displaces_a_closed_one_or_the_longest_unused() {
    with_pods(|programs| {
        programs.sample_flows(1)?;
        let in_use = A.sends_v4(&Ipv4::new(A.v4, B.v4, UDP).with(&udp(1, 53, b"x")));
        let mut count = 0;
        for port in 10_000..30_000 {
            send(programs, A, &in_use)?;
            count += 1;
            send(programs, A, &segment(A, B, (port, 80), if port % 2 == 0 { RST } else { SYN }))?;
        }
        let flow = stats(programs, UDP, (A.v4, 1), (B.v4, 53)).context("no flow")?;
        ensure!(flow.from_low.packets == count, "the flow in use was displaced: {flow:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn dropped_packets_are_no_flows() {
    with_pods(|programs| {
        programs.sample_flows(1)?;
        let spoofed = A.sends_v6(&Ipv6::new(FAR_V6, B.v6, UDP).with(&udp(1, 2, b"")));
        programs.run(Program::FromPod, SkBuff::on(A.ifindex), &spoofed)?;
        ensure!(programs.flow_stats.keys().count() == 0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_flow_that_is_opened_again_belongs_to_the_pod_that_opens_it() {
    with_pods(|programs| {
        programs.sample_flows(1)?;
        send(programs, A, &segment(A, B, (40000, 80), SYN))?;
        send(programs, B, &segment(B, A, (80, 40000), RST))?;
        ensure!(states(programs)? == [NEW, CLOSED]);
        send(programs, B, &segment(B, A, (80, 40000), SYN))?;
        let [new] = records(programs)?.try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
        ensure!((new.state, new.stats.ifindex, new.stats.opened_by_high) == (NEW, B.ifindex, 1), "{new:?}");
        ensure!(new.stats.from_high.packets == 1 && new.stats.from_low.packets == 0, "{new:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pod_with_the_address_of_an_earlier_one_begins_flows_of_its_own() {
    with_pods(|programs| {
        programs.sample_flows(1)?;
        let packet = A.sends_v4(&Ipv4::new(A.v4, FAR_V4, UDP).with(&udp(1000, 53, b"x")));
        send(programs, A, &packet)?;
        send(programs, A, &packet)?;
        ensure!(states(programs)? == [NEW]);
        let vif = programs.vifs.get(&VifKey { ifindex: A.ifindex }, 0)?;
        programs.vifs.insert(&VifKey { ifindex: A.ifindex }, &VifEntry { generation: 78, ..vif }, 0)?;
        send(programs, A, &packet)?;
        let [new] = records(programs)?.try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
        ensure!((new.state, new.stats.generation, new.stats.from_low.packets) == (NEW, 78, 1), "{new:?}");
        Ok(())
    })
    .unwrap();
}
