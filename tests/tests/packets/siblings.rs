//! What a pod may not do to other pods of the node, and to the node: forge ICMP errors, serve DHCP, send
//! packets that are too big, or open tunnels.

use agent_common::{DropReason, GATEWAY_IPV6, VifEntry, VifKey};
use ferrule_tests::{
    packet::{
        DESTINATION_OPTIONS, FRAGMENT, ICMP, ICMPV6, IPV4, IPV6, Ipv4, Ipv6, TCP, UDP, cut, data, extension,
        fragment, icmp_error, tcp, udp,
    },
    program::Program,
};

use crate::table::{
    A, B, FAR_V4, FAR_V6, NODE_V4, NODE_V6, ONLY_V4, Pod, Row, add_routes, check, check_on, v6,
};

fn v4(from: Pod, to: Pod) -> Ipv4 {
    Ipv4::new(from.v4, to.v4, UDP)
}

fn v6_of(from: Pod, to: Pod) -> Ipv6 {
    Ipv6::new(from.v6, to.v6, UDP)
}

fn delivered(about: &'static str, ip: &Ipv4, payload: &[u8]) -> Row {
    let out = Ipv4 { ttl: 63, ..ip.clone() }.with(payload);
    Row::delivered(about, A, A.sends_v4(&ip.with(payload)), B, B.receives(IPV4, &out))
}

fn delivered_v6(about: &'static str, ip: &Ipv6, payload: &[u8]) -> Row {
    let out = Ipv6 { hop_limit: 63, ..ip.clone() }.with(payload);
    Row::delivered(about, A, A.sends_v6(&ip.with(payload)), B, B.receives(IPV6, &out))
}

#[test]
fn icmp_errors_about_packets_of_the_receiver_to_the_sender_are_delivered() {
    let (ip, ip6) = (Ipv4 { protocol: ICMP, ..v4(A, B) }, Ipv6 { next_header: ICMPV6, ..v6_of(A, B) });
    let quote = Ipv4 { options: vec![1; 8], ..v4(B, A) }.with(&udp(1, 2, b""));
    let quote6 = v6_of(B, A).with(&udp(1, 2, b""));
    let mut rows = Vec::new();
    for kind in [3, 4, 5, 11, 12] {
        rows.push(delivered("an error", &ip, &icmp_error(kind, &quote)));
    }
    for kind in [1, 2, 3, 4, 100, 127] {
        rows.push(delivered_v6("an error of IPv6", &ip6, &icmp_error(kind, &quote6)));
    }
    // No errors: what follows is no quote.
    rows.push(delivered("an echo", &ip, &icmp_error(8, b"no quote")));
    rows.push(delivered_v6("an echo of IPv6", &ip6, &icmp_error(128, b"no quote")));
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn forged_icmp_errors_are_dropped() {
    let (ip, ip6) = (Ipv4 { protocol: ICMP, ..v4(A, B) }, Ipv6 { next_header: ICMPV6, ..v6_of(A, B) });
    let dropped = |about, packet| Row::dropped(about, A.ifindex, packet, DropReason::ForgedIcmp);
    let payload = tcp(443, 40000, b"");
    let quotes = [
        ("about a connection with another pod", v4(B, ONLY_V4).with(&payload)),
        ("about a connection with the world", Ipv4 { destination: FAR_V4, ..v4(B, A) }.with(&payload)),
        ("about a packet of its own", v4(A, B).with(&payload)),
        ("about a packet of another pod", v4(ONLY_V4, A).with(&payload)),
        ("with a quote that is cut off", cut(&v4(B, A).with(&payload), 19)),
        ("without a quote", Vec::new()),
    ];
    let quotes6 = [
        (
            "IPv6, about a connection with the world",
            Ipv6 { destination: FAR_V6, ..v6_of(B, A) }.with(&payload),
        ),
        ("IPv6, about a packet of its own", v6_of(A, B).with(&payload)),
        ("IPv6, about a packet from far away", Ipv6 { source: FAR_V6, ..v6_of(B, A) }.with(&payload)),
        ("IPv6, with a quote that is cut off", cut(&v6_of(B, A).with(&payload), 39)),
        ("IPv6, without a quote", Vec::new()),
    ];
    let mut rows = Vec::new();
    for (about, quote) in &quotes {
        for kind in [3, 4, 5, 11, 12] {
            rows.push(dropped(about, A.sends_v4(&ip.with(&icmp_error(kind, quote)))));
        }
        let with_options = Ipv4 { options: vec![1; 8], ..ip.clone() };
        rows.push(dropped(about, A.sends_v4(&with_options.with(&icmp_error(3, quote)))));
    }
    for (about, quote) in &quotes6 {
        for kind in [1, 2, 3, 4, 127] {
            rows.push(dropped(about, A.sends_v6(&ip6.with(&icmp_error(kind, quote)))));
        }
        let behind = Ipv6 { next_header: DESTINATION_OPTIONS, ..ip6.clone() };
        rows.push(dropped(about, A.sends_v6(&behind.with(&extension(ICMPV6, &icmp_error(1, quote))))));
    }
    // The quote could be in another fragment.
    let error = icmp_error(3, &v4(B, A).with(&payload));
    let first = Ipv4 { fragment: Ipv4::MORE_FRAGMENTS, ..ip };
    rows.push(dropped("in fragments", A.sends_v4(&first.with(&error))));
    let error = icmp_error(1, &v6_of(B, A).with(&payload));
    let first = Ipv6 { next_header: FRAGMENT, ..ip6 };
    rows.push(dropped("in fragments of IPv6", A.sends_v6(&first.with(&fragment(ICMPV6, 0, true, &error)))));
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn packets_larger_than_the_receivers_mtu_go_to_the_stack() {
    const SMALL: u16 = 1400;
    // Sizes without the Ethernet header.
    let (ip, ip6) = (Ipv4 { protocol: TCP, ..v4(A, B) }, Ipv6 { next_header: TCP, ..v6_of(A, B) });
    let segment = |size: usize, header: usize| tcp(1, 2, &data(size - header - 20));
    let stack = |about, packet: &[u8]| Row::stack(about, A, A.sends_v4(packet));
    let stack_v6 = |about, packet: &[u8]| Row::stack(about, A, A.sends_v6(packet));
    let fragmentable = Ipv4 { fragment: 0, ..ip.clone() };
    let rows = [
        delivered("as large as the MTU", &ip, &segment(1400, 20)),
        stack("a byte more", &ip.with(&segment(1401, 20))),
        stack("a byte more, without DF", &fragmentable.with(&segment(1401, 20))),
        delivered_v6("IPv6, as large as the MTU", &ip6, &segment(1400, 40)),
        stack_v6("IPv6, a byte more", &ip6.with(&segment(1401, 40))),
        delivered("segments as large as the MTU", &ip, &segment(3000, 20)).with_gso(1360),
        stack("segments with a byte more", &ip.with(&segment(3000, 20))).with_gso(1361),
        delivered_v6("IPv6, segments as large as the MTU", &ip6, &segment(3000, 40)).with_gso(1340),
        stack_v6("IPv6, segments with a byte more", &ip6.with(&segment(3000, 40))).with_gso(1341),
    ];
    let shrink = |programs: &mut ferrule_tests::program::Programs| {
        let key = VifKey { ifindex: B.ifindex };
        let vif: VifEntry = programs.vifs.get(&key, 0)?;
        Ok(programs.vifs.insert(&key, &VifEntry { mtu: SMALL, ..vif }, 0)?)
    };
    check_on(Program::FromPod, shrink, &rows).unwrap();
}

/// The qdisc of the host interface delays what the pod receives, and conntrack sees both directions.
#[test]
fn packets_from_and_to_a_pod_whose_rate_is_limited_go_to_the_stack() {
    let payload = udp(1, 2, &data(64));
    let rows = [
        Row::stack("to the pod", A, A.sends_v4(&v4(A, B).with(&payload))),
        Row::stack("to the pod, IPv6", A, A.sends_v6(&v6_of(A, B).with(&payload))),
        Row::stack("from the pod", B, B.sends_v4(&v4(B, A).with(&payload))),
        Row::stack("from the pod, IPv6", B, B.sends_v6(&v6_of(B, A).with(&payload))),
    ];
    let limit = |programs: &mut ferrule_tests::program::Programs| {
        let key = VifKey { ifindex: B.ifindex };
        let vif: VifEntry = programs.vifs.get(&key, 0)?;
        Ok(programs.vifs.insert(&key, &VifEntry { flags: vif.flags | VifEntry::SHAPED, ..vif }, 0)?)
    };
    check_on(Program::FromPod, limit, &rows).unwrap();
}

#[test]
fn answers_of_dhcp_servers_are_dropped() {
    let dropped = |about, packet| Row::dropped(about, A.ifindex, packet, DropReason::DhcpServer);
    let (offer, reply) = (udp(67, 68, &data(240)), udp(547, 546, &data(60)));
    let out = Ipv4::new(A.v4, FAR_V4, UDP);
    let out6 = Ipv6::new(A.v6, FAR_V6, UDP);
    let link = Ipv6::new(A.link_local(), v6([0xfe80, 0, 0, 0, 0, 0, 0, 1]), UDP);
    let hidden = Ipv6 { next_header: DESTINATION_OPTIONS, ..v6_of(A, B) };
    let in_parts = Ipv6 { next_header: FRAGMENT, ..v6_of(A, B) };
    let rows = [
        dropped("an offer to a sibling", A.sends_v4(&v4(A, B).with(&offer))),
        dropped("an offer to the world", A.sends_v4(&out.with(&offer))),
        dropped("the first fragment of an offer", {
            A.sends_v4(&Ipv4 { fragment: Ipv4::MORE_FRAGMENTS, ..v4(A, B) }.with(&offer))
        }),
        dropped("an offer from another port", A.sends_v4(&v4(A, B).with(&udp(6767, 68, &data(240))))),
        dropped("from client to client", A.sends_v4(&v4(A, B).with(&udp(68, 68, &data(240))))),
        dropped("a reply from another port", A.sends_v6(&v6_of(A, B).with(&udp(1, 546, &data(60))))),
        dropped("a reply to a sibling", A.sends_v6(&v6_of(A, B).with(&reply))),
        dropped("a reply to the world", A.sends_v6(&out6.with(&reply))),
        dropped("a reply to the link", A.sends_v6(&link.with(&reply))),
        dropped("a reply behind options", A.sends_v6(&hidden.with(&extension(UDP, &reply)))),
        dropped("the first fragment of a reply", {
            A.sends_v6(&in_parts.with(&fragment(UDP, 0, true, &reply)))
        }),
        delivered("a request", &v4(A, B), &udp(68, 67, &data(240))),
        delivered("from a relay to a server", &v4(A, B), &udp(67, 67, &data(240))),
        delivered("the ports of DHCPv6, over IPv4", &v4(A, B), &reply),
        delivered_v6("a request of IPv6", &v6_of(A, B), &udp(546, 547, &data(60))),
        delivered_v6("the ports of DHCP, over IPv6", &v6_of(A, B), &offer),
        delivered("the same ports, but TCP", &Ipv4 { protocol: TCP, ..v4(A, B) }, &tcp(67, 68, b"")),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn tunnels_to_the_node_are_dropped() {
    let (mut rows, inner) = (Vec::new(), v4(B, A).with(&udp(1, 2, b"")));
    for protocol in [4, 41, 47] {
        let dropped = |about, packet| Row::dropped(about, A.ifindex, packet, DropReason::Tunnel);
        let to = |destination| Ipv4::new(A.v4, destination, protocol);
        let to6 = |destination| Ipv6::new(A.v6, destination, protocol);
        let behind = Ipv6 { next_header: DESTINATION_OPTIONS, ..to6(NODE_V6) };
        rows.extend([
            dropped("to the node", A.sends_v4(&to(NODE_V4).with(&inner))),
            dropped("to the node, IPv6", A.sends_v6(&to6(NODE_V6).with(&inner))),
            dropped("behind options", A.sends_v6(&behind.with(&extension(protocol, &inner)))),
            Row::stack("to another host", A, A.sends_v4(&to(FAR_V4).with(&inner))),
            Row::stack("to another host, IPv6", A, A.sends_v6(&to6(FAR_V6).with(&inner))),
            delivered("to a sibling", &to(B.v4), &inner),
            delivered_v6("to a sibling, IPv6", &to6(B.v6), &inner),
        ]);
    }
    check_on(Program::FromPod, add_routes, &rows).unwrap();
}

/// Without a row in `NODES`, as in a cluster of this node alone: only the kernel knows its addresses.
#[test]
fn vxlan_to_the_node_is_dropped_on_every_port_of_vxlan() {
    let dropped = |about, packet| Row::dropped(about, A.ifindex, packet, DropReason::Tunnel);
    let to = |destination| Ipv4::new(A.v4, destination, UDP);
    let to6 = |destination| Ipv6::new(A.v6, destination, UDP);
    let broadcast = [192, 0, 2, 255];
    let on_link = Ipv6::new(A.link_local(), GATEWAY_IPV6, UDP);
    let mut rows = Vec::new();
    for port in [4789, 8472] {
        let vxlan = udp(40000, port, &data(64));
        let first = Ipv4 { fragment: Ipv4::MORE_FRAGMENTS, ..to(NODE_V4) };
        let later = Ipv4 { fragment: 185, ..to(NODE_V4) };
        let behind = Ipv6 { next_header: DESTINATION_OPTIONS, ..to6(NODE_V6) };
        let part = Ipv6 { next_header: FRAGMENT, ..to6(NODE_V6) };
        rows.extend([
            dropped("to the node", A.sends_v4(&to(NODE_V4).with(&vxlan))),
            dropped("to the node's network", A.sends_v4(&to(broadcast).with(&vxlan))),
            dropped("with options", A.sends_v4(&Ipv4 { options: vec![1; 8], ..to(NODE_V4) }.with(&vxlan))),
            dropped("the first fragment", A.sends_v4(&first.with(&vxlan))),
            dropped("to the node, IPv6", A.sends_v6(&to6(NODE_V6).with(&vxlan))),
            dropped("to the pod's gateway", A.sends_v6(&on_link.with(&vxlan))),
            dropped("behind options", A.sends_v6(&behind.with(&extension(UDP, &vxlan)))),
            dropped("the first fragment, IPv6", A.sends_v6(&part.with(&fragment(UDP, 0, true, &vxlan)))),
            dropped("an atomic fragment", A.sends_v6(&part.with(&fragment(UDP, 0, false, &vxlan)))),
            Row::stack("a later fragment", A, A.sends_v4(&later.with(&vxlan))),
            Row::stack("a later one, IPv6", A, A.sends_v6(&part.with(&fragment(UDP, 8, true, &vxlan)))),
            Row::stack("from the port", A, A.sends_v4(&to(NODE_V4).with(&udp(port, 53, b"")))),
            Row::stack("to the next port", A, A.sends_v4(&to(NODE_V4).with(&udp(1, port + 1, b"")))),
            Row::stack("TCP", A, {
                A.sends_v4(&Ipv4 { protocol: TCP, ..to(NODE_V4) }.with(&tcp(1, port, b"")))
            }),
            Row::stack("to another host", A, A.sends_v4(&to(FAR_V4).with(&vxlan))),
            Row::stack("to another host, IPv6", A, A.sends_v6(&to6(FAR_V6).with(&vxlan))),
            delivered("to a sibling", &to(B.v4), &vxlan),
            delivered_v6("to a sibling, IPv6", &to6(B.v6), &vxlan),
        ]);
    }
    check_on(Program::FromPod, add_routes, &rows).unwrap();
}

#[test]
fn endpoint_of_a_pod_that_does_not_have_the_address_delivers_nothing() {
    let stale = |programs: &mut ferrule_tests::program::Programs| {
        let endpoint = agent_common::Endpoint { ifindex: B.ifindex, mac: B.mac, reserved: [0; 2] };
        programs.endpoints.insert(&agent_common::EndpointKey::ipv4(FAR_V4), &endpoint, 0)?;
        Ok(programs.endpoints.insert(&agent_common::EndpointKey::ipv6(FAR_V6), &endpoint, 0)?)
    };
    let dropped = |packet| Row::dropped("a stale entry", A.ifindex, packet, DropReason::NotForPod);
    let rows = [
        dropped(A.sends_v4(&Ipv4::new(A.v4, FAR_V4, UDP).with(&udp(1, 2, b"")))),
        dropped(A.sends_v6(&Ipv6::new(A.v6, FAR_V6, UDP).with(&udp(1, 2, b"")))),
    ];
    check_on(Program::FromPod, stale, &rows).unwrap();
}
