//! The messages that clients get.

use agent_common::{
    DropReason, EndpointKey, FlowKey,
    event::{DropRecord, Event, FlowRecord, FlowStats, FlowTraffic, direction, flow_state, kind},
};
use ferrule_proto::flow::{
    self, FlowState, TraceObservationPoint, TrafficDirection, Verdict, layer4::Protocol,
};

use ferrule_policy::{Direction as PolicyDirection, PolicyId};

use super::{Pods, dropped, seen, syn};
use crate::{
    monitor::{
        clock::WallClock,
        seen::{Seen, pod_name},
        show,
    },
    policy::Denial,
    registry::Owner,
};

fn message(record: DropRecord) -> flow::Flow {
    show::flow(&seen(record, &Pods::new(&[(1, 0), (2, 0)])), "node-1")
}

#[test]
#[expect(deprecated, reason = "fields that clients of Hubble show")]
fn a_dropped_packet_has_hubbles_fields_and_ours() {
    let frame = syn([10, 0, 0, 9], [10, 0, 0, 2]);
    let flow = message(DropRecord { suppressed: 3, lost: 1, generation: 0, ..dropped(1, &frame) });
    assert_eq!(
        (flow.verdict(), flow.drop_reason, flow.node_name.as_str()),
        (Verdict::Dropped, 132, "node-1")
    );
    assert_eq!(flow.drop_reason_desc().as_str_name(), "INVALID_SOURCE_IP");
    assert_eq!(flow.summary, "TCP Flags: SYN; spoofed_ipv4; +3 suppressed; +1 lost");
    let ip = flow.ip.clone().unwrap();
    assert_eq!((ip.source.as_str(), ip.destination.as_str()), ("10.0.0.9", "10.0.0.2"));
    let (source, destination) = (flow.source.clone().unwrap(), flow.destination.clone().unwrap());
    assert_eq!((source.namespace.as_str(), source.pod_name.as_str()), ("shop", "pod1"));
    assert_eq!(source.addresses, ["10.0.0.1", "fd00::1"]);
    assert_eq!(destination.pod_name, "pod2");
    assert_eq!(flow.ethernet.clone().unwrap().source, "02:00:00:00:00:01");
    let Some(Protocol::Tcp(tcp)) = flow.l4.unwrap().protocol else { panic!("{flow:?}") };
    assert_eq!((tcp.source_port, tcp.destination_port), (40000, 80));
    assert_eq!(tcp.flags, Some(flow::TcpFlags { syn: true, ..flow::TcpFlags::default() }));
    let interface = flow.interface.clone().unwrap();
    assert_eq!((interface.index, interface.name.as_str()), (1, "fr1"));
    assert_eq!(flow.traffic_direction(), TrafficDirection::Egress);
    assert_eq!(flow.event_type.unwrap(), flow::CiliumEventType { r#type: 1, sub_type: 132 });
    assert_eq!(flow.is_reply, None);
    let ours = flow.ferrule.unwrap();
    assert_eq!((ours.reason.as_str(), ours.suppressed, ours.lost, ours.length), ("spoofed_ipv4", 3, 1, 54));
    assert_eq!((ours.ip_protocol, ours.fragment, ours.forward), (Some(6), false, None));
}

#[test]
fn every_reason_has_one_of_hubble() {
    for reason in DropReason::ALL {
        let flow = message(DropRecord { reason: *reason as u32, ..dropped(1, &[]) });
        assert_ne!(flow.drop_reason_desc(), flow::DropReason::Unknown, "{reason:?}");
        assert_eq!(flow.ferrule.unwrap().reason, reason.name());
    }
    let unknown = message(DropRecord { reason: 999, ..dropped(1, &[]) });
    assert_eq!(
        (unknown.drop_reason_desc(), unknown.verdict()),
        (flow::DropReason::Unknown, Verdict::Dropped)
    );
    assert_eq!(unknown.ferrule.unwrap().reason, "reason_999");
}

#[test]
#[expect(deprecated, reason = "a field that clients of Hubble show")]
fn a_packet_that_policies_deny_names_them_by_direction_and_in_words() {
    let policies = vec![PolicyId::namespaced("shop", "a"), PolicyId::cluster("b")];
    let denial = |direction| {
        let words = "no policy allows".to_owned();
        Some(Box::new(Denial { direction, policies: policies.clone(), words }))
    };
    let record = DropRecord {
        reason: DropReason::PolicyIngress as u32,
        ..dropped(1, &syn([10, 0, 0, 1], [10, 0, 0, 2]))
    };
    let pods = Pods::new(&[(1, 0), (2, 0)]);
    let of = |denial| show::flow(&Seen { denial, ..seen(record, &pods) }, "node-1");
    let shown = of(denial(PolicyDirection::Ingress));
    let names = shown.ingress_denied_by.iter().map(|it| (&*it.kind, &*it.namespace, &*it.name));
    assert_eq!(
        names.collect::<Vec<_>>(),
        [("NetworkPolicy", "shop", "a"), ("ClusterNetworkPolicy", "", "b")]
    );
    assert_eq!((shown.egress_denied_by.len(), shown.verdict()), (0, Verdict::Dropped));
    assert_eq!(shown.summary, "TCP Flags: SYN; policy_ingress; no policy allows");
    assert_eq!(shown.ferrule.unwrap().denied_by, "no policy allows");
    let egress = of(denial(PolicyDirection::Egress));
    assert_eq!((egress.egress_denied_by.len(), egress.ingress_denied_by.len()), (2, 0));
    let other = of(None);
    assert_eq!((other.ingress_denied_by.len(), other.ferrule.unwrap().denied_by), (0, String::new()));
}

#[test]
fn what_passes_because_of_an_audit_has_hubbles_verdict_audit() {
    let record = DropRecord { reason: DropReason::PolicyEgress as u32, audit: 1, ..dropped(1, &[]) };
    let flow = message(record);
    assert_eq!(flow.verdict(), Verdict::Audit);
    assert_eq!(flow.ferrule.unwrap().reason, "policy_egress");
}

#[test]
fn arp_is_shown_with_its_addresses() {
    let mut frame = [[0xff; 6], [2, 0, 0, 0, 0, 1]].concat();
    frame
        .extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    let flow = message(dropped(1, &frame));
    assert_eq!((flow.ip.is_none(), flow.l4.is_none()), (true, true));
    assert_eq!(flow.destination.unwrap().pod_name, "pod2");
    let arp = flow.ferrule.unwrap().arp.unwrap();
    assert_eq!((arp.operation, arp.sender_ip.as_str(), arp.target_ip.as_str()), (1, "10.0.0.9", "10.0.0.2"));
}

#[test]
fn a_flow_has_the_traffic_of_both_directions() {
    let (low, high) = (EndpointKey::ipv4([10, 0, 0, 1]), EndpointKey::ipv4([10, 0, 0, 2]));
    let record = FlowRecord {
        kind: kind::FLOW,
        state: flow_state::ACTIVE,
        time: 2_500_000_000,
        suppressed: 0,
        lost: 0,
        flow: FlowKey { low, high, low_port: 7, high_port: 7, protocol: 1, reserved: [0; 3] },
        stats: FlowStats {
            from_low: FlowTraffic { packets: 3, bytes: 300 },
            from_high: FlowTraffic { packets: 2, bytes: 200 },
            first: 1_000_000_000,
            ifindex: 2,
            direction: direction::INGRESS,
            ..FlowStats::default()
        },
    };
    let pods = Pods::new(&[(1, 0), (2, 0)]);
    let seen = Seen::new(&Event::Flow(record), &pods, &mut WallClock::default());
    let flow = show::flow(&seen, "");
    assert_eq!((flow.verdict(), flow.is_reply), (Verdict::Forwarded, None));
    assert_eq!(flow.trace_observation_point(), TraceObservationPoint::ToEndpoint);
    // 4: trace, 0: to a pod.
    assert_eq!(flow.event_type.unwrap(), flow::CiliumEventType { r#type: 4, sub_type: 0 });
    let Some(Protocol::IcmPv4(icmp)) = flow.l4.unwrap().protocol else { panic!("{flow:?}") };
    assert_eq!((icmp.r#type, icmp.code), (8, 0));
    let ours = flow.ferrule.clone().unwrap();
    assert_eq!((ours.state(), ours.reason.as_str()), (FlowState::Active, ""));
    let traffic = |packets, bytes| Some(flow::Traffic { packets, bytes });
    assert_eq!((ours.forward, ours.reverse), (traffic(3, 300), traffic(2, 200)));
    let (began, time) = (ours.began.unwrap(), flow.time.unwrap());
    let nanos = |it: prost_types::Timestamp| i128::from(it.seconds) * 1_000_000_000 + i128::from(it.nanos);
    assert_eq!(nanos(time) - nanos(began), 1_500_000_000);
}

#[test]
fn a_container_without_a_pod_is_shown_by_its_id() {
    let mut owner: Owner = (&crate::registry::testing::attachment("eth0", None, 2)).into();
    assert_eq!(pod_name(&owner), "a");
    owner.key = crate::registry::Key::try_from("net/0123456789abcdef/eth0".to_owned()).unwrap();
    assert_eq!(pod_name(&owner), "0123456789ab");
}

#[test]
fn only_a_flow_that_begins_with_a_syn_of_its_source_is_known_to_be_no_reply() {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    for (flags, expected) in [(SYN, Some(false)), (SYN | ACK, None), (ACK, None), (0, None)] {
        let [low, high] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(EndpointKey::ipv4);
        let record = FlowRecord {
            kind: 2,
            state: 1,
            time: 1,
            suppressed: 0,
            lost: 0,
            flow: FlowKey { low, high, low_port: 40000, high_port: 80, protocol: 6, reserved: [0; 3] },
            stats: FlowStats { flags_of_low: flags, ..FlowStats::default() },
        };
        let seen = Seen::new(&Event::Flow(record), &Pods::new(&[]), &mut WallClock::default());
        assert_eq!(show::flow(&seen, "").is_reply, expected, "{flags}");
    }
}

#[test]
fn the_vlan_tag_that_the_kernel_keeps_beside_the_frame_is_the_outermost() {
    let frame = syn([10, 0, 0, 1], [10, 0, 0, 2]);
    let tagged = DropRecord { vlan: 1 << 16 | 0x6005, ..dropped(1, &frame) };
    let seen = Seen::new(&Event::Drop(tagged), &Pods::new(&[]), &mut WallClock::default());
    assert_eq!(seen.packet.vlan, Some(5));
}
