//! Which pods are at the ends of a packet or a flow.

use agent_common::{
    DropReason, EndpointKey, FlowKey,
    event::{DropRecord, Event, FlowRecord, FlowStats, FlowTraffic, direction, flow_state, kind},
};

use super::{Pods, dropped, seen, syn};
use crate::{
    monitor::{
        clock::WallClock,
        packet::{TcpFlags, Transport},
        seen::{Direction, Flow, FlowState, Pod, Reason, Seen, Verdict},
    },
    policy::RemotePod,
};

/// Of a pod that was attached 0.9 s after boot: a generation is 2^20 ns.
const ATTACHED: u64 = 900_000_000;
const GENERATION: u32 = 858;

fn name(pod: &Option<Pod>) -> &str {
    pod.as_ref().map_or("-", Pod::name)
}

fn ends(seen: &Seen) -> (&str, &str) {
    (name(&seen.source), name(&seen.destination))
}

#[test]
fn a_forged_packet_is_from_the_pod_behind_the_interface() {
    let pods = Pods::new(&[(1, ATTACHED), (2, ATTACHED), (3, ATTACHED)]);
    let record = DropRecord { generation: GENERATION, ..dropped(1, &syn([10, 0, 0, 3], [10, 0, 0, 2])) };
    let seen = seen(record, &pods);
    assert_eq!(ends(&seen), ("pod1", "pod2"));
    assert_eq!(seen.interface_name(), Some("fr1"));
    assert_eq!(seen.direction, Direction::Egress);
    let reason = Reason::Known(DropReason::SpoofedIpv4);
    assert_eq!(seen.verdict, Verdict::Dropped { reason, length: 54, is_audited: false });
}

#[test]
fn a_packet_to_a_pod_is_for_the_pod_behind_the_interface() {
    let pods = Pods::new(&[(1, ATTACHED), (2, ATTACHED)]);
    let frame = syn([10, 0, 0, 1], [10, 0, 0, 99]);
    let seen = seen(DropRecord { direction: direction::INGRESS, ..dropped(2, &frame) }, &pods);
    assert_eq!(ends(&seen), ("pod1", "pod2"));
    assert_eq!(seen.interface_name(), Some("fr2"));
}

#[test]
fn a_pod_of_another_node_is_named_unless_the_packet_came_by_a_link() {
    let pods = Pods::new(&[(2, ATTACHED)]);
    let (arrives, leaves) = (syn([10, 0, 1, 7], [10, 0, 0, 2]), syn([10, 0, 0, 2], [10, 0, 1, 8]));
    let arriving = seen(DropRecord { direction: direction::INGRESS, ..dropped(2, &arrives) }, &pods);
    assert_eq!(ends(&arriving), ("pod7", "pod2"));
    let address = [10, 0, 1, 7].into();
    let remote = RemotePod { namespace: "far".to_owned(), name: "pod7".to_owned(), address };
    assert_eq!(arriving.source, Some(Pod::Remote(remote)));
    assert_eq!(ends(&seen(dropped(2, &leaves), &pods)), ("pod2", "pod8"));
    let forged = seen(DropRecord { direction: direction::LINK, ..dropped(1, &arrives) }, &pods);
    assert_eq!(ends(&forged), ("-", "pod2"), "anyone may have sent it");
}

#[test]
fn a_packet_from_another_host_is_from_no_pod_and_for_the_pod_with_its_address() {
    let pods = Pods::new(&[(1, ATTACHED), (2, ATTACHED)]);
    let frame = syn([10, 0, 0, 1], [10, 0, 0, 2]);
    let seen = seen(DropRecord { direction: direction::LINK, ..dropped(1, &frame) }, &pods);
    assert_eq!((ends(&seen), seen.direction), (("-", "pod2"), Direction::Link));
    assert_eq!(seen.interface_name(), None, "the interface is no pod's");
}

#[test]
fn a_record_of_an_earlier_pod_is_not_joined_to_its_successor() {
    let frame = syn([10, 0, 0, 1], [10, 0, 0, 2]);
    let of = |generation| DropRecord { generation, ..dropped(1, &frame) };
    let pods = Pods::new(&[(1, ATTACHED), (2, ATTACHED)]);
    assert_eq!(ends(&seen(of(GENERATION), &pods)), ("pod1", "pod2"));
    assert_eq!(ends(&seen(of(GENERATION - 1), &pods)), ("-", "pod2"));
    assert_eq!(ends(&seen(of(GENERATION + 1), &pods)), ("-", "pod2"));
    // An interface without an entry has no generation.
    assert_eq!(ends(&seen(of(0), &pods)), ("pod1", "pod2"));
    // Attached after the packet.
    let later = Pods::new(&[(1, 1_000_000_001), (2, 1_000_000_001)]);
    assert_eq!(ends(&seen(of(0), &later)), ("-", "-"));
}

#[test]
fn frames_without_addresses_are_joined_by_the_interface() {
    let pods = Pods::new(&[(1, ATTACHED)]);
    assert_eq!(ends(&seen(dropped(1, &[0; 13]), &pods)), ("pod1", "-"));
    let unknown = DropRecord { direction: 7, reason: 999, ..dropped(1, &[]) };
    let seen = seen(unknown, &pods);
    assert_eq!((ends(&seen), seen.direction), (("-", "-"), Direction::Unknown));
    assert_eq!(seen.verdict, Verdict::Dropped { reason: Reason::Unknown(999), length: 0, is_audited: false });
    assert_eq!(seen.interface_name(), None);
}

fn flow_record(opened_by_high: u8) -> FlowRecord {
    let (low, high) = (EndpointKey::ipv4([10, 0, 0, 1]), EndpointKey::ipv4([10, 0, 0, 2]));
    FlowRecord {
        kind: kind::FLOW,
        state: flow_state::CLOSED,
        time: 9_000_000_000,
        suppressed: 5,
        lost: 6,
        flow: FlowKey { low, high, low_port: 40000, high_port: 80, protocol: 6, reserved: [0; 3] },
        stats: FlowStats {
            from_low: FlowTraffic { packets: 3, bytes: 300 },
            from_high: FlowTraffic { packets: 2, bytes: 9000 },
            first: 1_000_000_000,
            ifindex: if opened_by_high == 0 { 1 } else { 2 },
            generation: GENERATION,
            direction: direction::EGRESS,
            flags_of_low: 2,
            flags_of_high: 18,
            opened_by_high,
            ..FlowStats::default()
        },
    }
}

#[test]
fn a_flows_source_has_sent_the_first_packet() {
    let pods = Pods::new(&[(1, ATTACHED), (2, ATTACHED)]);
    let seen = |opened_by_high| {
        Seen::new(&Event::Flow(flow_record(opened_by_high)), &pods, &mut WallClock::default())
    };
    for (opened_by_high, expected, flags, ports) in
        [(0, ("pod1", "pod2"), (2, 18), (40000, 80)), (1, ("pod2", "pod1"), (18, 2), (80, 40000))]
    {
        let seen = seen(opened_by_high);
        assert_eq!(ends(&seen), expected);
        let Some(Transport::Tcp(found, Some(sent))) = seen.packet.transport() else { panic!("{seen:?}") };
        assert_eq!(((found.source, found.destination), sent), (ports, TcpFlags(flags.0)));
        let Verdict::Forwarded(flow) = seen.verdict else { panic!("{seen:?}") };
        let Flow { state, forward, reverse, reverse_flags, began } = flow;
        let bytes = if opened_by_high == 0 { (300, 9000) } else { (9000, 300) };
        assert_eq!((state, forward.bytes, reverse.bytes), (FlowState::Closed, bytes.0, bytes.1));
        assert_eq!((reverse_flags, seen.time - began), (TcpFlags(flags.1), 8_000_000_000));
        assert_eq!((seen.suppressed, seen.lost), (5, 6));
    }
}

#[test]
fn a_pod_with_the_address_of_a_flows_earlier_end_is_no_end() {
    // The other end was attached after the flow began, and before this record.
    let pods = Pods::new(&[(1, ATTACHED), (2, 5_000_000_000)]);
    let seen = Seen::new(&Event::Flow(flow_record(0)), &pods, &mut WallClock::default());
    assert_eq!(ends(&seen), ("pod1", "-"));
}
