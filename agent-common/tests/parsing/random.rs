//! Random frames: the parsers agree with the decoder.
//!
//! `FERRULE_PACKETS=100000000` sets the number of frames of each test, for hours instead of a second;
//! `FERRULE_PACKETS_SEED` the seed.

use std::{
    collections::BTreeMap,
    env,
    net::{IpAddr, Ipv6Addr},
};

use agent_common::{DropReason, FlowKey};
use etherparse::UdpHeaderSlice;
use fastrand::Rng;

use crate::{
    address::Address,
    ends::Ends,
    frames,
    headers::{Ethernet, Ipv4},
    icmp,
    meta::{self, Family, Meta, Scope, Sender},
    oracle::{self, Decoded},
    packet::Packet,
    size,
};

const FRAMES: u32 = 40_000;
const SEED: u32 = 20;
/// What the programs copy into the linear data, if the frame has as much.
const PULLED: usize = 62;
const MTU: u32 = 100;

/// Runs a check with random numbers, often; each run has its own seed.
pub fn each(mut check: impl FnMut(&mut Rng)) {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u32>().unwrap());
    let seed = number("FERRULE_PACKETS_SEED").unwrap_or(SEED);
    for run in 0..number("FERRULE_PACKETS").unwrap_or(FRAMES) {
        check(&mut Rng::with_seed(u64::from(seed) << 32 | u64::from(run)));
    }
}

#[test]
fn the_parsers_agree_with_the_decoder() {
    let mut seen = BTreeMap::new();
    each(|rng| {
        let frame = frames::any(rng);
        let packet = Packet {
            linear: rng.usize(frame.len().min(PULLED)..=frame.len()),
            gso_size: if rng.u8(..10) == 0 { *rng.choice(&[1, 40, 1400, 0xffff]).unwrap() } else { 0 },
            start: *rng.choice(&[0, 50]).unwrap(),
            frame: frame.clone(),
        };
        let ethernet = packet.header::<Ethernet>(0).unwrap();
        let is_v4 = ethernet.ethertype == [8, 0];
        let ethertype = u16::from_be_bytes(ethernet.ethertype);
        let expected =
            if is_v4 { oracle::ipv4(&frame, packet.is_gso()) } else { oracle::ipv6(&frame, packet.is_gso()) };
        let parsed = Meta::parse(&packet, ethertype, Sender::Outside);
        // A packet of the host is not checked: whatever its lengths are, nothing is read behind its end.
        if let Ok(meta) = Meta::parse(&packet, ethertype, Sender::Stack) {
            uses(&packet, &meta, is_v4);
        }
        let what = match (&parsed, &expected) {
            (Ok(meta), Some(expected)) => {
                assert_eq!(decoded(&packet, meta, expected), *expected, "{frame:02x?}");
                check_transport(&packet, meta, expected);
                check_icmp(&packet, meta, expected);
                check_size(&packet, meta, expected);
                check_scope(meta, expected);
                uses(&packet, meta, is_v4);
                class(expected)
            }
            (Err(DropReason::Malformed), None) => "malformed",
            _ => unreachable!("parsed: {}, decoded {expected:?}: {frame:02x?}", parsed.is_ok()),
        };
        *seen.entry((is_v4, what)).or_insert(0_u32) += 1;
    });
    // The generator must reach every class.
    assert!(seen.len() == 10 && seen.values().all(|count| *count >= 100), "{seen:?}");
}

fn class(packet: &Decoded) -> &'static str {
    match packet {
        Decoded { offset: 1.., .. } => "later fragment",
        Decoded { is_fragment: true, .. } => "fragment",
        Decoded { has_options: false, is_extended: false, .. } => "plain",
        _ => "with options",
    }
}

/// What the parser says, in the decoder's words.
fn decoded(packet: &Packet, meta: &Meta, expected: &Decoded) -> Decoded {
    let is_v6 = meta.family == Family::Ipv6;
    Decoded {
        ends: [meta.source, meta.destination].map(|it| ip(it, meta.family)),
        protocol: meta.protocol,
        hops: meta.hops,
        payload: meta.payload,
        is_fragment: meta.is_fragment(),
        offset: u16::try_from(meta.fragment()).unwrap() & Ipv4::OFFSET,
        // Known only for what the decoder found.
        id: expected.id.map(|_| u32::from_be_bytes(meta::fragment_id(packet, meta.payload, is_v6))),
        has_options: meta.has_options(),
        is_extended: meta.is_extended(),
    }
}

fn check_transport(packet: &Packet, meta: &Meta, expected: &Decoded) {
    let bytes = packet.frame.get(expected.payload..).filter(|_| expected.offset == 0);
    let Some(bytes) = bytes.filter(|it| it.len() >= 8) else {
        assert!(meta.transport().is_none(), "{:02x?}", packet.frame);
        let flow = *Ends::of(packet, meta).flow().as_flow();
        assert_eq!((flow.low_port, flow.high_port), (0, 0), "{:02x?}", packet.frame);
        assert_eq!(Ends::of(packet, meta).tcp_header(), None, "{:02x?}", packet.frame);
        return;
    };
    // The ports of TCP and SCTP are at the same place.
    let udp = UdpHeaderSlice::from_slice(bytes).unwrap();
    let (transport, ports) = (meta.transport().unwrap(), [udp.source_port(), udp.destination_port()]);
    assert_eq!(transport.ports(), ports);
    assert_eq!((transport.icmp_type(), transport.echo_id()), (bytes[0], udp.length()));
    assert_eq!(meta.source_port(), u64::from(ports[0]));
    assert_eq!(meta.tcp_flags(packet), bytes.get(13).copied().unwrap_or(0));

    let is_echo = match expected.protocol {
        1 => matches!(bytes[0], 0 | 8),
        58 => matches!(bytes[0], 128 | 129),
        _ => false,
    };
    let ports = match expected.protocol {
        6 | 17 | 132 => ports,
        _ if is_echo => [udp.length(); 2],
        _ => [0; 2],
    };
    let mut ends = [(key(expected.ends[0]), ports[0]), (key(expected.ends[1]), ports[1])];
    ends.sort_unstable();
    let own = Ends::of(packet, meta);
    let flow = own.flow();
    let is_high = expected.ends[0] != expected.ends[1] && key(expected.ends[0]) != ends[0].0;
    assert_eq!(own.is_high(&flow), u8::from(is_high), "{:02x?}", packet.frame);
    assert_eq!(own.tcp_header(), (expected.protocol == 6).then_some(packet.start + expected.payload));
    let found: FlowKey = *flow.as_flow();
    let found_ends = [(found.low.address, found.low_port), (found.high.address, found.high_port)];
    assert_eq!((found.protocol, found_ends), (expected.protocol, ends), "{:02x?}", packet.frame);
}

/// An ICMP error passes between pods if the quoted packet went the other way.
fn check_icmp(packet: &Packet, meta: &Meta, expected: &Decoded) {
    let Some(bytes) = packet.frame.get(expected.payload..).filter(|it| it.len() >= 8) else { return };
    let is_error = match expected.protocol {
        1 => expected.ends[0].is_ipv4() && [3, 4, 5, 11, 12].contains(&bytes[0]),
        58 => expected.ends[0].is_ipv6() && bytes[0] < 128,
        _ => false,
    };
    let quoted = &bytes[8..];
    let addresses = if expected.ends[0].is_ipv4() { quoted.get(12..20) } else { quoted.get(8..40) };
    let reverse = match expected.ends {
        [IpAddr::V4(from), IpAddr::V4(to)] => [to.octets(), from.octets()].concat(),
        [IpAddr::V6(from), IpAddr::V6(to)] => [to.octets(), from.octets()].concat(),
        _ => unreachable!("two families"),
    };
    let is_genuine = !expected.is_fragment && addresses == Some(&reverse);
    let passes = expected.offset != 0 || !is_error || is_genuine;
    assert_eq!(icmp::check(packet, meta).is_ok(), passes, "{:02x?}", packet.frame);
}

fn check_size(packet: &Packet, meta: &Meta, expected: &Decoded) {
    let header = match expected.protocol {
        6 => packet.frame.get(expected.payload + 12).map_or(0, |byte| usize::from(byte >> 4) * 4),
        _ => 8,
    };
    let longest = match packet.gso_size as usize {
        0 => packet.frame.len(),
        0xffff => 0,
        size => expected.payload + header + size,
    };
    assert_eq!(size::fits(packet, meta, MTU), longest <= 14 + MTU as usize, "{:02x?}", packet.frame);
}

fn check_scope(meta: &Meta, expected: &Decoded) {
    let scope = match expected.ends[1] {
        IpAddr::V4(address) if address.octets()[0] >= 224 => Scope::Multicast,
        IpAddr::V4(address) if address.octets()[0] == 0 || address.is_loopback() => Scope::Host,
        IpAddr::V6(address) if address.is_multicast() => Scope::Multicast,
        IpAddr::V6(address) if address.to_ipv4().is_some() => Scope::Host,
        _ => Scope::Unicast,
    };
    assert!(meta.destination_scope() == scope, "{expected:?}");
}

/// Everything else that reads a packet: no result, however malformed the packet is, is a panic.
fn uses(packet: &Packet, meta: &Meta, is_v4: bool) {
    let _ = (icmp::check(packet, meta), meta.icmpv6_type(packet), meta.tcp_flags(packet), meta.is_plain());
    let _ = (
        meta::fragment_id(packet, meta.payload, !is_v4),
        size::fits(packet, meta, MTU),
        Ends::of(packet, meta).flow().hash(),
    );
}

fn ip(address: Address, family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => address.to_v4().into(),
        Family::Ipv6 => address.to_v6().into(),
    }
}

/// An address of `EndpointKey`.
fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[test]
fn addresses_are_classified_as_the_standard_library_does() {
    each(|rng| {
        let mut bytes: [u8; 16] = std::array::from_fn(|_| *rng.choice(&[0, 0, 1, 2, 0xff, 0x80]).unwrap());
        let start: &[&[u8]] =
            &[&[], &[0; 10], &[0; 12], &[0xfe, 0x80], &[0xfe, 0xc0], &[0xff, 2], &[0xff, 5]];
        let start = rng.choice(start).unwrap();
        bytes[..start.len()].copy_from_slice(start);
        let (address, known) = (Address::v6(bytes), Ipv6Addr::from(bytes));
        assert_eq!(address.is_link_local(), known.is_unicast_link_local(), "{known}");
        assert_eq!(address.is_mapped_ipv4(), known.to_ipv4_mapped().is_some(), "{known}");
        assert_eq!(address.embeds_ipv4(), known.to_ipv4().is_some(), "{known}");
        let of_link = known.is_unicast_link_local() || known.segments()[0] == 0xff02;
        assert_eq!(address.is_on_link(), of_link, "{known}");
        assert_eq!((address.to_v6(), address.first_of_v6()), (bytes, bytes[0]));
        let v4 = Address::v4([bytes[0], bytes[1], bytes[2], bytes[3]]);
        assert!(v4.is_mapped_ipv4() && v4.to_v4() == bytes[..4] && v4.first_of_v4() == bytes[0]);
    });
}
