//! Entries of the history as messages of `observer.Observer`.

use std::net::IpAddr;

use agent_common::{DropReason, event::FlowTraffic};
use ferrule_policy::{Direction as PolicyDirection, PolicyId};
use ferrule_proto::flow::{
    self, DropReason as Shown, Emitter, Endpoint, Ethernet, Ferrule, FlowType, IpVersion, Layer4,
    NetworkInterface, TraceObservationPoint, TrafficDirection, layer4::Protocol,
};
use prost_types::Timestamp;

use super::{
    packet::{Icmp, Ip, Network, Packet, Ports, TcpFlags, Transport},
    seen::{Direction, Flow, FlowState, Pod, Reason, Seen, Verdict},
};

/// Kinds of events of Cilium, and the places of trace events: in Cilium's source, `pkg/monitor/api/types.go`.
const DROP_EVENT: i32 = 1;
const TRACE_EVENT: i32 = 4;
const TO_ENDPOINT: i32 = 0;
const FROM_ENDPOINT: i32 = 5;

/// The message of an entry.
#[expect(deprecated, reason = "fields that clients of Hubble show")]
pub fn flow(seen: &Seen, node_name: &str) -> flow::Flow {
    let ip = seen.packet.ip();
    let drop_reason = drop_reason(seen);
    flow::Flow {
        time: Some(timestamp(seen.time)),
        verdict: verdict(seen).into(),
        drop_reason: drop_reason as u32,
        ethernet: seen.packet.macs.map(|macs| Ethernet {
            source: macs.source.to_string(),
            destination: macs.destination.to_string(),
        }),
        ip: ip.map(|ip| flow::Ip {
            source: ip.source.to_string(),
            destination: ip.destination.to_string(),
            ip_version: version(ip.source).into(),
        }),
        l4: seen.packet.transport().map(|it| Layer4 { protocol: Some(layer4(it)) }),
        source: seen.source.as_ref().map(endpoint),
        destination: seen.destination.as_ref().map(endpoint),
        r#type: FlowType::L3L4.into(),
        node_name: node_name.to_owned(),
        event_type: Some(event_type(seen)),
        traffic_direction: direction(seen).into(),
        trace_observation_point: observation_point(seen).into(),
        drop_reason_desc: drop_reason.into(),
        is_reply: is_reply(seen),
        interface: Some(NetworkInterface {
            index: seen.interface.ifindex,
            name: seen.interface_name().unwrap_or_default().to_owned(),
        }),
        emitter: Some(Emitter { name: "Ferrule".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }),
        egress_denied_by: denied_by(seen, PolicyDirection::Egress),
        ingress_denied_by: denied_by(seen, PolicyDirection::Ingress),
        summary: summary(seen),
        ferrule: Some(ferrule(seen)),
    }
}

pub fn timestamp(since_epoch_ns: u64) -> Timestamp {
    const SECOND: u64 = 1_000_000_000;
    Timestamp {
        seconds: i64::try_from(since_epoch_ns / SECOND).unwrap_or(i64::MAX),
        nanos: i32::try_from(since_epoch_ns % SECOND).unwrap_or_default(),
    }
}

pub(super) fn verdict(seen: &Seen) -> flow::Verdict {
    match seen.verdict {
        Verdict::Dropped { is_audited: false, .. } => flow::Verdict::Dropped,
        Verdict::Dropped { is_audited: true, .. } => flow::Verdict::Audit,
        Verdict::Forwarded(_) => flow::Verdict::Forwarded,
    }
}

/// The nearest of Hubble's reasons.
pub(super) fn drop_reason(seen: &Seen) -> Shown {
    let Verdict::Dropped { reason: Reason::Known(reason), .. } = seen.verdict else {
        return Shown::Unknown;
    };
    match reason {
        DropReason::NoVif => Shown::NoMatchingLocalContainerFound,
        DropReason::SpoofedMac => Shown::InvalidSourceMac,
        DropReason::SpoofedIpv4
        | DropReason::SpoofedIpv6
        | DropReason::SpoofedArp
        | DropReason::TunnelInner => Shown::InvalidSourceIp,
        DropReason::SpoofedNd => Shown::ForbiddenIcmpv6Message,
        DropReason::Malformed | DropReason::ForgedIcmp => Shown::InvalidPacketDropped,
        DropReason::Ethertype => Shown::UnsupportedL3Protocol,
        DropReason::Vlan => Shown::VlanFiltered,
        DropReason::Multicast | DropReason::Martian => Shown::StaleOrUnroutableIp,
        DropReason::NotToGateway => Shown::InvalidDestinationMac,
        DropReason::NotForPod | DropReason::TunnelDestination => Shown::UnknownL3TargetAddress,
        DropReason::DhcpServer
        | DropReason::PolicyEgress
        | DropReason::PolicyIngress
        | DropReason::PeerUnknown
        | DropReason::PolicyUnknown => Shown::PolicyDenied,
        DropReason::Tunnel | DropReason::TunnelOuter | DropReason::TunnelNested => {
            Shown::EncapsulationTrafficIsProhibited
        }
    }
}

pub(super) fn event_type(seen: &Seen) -> flow::CiliumEventType {
    match (seen.verdict, seen.direction) {
        (Verdict::Dropped { .. }, _) => {
            flow::CiliumEventType { r#type: DROP_EVENT, sub_type: drop_reason(seen).into() }
        }
        (Verdict::Forwarded(_), Direction::Ingress | Direction::Link) => {
            flow::CiliumEventType { r#type: TRACE_EVENT, sub_type: TO_ENDPOINT }
        }
        (Verdict::Forwarded(_), Direction::Egress | Direction::Unknown) => {
            flow::CiliumEventType { r#type: TRACE_EVENT, sub_type: FROM_ENDPOINT }
        }
    }
}

pub(super) fn direction(seen: &Seen) -> TrafficDirection {
    match seen.direction {
        Direction::Ingress | Direction::Link => TrafficDirection::Ingress,
        Direction::Egress => TrafficDirection::Egress,
        Direction::Unknown => TrafficDirection::Unknown,
    }
}

/// A flow whose source has sent a SYN and nothing else is no reply. Nothing is known of others: the first
/// packet that was counted can be one of the middle of a flow.
pub(super) fn is_reply(seen: &Seen) -> Option<bool> {
    let Network::Ip(Ip { transport: Some(Transport::Tcp(_, Some(flags))), .. }) = seen.packet.network else {
        return None;
    };
    let is_flow = matches!(seen.verdict, Verdict::Forwarded(_));
    (is_flow && flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK)).then_some(false)
}

pub(super) fn version(address: IpAddr) -> IpVersion {
    if address.is_ipv4() { IpVersion::IPv4 } else { IpVersion::IPv6 }
}

fn observation_point(seen: &Seen) -> TraceObservationPoint {
    match (seen.verdict, seen.direction) {
        (Verdict::Forwarded(_), Direction::Ingress) => TraceObservationPoint::ToEndpoint,
        (Verdict::Forwarded(_), Direction::Egress) => TraceObservationPoint::FromEndpoint,
        _ => TraceObservationPoint::UnknownPoint,
    }
}

fn endpoint(pod: &Pod) -> Endpoint {
    Endpoint {
        namespace: pod.namespace().to_owned(),
        pod_name: pod.name().to_owned(),
        addresses: pod.addresses().iter().map(IpAddr::to_string).collect(),
    }
}

fn layer4(transport: Transport) -> Protocol {
    let ends = |Ports { source, destination }: Ports| (u32::from(source), u32::from(destination));
    let icmp = |Icmp { kind, code }: Icmp| (u32::from(kind), u32::from(code));
    match transport {
        Transport::Tcp(ports, flags) => {
            let (source_port, destination_port) = ends(ports);
            Protocol::Tcp(flow::Tcp { source_port, destination_port, flags: flags.map(tcp_flags) })
        }
        Transport::Udp(ports) => {
            let (source_port, destination_port) = ends(ports);
            Protocol::Udp(flow::Udp { source_port, destination_port })
        }
        Transport::Sctp(ports) => {
            let (source_port, destination_port) = ends(ports);
            Protocol::Sctp(flow::Sctp { source_port, destination_port })
        }
        Transport::Icmpv4(message) => {
            let (r#type, code) = icmp(message);
            Protocol::IcmPv4(flow::IcmPv4 { r#type, code })
        }
        Transport::Icmpv6(message) => {
            let (r#type, code) = icmp(message);
            Protocol::IcmPv6(flow::IcmPv6 { r#type, code })
        }
    }
}

fn tcp_flags(flags: TcpFlags) -> flow::TcpFlags {
    let has = |bit: u8| flags.0 & bit != 0;
    flow::TcpFlags {
        fin: has(1),
        syn: has(2),
        rst: has(4),
        psh: has(8),
        ack: has(16),
        urg: has(32),
        ece: has(64),
        cwr: has(128),
        ns: false,
    }
}

fn ferrule(seen: &Seen) -> Ferrule {
    let Seen { packet: Packet { vlan, network, .. }, interface, suppressed, lost, .. } = seen;
    let shown = Ferrule {
        suppressed: *suppressed,
        lost: *lost,
        generation: interface.generation,
        vlan: vlan.map(|id| flow::VlanTag { id: id.into() }),
        ..Ferrule::default()
    };
    let shown = match network {
        Network::Unknown => shown,
        Network::Other { ethertype } => Ferrule { ethertype: (*ethertype).into(), ..shown },
        Network::Arp(arp) => Ferrule {
            arp: Some(flow::Arp {
                operation: arp.operation.into(),
                sender_mac: arp.sender.0.to_string(),
                sender_ip: arp.sender.1.to_string(),
                target_mac: arp.target.0.to_string(),
                target_ip: arp.target.1.to_string(),
            }),
            ..shown
        },
        Network::Ip(ip) => {
            Ferrule { ip_protocol: Some(ip.protocol.into()), fragment: ip.is_fragment, ..shown }
        }
    };
    match seen.verdict {
        Verdict::Dropped { reason, length, .. } => Ferrule {
            reason: reason_name(reason),
            length,
            denied_by: seen.denial.as_ref().map(|it| it.words.clone()).unwrap_or_default(),
            ..shown
        },
        Verdict::Forwarded(Flow { state, began, forward, reverse, reverse_flags }) => Ferrule {
            state: flow_state(state).into(),
            began: Some(timestamp(began)),
            forward: Some(traffic(forward)),
            reverse: Some(traffic(reverse)),
            reverse_flags: (reverse_flags != TcpFlags::default()).then(|| tcp_flags(reverse_flags)),
            ..shown
        },
    }
}

fn reason_name(reason: Reason) -> String {
    match reason {
        Reason::Known(reason) => reason.name().to_owned(),
        Reason::Unknown(number) => format!("reason_{number}"),
    }
}

fn flow_state(state: FlowState) -> flow::FlowState {
    match state {
        FlowState::New => flow::FlowState::New,
        FlowState::Active => flow::FlowState::Active,
        FlowState::Closed => flow::FlowState::Closed,
        FlowState::Ended => flow::FlowState::Ended,
        FlowState::Unknown => flow::FlowState::Unspecified,
    }
}

fn traffic(FlowTraffic { packets, bytes }: FlowTraffic) -> flow::Traffic {
    flow::Traffic { packets, bytes }
}

/// The policies that denied the packet in a direction.
fn denied_by(seen: &Seen, direction: PolicyDirection) -> Vec<flow::Policy> {
    let policies = seen.denial.iter().filter(|it| it.direction == direction).flat_map(|it| &it.policies);
    let show = |id: &PolicyId| flow::Policy {
        name: id.name.clone(),
        namespace: id.namespace.clone().unwrap_or_default(),
        kind: id.kind().to_owned(),
    };
    policies.map(show).collect()
}

/// One line: the protocol, and what clients of Hubble do not show.
fn summary(seen: &Seen) -> String {
    let protocol = match &seen.packet.network {
        Network::Unknown => "cut off".to_owned(),
        Network::Other { ethertype } => format!("ethertype {ethertype:#06x}"),
        Network::Arp(arp) => format!("ARP {} is at {}, asks {}", arp.sender.1, arp.sender.0, arp.target.1),
        Network::Ip(ip) => match ip.transport {
            Some(Transport::Tcp(_, Some(flags))) => {
                format!("TCP Flags: {}", flags.names().collect::<Vec<_>>().join(", "))
            }
            Some(Transport::Tcp(_, None)) => "TCP".to_owned(),
            Some(Transport::Udp(_)) => "UDP".to_owned(),
            Some(Transport::Sctp(_)) => "SCTP".to_owned(),
            Some(Transport::Icmpv4(Icmp { kind, code })) => format!("ICMPv4 type {kind} code {code}"),
            Some(Transport::Icmpv6(Icmp { kind, code })) => format!("ICMPv6 type {kind} code {code}"),
            None => format!("protocol {}", ip.protocol),
        },
    };
    let verdict = match seen.verdict {
        Verdict::Dropped { reason, .. } => reason_name(reason),
        Verdict::Forwarded(Flow { forward, reverse, .. }) => {
            format!("{} packets there, {} back", forward.packets, reverse.packets)
        }
    };
    let mut summary = format!("{protocol}; {verdict}");
    if let Some(denial) = &seen.denial {
        summary.push_str(&format!("; {}", denial.words));
    }
    for (count, what) in [(seen.suppressed, "suppressed"), (seen.lost, "lost")] {
        if count > 0 {
            summary.push_str(&format!("; +{count} {what}"));
        }
    }
    summary
}
