//! IPv6 from a pod, other than neighbour discovery.

use agent_common::{DropReason, GATEWAY_IPV6, GATEWAY_MAC};
use ferrule_tests::{
    packet::{
        DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMPV6, IPV6, Ipv6, Ipv6Address, MLD_REPORT, ROUTING,
        SCTP, TCP, UDP, cut, data, extension, fragment, frame, tcp, udp,
    },
    program::Program,
};

use crate::table::{A, B, FAR_V6, NODE_V6, ONLY_V4, ONLY_V6, Pod, Row, check, v6};

const ALL_NODES: Ipv6Address = v6([0xff02, 0, 0, 0, 0, 0, 0, 1]);
const LOOPBACK: Ipv6Address = v6([0, 0, 0, 0, 0, 0, 0, 1]);
const ECHO: [u8; 8] = [128, 0, 0, 0, 0, 7, 0, 1];

fn to(destination: Ipv6Address) -> Ipv6 {
    Ipv6::new(A.v6, destination, UDP)
}

fn datagram() -> Vec<u8> {
    udp(40000, 53, b"question")
}

/// The IPv4-mapped address, which is the key of an IPv4 address in `ENDPOINTS`.
fn mapped([a, b, c, d]: [u8; 4]) -> Ipv6Address {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

fn delivered(about: &'static str, ip: &Ipv6, payload: &[u8], to: Pod) -> Row {
    let out = Ipv6 { hop_limit: ip.hop_limit - 1, ..ip.clone() };
    Row::delivered(about, A, A.sends_v6(&ip.with(payload)), to, to.receives(IPV6, &out.with(payload)))
}

#[test]
fn spoofed_sources_are_dropped() {
    let spoofed = |about, source| {
        [B.v6, FAR_V6].map(|destination| {
            let packet = A.sends_v6(&Ipv6::new(source, destination, UDP).with(&datagram()));
            Row::dropped(about, A.ifindex, packet, DropReason::SpoofedIpv6)
        })
    };
    let one = |about, from: Pod, ip: Ipv6, payload: &[u8]| {
        Row::dropped(about, from.ifindex, from.sends_v6(&ip.with(payload)), DropReason::SpoofedIpv6)
    };
    let rows = [
        spoofed("from the sibling", B.v6),
        spoofed("from the gateway", GATEWAY_IPV6),
        spoofed("from the node", NODE_V6),
        spoofed("from ::", [0; 16]),
        spoofed("from ::1", LOOPBACK),
        spoofed("from a multicast group", ALL_NODES),
        spoofed("from outside the cluster", v6([0x2001, 0xdb8, 1, 2, 3, 4, 5, 6])),
        spoofed("from its own IPv4 address, mapped", mapped(A.v4)),
        spoofed("from the sibling's link-local address", B.link_local()),
        // A link-local source reaches its link only, where only the gateway is.
        spoofed("from its own link-local address to a global one", A.link_local()),
    ];
    let others = [
        one(
            "from the sibling's link-local address to the gateway",
            A,
            Ipv6::new(B.link_local(), GATEWAY_IPV6, UDP),
            &datagram(),
        ),
        one("a pod without IPv6, from a sibling", ONLY_V4, Ipv6::new(A.v6, B.v6, UDP), &datagram()),
        // The address in its entry is zeros, which must not match.
        one("a pod without IPv6, from ::", ONLY_V4, Ipv6::new([0; 16], B.v6, UDP), &datagram()),
        one(
            "from the sibling, behind an extension header",
            A,
            Ipv6 { source: B.v6, next_header: HOP_BY_HOP, ..to(FAR_V6) },
            &extension(UDP, &datagram()),
        ),
        one(
            "from the sibling, a fragment other than the first",
            A,
            Ipv6 { source: B.v6, next_header: FRAGMENT, ..to(FAR_V6) },
            &fragment(UDP, 185, false, &data(16)),
        ),
        one(
            "from the sibling, hop limit 1",
            A,
            Ipv6 { source: B.v6, hop_limit: 1, ..to(FAR_V6) },
            &datagram(),
        ),
        one("from the sibling, a ping", A, Ipv6 { source: B.v6, next_header: ICMPV6, ..to(FAR_V6) }, &ECHO),
    ];
    // Every single bit counts.
    let bits = (0..128).map(|bit| {
        let mut source = A.v6;
        if let Some(byte) = source.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        one("from its own address but one bit", A, Ipv6 { source, ..to(FAR_V6) }, &datagram())
    });
    let bits_of_link_local = (0..128).map(|bit| {
        let mut source = A.link_local();
        if let Some(byte) = source.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        one(
            "from its own link-local address but one bit",
            A,
            Ipv6 { source, ..to(GATEWAY_IPV6) },
            &datagram(),
        )
    });
    let rows = rows.into_iter().flatten().chain(others).chain(bits).chain(bits_of_link_local);
    check(Program::FromPod, &rows.collect::<Vec<_>>()).unwrap();
}

#[test]
fn packets_to_pods_of_the_node_are_delivered() {
    let to_b = |next_header| Ipv6::new(A.v6, B.v6, next_header);
    let ping = to_b(ICMPV6).sealed(&ECHO);
    let rows = [
        delivered("UDP", &to_b(UDP), &datagram(), B),
        delivered("TCP", &to_b(TCP), &tcp(40000, 80, b""), B),
        delivered("ICMPv6", &to_b(ICMPV6), &ping, B),
        delivered("SCTP", &to_b(SCTP), &data(32), B),
        delivered("no next header", &to_b(59), &[], B),
        delivered("1500 bytes", &to_b(TCP), &tcp(40000, 80, &data(1440)), B),
        delivered(
            "with class and flow label",
            &Ipv6 { class_flow: 0x0b9_54321, ..to_b(UDP) },
            &datagram(),
            B,
        ),
        delivered("destination options", &to_b(DESTINATION_OPTIONS), &extension(UDP, &datagram()), B),
        delivered("routing header", &to_b(ROUTING), &extension(UDP, &datagram()), B),
        delivered(
            "hop-by-hop and destination options",
            &to_b(HOP_BY_HOP),
            &extension(DESTINATION_OPTIONS, &extension(UDP, &datagram())),
            B,
        ),
        delivered("hop limit 255", &Ipv6 { hop_limit: 255, ..to_b(UDP) }, &datagram(), B),
        delivered("hop limit 2", &Ipv6 { hop_limit: 2, ..to_b(UDP) }, &datagram(), B),
        delivered("to a pod with IPv6 only", &to(ONLY_V6.v6), &datagram(), ONLY_V6),
        delivered("to itself", &to(A.v6), &datagram(), A),
        Row::delivered(
            "from a pod with IPv6 only",
            ONLY_V6,
            ONLY_V6.sends_v6(&Ipv6::new(ONLY_V6.v6, B.v6, UDP).with(&datagram())),
            B,
            B.receives(IPV6, &Ipv6 { hop_limit: 63, ..Ipv6::new(ONLY_V6.v6, B.v6, UDP) }.with(&datagram())),
        ),
        delivered("padded behind its length", &Ipv6 { payload_len: Some(16), ..to_b(UDP) }, &data(40), B),
        delivered("GSO", &to_b(TCP), &tcp(1, 2, &data(2800)), B).with_gso(1400),
        delivered(
            "GSO over 64 KiB, length 0",
            &Ipv6 { payload_len: Some(0), ..to_b(TCP) },
            &tcp(1, 2, &data(2800)),
            B,
        )
        .with_gso(1400),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn other_packets_go_to_the_stack_unchanged() {
    let stack = |about, ip: Ipv6| Row::stack(about, A, A.sends_v6(&ip.with(&datagram())));
    let behind = |about, next_header, payload: Vec<u8>| {
        Row::stack(about, A, A.sends_v6(&Ipv6::new(A.v6, B.v6, next_header).with(&payload)))
    };
    let rows = [
        behind("to a pod, first fragment", FRAGMENT, fragment(UDP, 0, true, &udp(1, 2, &data(1432)))),
        behind("to a pod, middle fragment", FRAGMENT, fragment(TCP, 1, true, &data(24))),
        behind("to a pod, last fragment", FRAGMENT, fragment(UDP, 180, false, &data(40))),
        behind("to a pod, atomic fragment", FRAGMENT, fragment(UDP, 0, false, &datagram())),
        behind(
            "to a pod, a fragment behind options",
            DESTINATION_OPTIONS,
            extension(FRAGMENT, &fragment(UDP, 180, false, &data(40))),
        ),
        stack("to the gateway", to(GATEWAY_IPV6)),
        stack(
            "to the gateway, from its link-local address",
            Ipv6 { source: A.link_local(), ..to(GATEWAY_IPV6) },
        ),
        stack("to the node", to(NODE_V6)),
        stack("to the Internet", to(FAR_V6)),
        stack("to an unused address of the pods' range", to(v6([0xfd00, 0x10, 0x244, 0, 0, 0, 0, 200]))),
        stack("to the sibling's link-local address", to(B.link_local())),
        stack("to a pod, hop limit 1", Ipv6 { hop_limit: 1, ..to(B.v6) }),
        stack("to a pod, hop limit 0", Ipv6 { hop_limit: 0, ..to(B.v6) }),
        stack("to the Internet, hop limit 1", Ipv6 { hop_limit: 1, ..to(FAR_V6) }),
        Row::stack(
            "ping of the gateway from its link-local address",
            A,
            A.sends_v6(&Ipv6::new(A.link_local(), GATEWAY_IPV6, ICMPV6).icmp(&ECHO)),
        ),
        Row::stack(
            "ping of the gateway from a pod without IPv6",
            ONLY_V4,
            ONLY_V4.sends_v6(&Ipv6::new(ONLY_V4.link_local(), GATEWAY_IPV6, ICMPV6).icmp(&ECHO)),
        ),
        Row::stack(
            "TCP to the gateway from its link-local address",
            A,
            A.sends_v6(&Ipv6::new(A.link_local(), GATEWAY_IPV6, TCP).with(&tcp(1, 2, b""))),
        ),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn martian_and_multicast_destinations_are_dropped() {
    let dropped = |about, destination, reason| {
        Row::dropped(about, A.ifindex, A.sends_v6(&to(destination).with(&datagram())), reason)
    };
    let multicast = |about, source, mac, ip_to, next_header, payload: &[u8]| {
        let packet = frame(
            mac,
            A.mac,
            IPV6,
            &Ipv6 { hop_limit: 1, ..Ipv6::new(source, ip_to, next_header) }.with(payload),
        );
        Row::dropped(about, A.ifindex, packet, DropReason::Multicast)
    };
    let all_mld_routers = v6([0xff02, 0, 0, 0, 0, 0, 0, 0x16]);
    let report = [&[MLD_REPORT, 0, 0, 0, 0, 0, 0, 0], data(20).as_slice()].concat();
    let behind_alert = [&[ICMPV6, 0, 5, 2, 0, 0, 1, 0], report.as_slice()].concat();
    let rows = [
        dropped("to ::", [0; 16], DropReason::Martian),
        dropped("to ::1", LOOPBACK, DropReason::Martian),
        // Must not match the sibling's IPv4 endpoint.
        dropped("to the sibling's IPv4 address, mapped", mapped(B.v4), DropReason::Martian),
        dropped("to 127.0.0.1, mapped", mapped([127, 0, 0, 1]), DropReason::Martian),
        dropped(
            "to the sibling's IPv4 address, compatible",
            v6([0, 0, 0, 0, 0, 0, 0x0af4, 6]),
            DropReason::Martian,
        ),
        dropped("to all nodes", ALL_NODES, DropReason::Multicast),
        dropped("to all routers", v6([0xff02, 0, 0, 0, 0, 0, 0, 2]), DropReason::Multicast),
        dropped("to a global group", v6([0xff0e, 0, 0, 0, 0, 0, 0, 0x101]), DropReason::Multicast),
        dropped("to DHCPv6 servers", v6([0xff02, 0, 0, 0, 0, 0, 1, 2]), DropReason::Multicast),
        multicast(
            "MLD report",
            A.link_local(),
            [0x33, 0x33, 0, 0, 0, 0x16],
            all_mld_routers,
            HOP_BY_HOP,
            &behind_alert,
        ),
        multicast(
            "MLD report before the pod has an address",
            [0; 16],
            [0x33, 0x33, 0, 0, 0, 0x16],
            all_mld_routers,
            HOP_BY_HOP,
            &behind_alert,
        ),
        multicast(
            "MLD report without the router alert option",
            A.link_local(),
            GATEWAY_MAC,
            all_mld_routers,
            ICMPV6,
            &report,
        ),
        multicast("to all nodes from a sibling", B.v6, [0x33, 0x33, 0, 0, 0, 1], ALL_NODES, UDP, &datagram()),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn other_transition_addresses_go_to_the_stack() {
    let stack = |about, groups| Row::stack(about, A, A.sends_v6(&to(v6(groups)).with(&datagram())));
    let rows = [
        stack("NAT64", [0x64, 0xff9b, 0, 0, 0, 0, 0x0af4, 6]),
        stack("IPv4-translated", [0, 0, 0, 0, 0xffff, 0, 0x0af4, 6]),
        stack("6to4", [0x2002, 0x0af4, 6, 0, 0, 0, 0, 1]),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn what_hides_behind_more_than_four_extension_headers_is_dropped() {
    // The node would look behind any number of them.
    let behind = |count: usize, next_header| {
        let mut payload = datagram();
        let mut next = next_header;
        for _ in 0..count {
            (payload, next) = (extension(next, &payload), DESTINATION_OPTIONS);
        }
        payload
    };
    let to_b = Ipv6::new(A.v6, B.v6, DESTINATION_OPTIONS);
    let mut rows = vec![delivered("four", &to_b, &behind(4, UDP), B)];
    for (about, next_header) in [("UDP", UDP), ("an ICMP error", ICMPV6), ("GRE", 47), ("IPv6 in IPv6", 41)] {
        for destination in [B.v6, FAR_V6] {
            let packet = Ipv6 { destination, ..to_b.clone() }.with(&behind(5, next_header));
            rows.push(Row::dropped(about, A.ifindex, A.sends_v6(&packet), DropReason::Malformed));
        }
    }
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn extension_headers_from_a_link_local_source_are_dropped() {
    // A router advertisement could hide behind one, and a pod needs none to reach its gateway.
    let hidden = |about, next_header, payload: &[u8]| {
        let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(A.link_local(), GATEWAY_IPV6, next_header) };
        Row::dropped(about, A.ifindex, A.sends_v6(&ip.with(payload)), DropReason::SpoofedNd)
    };
    let rows = [
        hidden("hop-by-hop", HOP_BY_HOP, &extension(UDP, &datagram())),
        hidden("routing", ROUTING, &extension(UDP, &datagram())),
        hidden("destination options", DESTINATION_OPTIONS, &extension(UDP, &datagram())),
        hidden("fragment", FRAGMENT, &fragment(UDP, 0, true, &datagram())),
        hidden("fragment other than the first", FRAGMENT, &fragment(UDP, 8, false, &data(8))),
        hidden("authentication", 51, &extension(UDP, &datagram())),
        hidden("encapsulating payload", 50, &data(32)),
        hidden("mobility", 135, &extension(UDP, &datagram())),
        hidden("IPv6 in IPv6", 41, &to(B.v6).with(&datagram())),
        hidden("no next header", 59, &[]),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn contradictory_headers_are_malformed() {
    let len = datagram().len() as u16;
    let odd = |about, ip: Ipv6| {
        [B.v6, FAR_V6].map(|destination| {
            let packet = A.sends_v6(&Ipv6 { destination, ..ip.clone() }.with(&datagram()));
            Row::dropped(about, A.ifindex, packet, DropReason::Malformed)
        })
    };
    let mut rows: Vec<Row> = [
        odd("version 4", Ipv6 { version: 4, ..to(B.v6) }),
        odd("version 0", Ipv6 { version: 0, ..to(B.v6) }),
        odd("version 7", Ipv6 { version: 7, ..to(B.v6) }),
        odd("payload one longer than the frame has", Ipv6 { payload_len: Some(len + 1), ..to(B.v6) }),
        odd("payload of 64 KiB", Ipv6 { payload_len: Some(u16::MAX), ..to(B.v6) }),
    ]
    .into_iter()
    .flatten()
    .collect();
    let whole = A.sends_v6(&to(B.v6).with(&datagram()));
    rows.extend(
        (54..whole.len())
            .map(|len| Row::dropped("truncated payload", A.ifindex, cut(&whole, len), DropReason::Malformed)),
    );
    rows.push(Row::dropped(
        "ICMPv6 without a type",
        A.ifindex,
        A.sends_v6(&Ipv6::new(A.v6, B.v6, ICMPV6).with(&[])),
        DropReason::Malformed,
    ));
    check(Program::FromPod, &rows).unwrap();
}
