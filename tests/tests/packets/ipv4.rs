//! IPv4 from a pod.

use agent_common::{DropReason, GATEWAY_IPV4};
use ferrule_tests::{
    packet::{ICMP, IPV4, Ipv4, Ipv4Address, SCTP, TCP, UDP, checksum, cut, data, echo, tcp, udp},
    program::Program,
};

use crate::table::{A, B, FAR_V4, NODE_V4, ONLY_V4, ONLY_V6, Pod, Row, check};

fn to(destination: Ipv4Address) -> Ipv4 {
    Ipv4::new(A.v4, destination, UDP)
}

fn datagram() -> Vec<u8> {
    udp(40000, 53, b"question")
}

/// A packet from `A`, delivered with its TTL decremented.
fn delivered(about: &'static str, ip: &Ipv4, payload: &[u8], to: Pod) -> Row {
    let out = Ipv4 { ttl: ip.ttl - 1, ..ip.clone() };
    Row::delivered(about, A, A.sends_v4(&ip.with(payload)), to, to.receives(IPV4, &out.with(payload)))
}

#[test]
fn spoofed_sources_are_dropped() {
    let spoofed = |about, source| {
        // To a sibling, and to the Internet.
        [B.v4, FAR_V4].map(|destination| {
            let packet = A.sends_v4(&Ipv4::new(source, destination, UDP).with(&datagram()));
            Row::dropped(about, A.ifindex, packet, DropReason::SpoofedIpv4)
        })
    };
    let [a, b, c, d] = A.v4;
    let rows = [
        spoofed("from the sibling", B.v4),
        spoofed("from the gateway", GATEWAY_IPV4),
        spoofed("from the node", NODE_V4),
        spoofed("from 0.0.0.0, as a DHCP client does", [0; 4]),
        spoofed("from 127.0.0.1", [127, 0, 0, 1]),
        spoofed("from the broadcast address", [255; 4]),
        spoofed("from a multicast group", [224, 0, 0, 1]),
        spoofed("from outside the cluster", [198, 51, 100, 7]),
        spoofed("from its own address, bytes swapped", [d, c, b, a]),
        spoofed("from its own address but the last bit", [a, b, c, d ^ 1]),
        spoofed("from its own address but the first bit", [a ^ 0x80, b, c, d]),
        spoofed("from its network", [a, b, c, 0]),
    ];
    let rows = rows.into_iter().flatten().chain([
        Row::dropped(
            "a pod without IPv4, from a sibling",
            ONLY_V6.ifindex,
            ONLY_V6.sends_v4(&Ipv4::new(A.v4, B.v4, UDP).with(&datagram())),
            DropReason::SpoofedIpv4,
        ),
        // The address in its entry is zeros, which must not match.
        Row::dropped(
            "a pod without IPv4, from 0.0.0.0",
            ONLY_V6.ifindex,
            ONLY_V6.sends_v4(&Ipv4::new([0; 4], B.v4, UDP).with(&datagram())),
            DropReason::SpoofedIpv4,
        ),
        Row::dropped(
            "a fragment other than the first, from the sibling",
            A.ifindex,
            A.sends_v4(&Ipv4 { source: B.v4, fragment: 185, ..to(FAR_V4) }.with(&data(64))),
            DropReason::SpoofedIpv4,
        ),
        Row::dropped(
            "with options, from the sibling",
            A.ifindex,
            A.sends_v4(&Ipv4 { source: B.v4, options: vec![1; 4], ..to(FAR_V4) }.with(&datagram())),
            DropReason::SpoofedIpv4,
        ),
        Row::dropped(
            "TTL 1, from the sibling",
            A.ifindex,
            A.sends_v4(&Ipv4 { source: B.v4, ttl: 1, ..to(FAR_V4) }.with(&datagram())),
            DropReason::SpoofedIpv4,
        ),
    ]);
    check(Program::FromPod, &rows.collect::<Vec<_>>()).unwrap();
}

#[test]
fn packets_to_pods_of_the_node_are_delivered() {
    let to_b = |protocol| Ipv4::new(A.v4, B.v4, protocol);
    let rows = [
        delivered("UDP", &to_b(UDP), &datagram(), B),
        delivered("TCP", &to_b(TCP), &tcp(40000, 80, b""), B),
        delivered("ICMP", &to_b(ICMP), &echo(b"ping"), B),
        delivered("SCTP", &to_b(SCTP), &data(32), B),
        delivered("an experimental protocol", &to_b(253), &data(8), B),
        delivered("without payload", &to_b(UDP), &[], B),
        delivered("1500 bytes", &to_b(TCP), &tcp(40000, 80, &data(1460)), B),
        delivered("with class of service", &Ipv4 { tos: 0xb9, ..to_b(UDP) }, &datagram(), B),
        delivered("TTL 255", &Ipv4 { ttl: 255, ..to_b(UDP) }, &datagram(), B),
        delivered("TTL 2", &Ipv4 { ttl: 2, ..to_b(UDP) }, &datagram(), B),
        delivered("to a pod with IPv4 only", &to(ONLY_V4.v4), &datagram(), ONLY_V4),
        delivered("to itself", &to(A.v4), &datagram(), A),
        Row::delivered(
            "from a pod with IPv4 only",
            ONLY_V4,
            ONLY_V4.sends_v4(&Ipv4::new(ONLY_V4.v4, B.v4, UDP).with(&datagram())),
            B,
            B.receives(IPV4, &Ipv4 { ttl: 63, ..Ipv4::new(ONLY_V4.v4, B.v4, UDP) }.with(&datagram())),
        ),
        Row::delivered(
            "padded behind its length",
            A,
            [A.sends_v4(&to(B.v4).with(b"x")), vec![0; 25]].concat(),
            B,
            [B.receives(IPV4, &Ipv4 { ttl: 63, ..to(B.v4) }.with(b"x")), vec![0; 25]].concat(),
        ),
        delivered("GSO", &to_b(TCP), &tcp(1, 2, &data(2800)), B).with_gso(1400),
        delivered(
            "GSO over 64 KiB, length 0",
            &Ipv4 { total_len: Some(0), ..to_b(TCP) },
            &tcp(1, 2, &data(2800)),
            B,
        )
        .with_gso(1400),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn other_packets_go_to_the_stack_unchanged() {
    let stack = |about, ip: Ipv4| Row::stack(about, A, A.sends_v4(&ip.with(&datagram())));
    let more = Ipv4::MORE_FRAGMENTS;
    let rows = [
        stack("to a pod, first fragment", Ipv4 { fragment: more, ..to(B.v4) }),
        stack("to a pod, middle fragment", Ipv4 { fragment: more | 1, ..to(B.v4) }),
        stack("to a pod, last fragment", Ipv4 { fragment: 185, ..to(B.v4) }),
        stack("to a pod, last fragment of the largest packet", Ipv4 { fragment: 0x1000, ..to(B.v4) }),
        stack("to a pod, a fragment with DF", Ipv4 { fragment: 0x4001, ..to(B.v4) }),
        stack("to itself, first fragment", Ipv4 { fragment: more, ..to(A.v4) }),
        stack("to the Internet, first fragment", Ipv4 { fragment: more, ..to(FAR_V4) }),
        stack("to the gateway", to(GATEWAY_IPV4)),
        stack("to the node", to(NODE_V4)),
        stack("to the Internet", to(FAR_V4)),
        stack("to an unused address of the pods' range", to([10, 244, 0, 200])),
        stack("to the pods' network", to([10, 244, 0, 0])),
        stack("to a link-local address", to([169, 254, 169, 254])),
        stack("to a pod, TTL 1", Ipv4 { ttl: 1, ..to(B.v4) }),
        stack("to a pod, TTL 0", Ipv4 { ttl: 0, ..to(B.v4) }),
        stack("to the Internet, TTL 1", Ipv4 { ttl: 1, ..to(FAR_V4) }),
        stack("to a pod, with an option", Ipv4 { options: vec![1, 1, 1, 0], ..to(B.v4) }),
        stack(
            "to a pod, with a record route",
            Ipv4 { options: [&[7, 7, 4], [0; 5].as_slice()].concat(), ..to(B.v4) },
        ),
        stack("to a pod, with 40 bytes of options", Ipv4 { options: vec![1; 40], ..to(B.v4) }),
        stack("to a pod, source-routed by way of the node", {
            let options = [&[131, 7, 4], NODE_V4.as_slice(), &[0]].concat();
            Ipv4 { options, ..to(B.v4) }
        }),
        stack("to the Internet, with a wrong checksum", Ipv4 { checksum: Some(0xdead), ..to(FAR_V4) }),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn martian_and_multicast_destinations_are_dropped() {
    let dropped = |about, destination, reason| {
        Row::dropped(about, A.ifindex, A.sends_v4(&to(destination).with(&datagram())), reason)
    };
    let rows = [
        dropped("to 0.0.0.0", [0; 4], DropReason::Martian),
        dropped("to 0.1.2.3", [0, 1, 2, 3], DropReason::Martian),
        dropped("to 127.0.0.1", [127, 0, 0, 1], DropReason::Martian),
        dropped("to 127.255.255.254", [127, 255, 255, 254], DropReason::Martian),
        dropped("to all systems", [224, 0, 0, 1], DropReason::Multicast),
        dropped("to mDNS", [224, 0, 0, 251], DropReason::Multicast),
        dropped("to an administrative scope", [239, 1, 2, 3], DropReason::Multicast),
        dropped("to a reserved class", [240, 0, 0, 1], DropReason::Multicast),
        dropped("to the broadcast address", [255; 4], DropReason::Multicast),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn contradictory_headers_are_malformed() {
    let len = 20 + datagram().len() as u16;
    // The destination does not matter.
    let odd = |about, ip: Ipv4| {
        [B.v4, FAR_V4].map(|destination| {
            let packet = A.sends_v4(&Ipv4 { destination, ..ip.clone() }.with(&datagram()));
            Row::dropped(about, A.ifindex, packet, DropReason::Malformed)
        })
    };
    let mut rows: Vec<Row> = [
        odd("version 6", Ipv4 { version: 6, ..to(B.v4) }),
        odd("version 0", Ipv4 { version: 0, ..to(B.v4) }),
        odd("version 5, header length as usual", Ipv4 { version: 5, ..to(B.v4) }),
        odd("no header length", Ipv4 { ihl: Some(0), ..to(B.v4) }),
        odd("header length 4", Ipv4 { ihl: Some(4), ..to(B.v4) }),
        odd("header longer than the packet", Ipv4 { ihl: Some(15), total_len: Some(len), ..to(B.v4) }),
        odd("length 0 without GSO", Ipv4 { total_len: Some(0), ..to(B.v4) }),
        odd("length less than a header", Ipv4 { total_len: Some(19), ..to(B.v4) }),
        odd("length less than its header", Ipv4 { total_len: Some(23), options: vec![1; 4], ..to(B.v4) }),
        odd("length one more than the frame has", Ipv4 { total_len: Some(len + 1), ..to(B.v4) }),
        odd("length of 64 KiB", Ipv4 { total_len: Some(u16::MAX), ..to(B.v4) }),
    ]
    .into_iter()
    .flatten()
    .collect();
    let valid = to(B.v4);
    assert_eq!(checksum(&[&valid.with(&[])]), 0, "the checksum over a valid header is zero");
    // A router drops them (RFC 1812, 5.2.2).
    rows.extend([0, 0xffff, 0xdead].map(|sum| {
        let ip = Ipv4 { checksum: Some(sum), ..valid.clone() };
        Row::dropped(
            "to a pod, with a wrong checksum",
            A.ifindex,
            A.sends_v4(&ip.with(&datagram())),
            DropReason::Malformed,
        )
    }));
    let whole = A.sends_v4(&valid.with(&datagram()));
    rows.extend(
        (34..whole.len())
            .map(|len| Row::dropped("truncated payload", A.ifindex, cut(&whole, len), DropReason::Malformed)),
    );
    check(Program::FromPod, &rows).unwrap();
}
