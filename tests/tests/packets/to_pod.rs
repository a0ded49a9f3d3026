//! Packets that the host's stack sends to a pod.

use agent_common::{DropReason, GATEWAY_IPV4, GATEWAY_IPV6, GATEWAY_MAC};
use ferrule_tests::{
    packet::{
        self, Arp, BROADCAST, FRAGMENT, HOP_BY_HOP, ICMPV6, IPV4, IPV6, Ipv4, Ipv4Address, Ipv6, Ipv6Address,
        MLD_REPORT, NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, QINQ, SOURCE_MAC, TCP, UDP, VLAN, cut,
        data, extension, fragment, frame, mac_option, neighbour, router_advertisement, tagged, tcp, udp,
    },
    program::Program,
};

use crate::table::{A, B, FAR_V4, FAR_V6, NODE_V4, NODE_V6, ONLY_V4, ONLY_V6, Pod, Row, check, v6};

const ALL_NODES: Ipv6Address = v6([0xff02, 0, 0, 0, 0, 0, 0, 1]);

fn datagram() -> Vec<u8> {
    udp(53, 40000, b"answer")
}

fn v4_to(destination: Ipv4Address) -> Vec<u8> {
    A.receives(IPV4, &Ipv4::new(FAR_V4, destination, UDP).with(&datagram()))
}

fn v6_to(destination: Ipv6Address) -> Vec<u8> {
    A.receives(IPV6, &Ipv6::new(FAR_V6, destination, UDP).with(&datagram()))
}

#[test]
fn packets_for_the_pod_pass() {
    let solicits = |target| {
        let group = v6([0xff02, 0, 0, 0, 0, 1, 0xff00, 5]);
        let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(GATEWAY_IPV6, group, ICMPV6) };
        let message = neighbour(NEIGHBOUR_SOLICITATION, target, &mac_option(SOURCE_MAC, GATEWAY_MAC));
        frame([0x33, 0x33, 0xff, 0, 0, 5], GATEWAY_MAC, IPV6, &ip.icmp(&message))
    };
    let rows = [
        Row::enters("UDP from the Internet", A, v4_to(A.v4)),
        Row::enters(
            "TCP from the node",
            A,
            A.receives(IPV4, &Ipv4::new(NODE_V4, A.v4, TCP).with(&tcp(1, 2, b""))),
        ),
        Row::enters("with options", A, {
            A.receives(IPV4, &Ipv4 { options: vec![1; 4], ..Ipv4::new(NODE_V4, A.v4, UDP) }.with(&datagram()))
        }),
        Row::enters(
            "a fragment",
            A,
            A.receives(IPV4, &Ipv4 { fragment: 185, ..Ipv4::new(FAR_V4, A.v4, UDP) }.with(&data(24))),
        ),
        Row::enters(
            "TTL 1",
            A,
            A.receives(IPV4, &Ipv4 { ttl: 1, ..Ipv4::new(FAR_V4, A.v4, UDP) }.with(&datagram())),
        ),
        Row::enters("GSO", A, A.receives(IPV4, &Ipv4::new(FAR_V4, A.v4, TCP).with(&tcp(1, 2, &data(2800)))))
            .with_gso(1400),
        Row::enters(
            "a pod with IPv4 only",
            ONLY_V4,
            ONLY_V4.receives(IPV4, &Ipv4::new(FAR_V4, ONLY_V4.v4, UDP).with(&datagram())),
        ),
        Row::enters("UDP over IPv6 from the Internet", A, v6_to(A.v6)),
        Row::enters(
            "TCP over IPv6 from the node",
            A,
            A.receives(IPV6, &Ipv6::new(NODE_V6, A.v6, TCP).with(&tcp(1, 2, b""))),
        ),
        Row::enters(
            "behind an extension header",
            A,
            A.receives(IPV6, &Ipv6::new(FAR_V6, A.v6, 60).with(&extension(UDP, &datagram()))),
        ),
        Row::enters(
            "a pod with IPv6 only",
            ONLY_V6,
            ONLY_V6.receives(IPV6, &Ipv6::new(FAR_V6, ONLY_V6.v6, UDP).with(&datagram())),
        ),
        Row::enters("to its link-local address", A, v6_to(A.link_local())),
        Row::enters("to another link-local address", A, v6_to(v6([0xfe80, 0, 0, 0, 1, 2, 3, 4]))),
        Row::enters("the host solicits its MAC", A, solicits(A.v6)),
        Row::enters("the host solicits the MAC of its link-local address", A, solicits(A.link_local())),
        Row::enters("the host solicits by unicast", A, {
            let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(GATEWAY_IPV6, A.v6, ICMPV6) };
            A.receives(IPV6, &ip.icmp(&neighbour(NEIGHBOUR_SOLICITATION, A.v6, &[])))
        }),
        Row::enters("the gateway answers", A, {
            let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(GATEWAY_IPV6, A.link_local(), ICMPV6) };
            A.receives(IPV6, &ip.icmp(&neighbour(NEIGHBOUR_ADVERTISEMENT, GATEWAY_IPV6, &[])))
        }),
        Row::enters(
            "the host requests its MAC by ARP",
            A,
            frame(BROADCAST, GATEWAY_MAC, packet::ARP, &Arp::ask(GATEWAY_MAC, GATEWAY_IPV4, A.v4).bytes()),
        ),
        Row::enters("the gateway answers by ARP", A, {
            let ask = Arp::ask(GATEWAY_MAC, GATEWAY_IPV4, A.v4);
            A.receives(packet::ARP, &Arp { operation: Arp::REPLY, target_mac: A.mac, ..ask }.bytes())
        }),
    ];
    check(Program::ToPod, &rows).unwrap();
}

#[test]
fn packets_for_other_addresses_are_dropped() {
    let dropped = |about, to: Pod, packet| Row::dropped(about, to.ifindex, packet, DropReason::NotForPod);
    let [a, b, c, d] = A.v4;
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d];
    let rows = [
        dropped("to the sibling", A, v4_to(B.v4)),
        dropped("to the node", A, v4_to(NODE_V4)),
        dropped("to the gateway", A, v4_to(GATEWAY_IPV4)),
        dropped("to 0.0.0.0", A, v4_to([0; 4])),
        dropped("to 127.0.0.1", A, v4_to([127, 0, 0, 1])),
        dropped("to 0.0.0.0, of a pod without IPv4", ONLY_V6, v4_to([0; 4])),
        dropped("to the sibling over IPv6", A, v6_to(B.v6)),
        dropped("to the node over IPv6", A, v6_to(NODE_V6)),
        dropped("to ::", A, v6_to([0; 16])),
        dropped("to ::1", A, v6_to(v6([0, 0, 0, 0, 0, 0, 0, 1]))),
        dropped("to ::, of a pod without IPv6", ONLY_V4, v6_to([0; 16])),
        dropped("to its IPv4 address, mapped", A, v6_to(mapped)),
        dropped("next to the link-local addresses", A, v6_to(v6([0xfec0, 0, 0, 0, 0, 0, 0, 1]))),
        dropped(
            "ARP for the sibling",
            A,
            frame(BROADCAST, GATEWAY_MAC, packet::ARP, &Arp::ask(GATEWAY_MAC, GATEWAY_IPV4, B.v4).bytes()),
        ),
        dropped("ARP for 0.0.0.0, of a pod without IPv4", ONLY_V6, {
            frame(BROADCAST, GATEWAY_MAC, packet::ARP, &Arp::ask(GATEWAY_MAC, GATEWAY_IPV4, [0; 4]).bytes())
        }),
        dropped(
            "gratuitous ARP of the gateway",
            A,
            frame(
                BROADCAST,
                GATEWAY_MAC,
                packet::ARP,
                &Arp::ask(GATEWAY_MAC, GATEWAY_IPV4, GATEWAY_IPV4).bytes(),
            ),
        ),
    ];
    check(Program::ToPod, &rows).unwrap();
}

#[test]
fn multicast_is_dropped() {
    let dropped = |about, packet| Row::dropped(about, A.ifindex, packet, DropReason::Multicast);
    let icmp = |message: &[u8]| {
        let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(GATEWAY_IPV6, ALL_NODES, ICMPV6) };
        A.receives(IPV6, &ip.icmp(message))
    };
    let rows = [
        dropped("all systems", v4_to([224, 0, 0, 1])),
        dropped("mDNS", v4_to([224, 0, 0, 251])),
        dropped("broadcast", v4_to([255; 4])),
        dropped("all nodes", v6_to(ALL_NODES)),
        dropped("the host as router", icmp(&router_advertisement())),
        dropped("the host advertises itself", icmp(&neighbour(NEIGHBOUR_ADVERTISEMENT, GATEWAY_IPV6, &[]))),
        dropped("a ping, shorter than neighbour discovery", icmp(&[128, 0, 0, 0, 0, 1, 0, 1])),
        dropped("MLD", {
            let report = extension(ICMPV6, &[&[MLD_REPORT, 0, 0, 0], data(24).as_slice()].concat());
            A.receives(IPV6, &Ipv6::new(GATEWAY_IPV6, ALL_NODES, HOP_BY_HOP).with(&report))
        }),
        dropped("a solicitation's first byte, but in UDP", {
            A.receives(IPV6, &Ipv6::new(GATEWAY_IPV6, ALL_NODES, UDP).with(&[NEIGHBOUR_SOLICITATION; 24]))
        }),
    ];
    check(Program::ToPod, &rows).unwrap();
}

#[test]
fn vlan_tags_and_other_ethertypes_are_dropped() {
    let dropped = |about, packet, reason| Row::dropped(about, A.ifindex, packet, reason);
    let mut rows = vec![
        dropped("VLAN", tagged(&v4_to(A.v4), &[(VLAN, 5)]), DropReason::Vlan),
        dropped("VLAN around IPv6", tagged(&v6_to(A.v6), &[(VLAN, 5)]), DropReason::Vlan),
        dropped("QinQ", tagged(&v4_to(A.v4), &[(QINQ, 5), (VLAN, 6)]), DropReason::Vlan),
        dropped("LLDP", A.receives(0x88cc, &data(46)), DropReason::Ethertype),
        dropped("LLC", A.receives(38, &data(38)), DropReason::Ethertype),
        dropped(
            "a solicitation without a type",
            A.receives(IPV6, &Ipv6::new(GATEWAY_IPV6, ALL_NODES, ICMPV6).with(&[])),
            DropReason::Malformed,
        ),
    ];
    let arp = A.receives(packet::ARP, &Arp::ask(GATEWAY_MAC, GATEWAY_IPV4, A.v4).bytes());
    rows.extend((14..arp.len()).map(|len| dropped("truncated ARP", cut(&arp, len), DropReason::Malformed)));
    check(Program::ToPod, &rows).unwrap();
}

/// An interface of the node that belongs to no pod.
const UPLINK: u32 = 2;

#[test]
fn packets_of_a_pod_of_the_node_come_from_its_interface() {
    let v4 = |fragment| {
        let ip = Ipv4 { fragment, ..Ipv4::new(B.v4, A.v4, UDP) };
        A.receives(IPV4, &ip.with(&datagram()))
    };
    let v6 = || A.receives(IPV6, &Ipv6::new(B.v6, A.v6, UDP).with(&datagram()));
    let part = |at| {
        let part = fragment(UDP, at, at == 0, &datagram());
        A.receives(IPV6, &Ipv6::new(B.v6, A.v6, FRAGMENT).with(&part))
    };
    let hairpin = A.receives(IPV4, &Ipv4::new(A.v4, A.v4, UDP).with(&datagram()));
    let mut rows = vec![
        Row::enters("translated, IPv4", A, v4(0)).forwarded_from(B.ifindex),
        Row::enters("translated, IPv6", A, v6()).forwarded_from(B.ifindex),
        Row::enters("translated, a fragment", A, v4(185)).forwarded_from(B.ifindex),
        Row::enters("translated, a fragment of IPv6", A, part(185)).forwarded_from(B.ifindex),
        Row::enters("the host, for the pod", A, v4(0)),
        Row::enters("the host, for the pod, IPv6", A, v6()),
        Row::enters("the host, for the pod, a fragment of IPv4", A, v4(185)),
        Row::enters("a Service with the pod itself as backend", A, hairpin.clone()).forwarded_from(A.ifindex),
        Row::dropped("to itself from outside", A.ifindex, hairpin, DropReason::SpoofedIpv4)
            .forwarded_from(UPLINK),
        Row::dropped("a fragment without an origin", A.ifindex, part(0), DropReason::SpoofedIpv6),
        Row::dropped("a later fragment without an origin", A.ifindex, part(185), DropReason::SpoofedIpv6),
    ];
    for from in [UPLINK, A.ifindex, ONLY_V4.ifindex] {
        let dropped =
            |about, packet, reason| Row::dropped(about, A.ifindex, packet, reason).forwarded_from(from);
        rows.extend([
            dropped("IPv4", v4(0), DropReason::SpoofedIpv4),
            dropped("a fragment of IPv4", v4(185), DropReason::SpoofedIpv4),
            dropped("IPv6", v6(), DropReason::SpoofedIpv6),
            dropped("a fragment of IPv6", part(0), DropReason::SpoofedIpv6),
        ]);
    }
    check(Program::ToPod, &rows).unwrap();
}
