//! The parser, compared with packets that `etherparse` builds.

use std::net::IpAddr;

use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6FragmentHeader,
    Ipv6Header, Ipv6RawExtHeader, PacketBuilder, SlicedPacket, TransportSlice,
};
use ferrule_vif::Mac;
use proptest::prelude::*;

use super::{MACS, datagram, syn};
use crate::monitor::{
    frame::parse,
    packet::{Icmp, Ip, Macs, Network, Packet, Ports, TcpFlags, Transport},
};

const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [10, 0, 0, 2];
const A6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const B6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
const PORTS: Ports = Ports { source: 40000, destination: 80 };

fn ip(frame: &[u8]) -> Ip {
    *parse(frame).ip().unwrap()
}

/// A frame with IP headers of any kind, and TCP behind them.
fn with_headers(headers: IpHeaders) -> Vec<u8> {
    let mut frame = Vec::new();
    let packet = PacketBuilder::ethernet2(MACS.0, MACS.1).ip(headers);
    packet.tcp(40000, 80, 1, 1000).ack(9).write(&mut frame, b"payload").unwrap();
    frame
}

fn v6_with(extensions: Ipv6Extensions) -> Vec<u8> {
    let header = Ipv6Header { source: A6, destination: B6, hop_limit: 64, ..Ipv6Header::default() };
    with_headers(IpHeaders::Ipv6(header, extensions))
}

#[test]
fn tcp_over_ipv4_has_addresses_ports_and_flags() {
    let expected = Packet {
        macs: Some(Macs { source: Mac(MACS.0), destination: Mac(MACS.1) }),
        vlan: None,
        network: Network::Ip(Ip {
            source: A.into(),
            destination: B.into(),
            protocol: 6,
            is_fragment: false,
            transport: Some(Transport::Tcp(PORTS, Some(TcpFlags(0b10)))),
        }),
    };
    assert_eq!(parse(&syn(A, B)), expected);
    assert_eq!(TcpFlags(0b1001_0011).names().collect::<Vec<_>>(), ["FIN", "SYN", "ACK", "CWR"]);
}

#[test]
fn each_byte_that_is_cut_off_takes_only_what_it_says() {
    let frame = syn(A, B);
    let known = |bytes: usize| {
        let packet = parse(&frame[..bytes]);
        let ip = packet.ip().is_some();
        let flags = match packet.transport() {
            None => "no ports",
            Some(Transport::Tcp(PORTS, None)) => "ports",
            Some(Transport::Tcp(PORTS, Some(TcpFlags(2)))) => "flags",
            other => panic!("{other:?}"),
        };
        (packet.macs.is_some(), packet.network == Network::Unknown, ip, flags)
    };
    assert_eq!(known(11), (false, true, false, "no ports"));
    assert_eq!(known(13), (true, true, false, "no ports"));
    assert_eq!(known(33), (true, false, false, "no ports"));
    assert_eq!(known(34), (true, false, true, "no ports"));
    assert_eq!(known(37), (true, false, true, "no ports"));
    assert_eq!(known(38), (true, false, true, "ports"));
    assert_eq!(known(47), (true, false, true, "ports"));
    assert_eq!(known(48), (true, false, true, "flags"));
}

#[test]
fn ipv4_options_are_skipped_and_padding_is_no_header() {
    let mut header = Ipv4Header::new(0, 64, IpNumber::TCP, A, B).unwrap();
    header.options = [1, 1, 1, 1, 1, 1, 1, 1].into();
    let frame = with_headers(IpHeaders::Ipv4(header, Ipv4Extensions::default()));
    assert_eq!(ip(&frame).transport, Some(Transport::Tcp(PORTS, Some(TcpFlags(0b1_0000)))));
    // A packet of 22 bytes in a frame of 60.
    let mut padded = syn(A, B);
    padded[16..18].copy_from_slice(&22_u16.to_be_bytes());
    assert_eq!(ip(&padded).transport, None);
    // A header of 12 bytes, and one that is longer than the packet.
    for ihl in [3, 15] {
        let mut wrong = syn(A, B);
        wrong[14] = 0x40 | ihl;
        assert_eq!((ip(&wrong).source, ip(&wrong).transport), (A.into(), None), "{ihl}");
    }
}

#[test]
fn only_the_first_fragment_has_ports() {
    let fragment = |offset: u16, more| {
        let mut header = Ipv4Header::new(0, 64, IpNumber::TCP, A, B).unwrap();
        header.fragment_offset = IpFragOffset::try_new(offset).unwrap();
        header.more_fragments = more;
        ip(&with_headers(IpHeaders::Ipv4(header, Ipv4Extensions::default())))
    };
    let shown = |ip: Ip| (ip.is_fragment, ip.transport.is_some(), ip.protocol);
    assert_eq!(shown(fragment(0, false)), (false, true, 6));
    assert_eq!(shown(fragment(0, true)), (true, true, 6));
    assert_eq!(shown(fragment(185, true)), (true, false, 6));
    assert_eq!(shown(fragment(185, false)), (true, false, 6));

    let fragment6 = |offset: u16, more| {
        let offset = IpFragOffset::try_new(offset).unwrap();
        let fragment = Ipv6FragmentHeader::new(IpNumber::TCP, offset, more, 7);
        ip(&v6_with(Ipv6Extensions { fragment: Some(fragment), ..Ipv6Extensions::default() }))
    };
    assert_eq!(shown(fragment6(0, true)), (true, true, 6));
    assert_eq!(shown(fragment6(185, true)), (true, false, 6));
}

#[test]
fn ipv6_extension_headers_are_followed() {
    let options = Ipv6RawExtHeader::new_raw(IpNumber::TCP, &[0; 14]).unwrap();
    let extensions = Ipv6Extensions {
        hop_by_hop_options: Some(options.clone()),
        destination_options: Some(options),
        ..Ipv6Extensions::default()
    };
    let frame = v6_with(extensions);
    let whole = ip(&frame);
    assert_eq!((whole.source, whole.destination), (IpAddr::from(A6), IpAddr::from(B6)));
    assert_eq!((whole.protocol, whole.is_fragment), (6, false));
    assert_eq!(whole.transport, Some(Transport::Tcp(PORTS, Some(TcpFlags(0b1_0000)))));
    // Cut off in the destination options: their own number is all that is known.
    let cut = ip(&frame[..14 + 40 + 16 + 5]);
    assert_eq!((cut.protocol, cut.transport), (60, None));
}

#[test]
fn udp_sctp_and_icmp_are_distinguished() {
    assert_eq!(ip(&datagram(A, B)).transport, Some(Transport::Udp(Ports { source: 40000, destination: 53 })));
    let mut sctp = syn(A, B);
    sctp[23] = 132;
    assert_eq!(ip(&sctp).transport, Some(Transport::Sctp(PORTS)));
    let mut gre = syn(A, B);
    gre[23] = 47;
    assert_eq!((ip(&gre).protocol, ip(&gre).transport), (47, None));
    let mut echo = Vec::new();
    let packet = PacketBuilder::ethernet2(MACS.0, MACS.1).ipv4(A, B, 64);
    packet.icmpv4_echo_request(1, 2).write(&mut echo, b"").unwrap();
    assert_eq!(ip(&echo).transport, Some(Transport::Icmpv4(Icmp { kind: 8, code: 0 })));
    let mut echo = Vec::new();
    let packet = PacketBuilder::ethernet2(MACS.0, MACS.1).ipv6(A6, B6, 64);
    packet.icmpv6_echo_reply(1, 2).write(&mut echo, b"").unwrap();
    assert_eq!(ip(&echo).transport, Some(Transport::Icmpv6(Icmp { kind: 129, code: 0 })));
}

#[test]
fn vlan_tags_are_skipped_and_the_outer_one_is_kept() {
    let mut frame = Vec::new();
    let outer = 7.try_into().unwrap();
    let inner = 4094.try_into().unwrap();
    let packet = PacketBuilder::ethernet2(MACS.0, MACS.1).double_vlan(outer, inner).ipv4(A, B, 64);
    packet.udp(1, 2).write(&mut frame, b"").unwrap();
    let packet = parse(&frame);
    assert_eq!((packet.vlan, packet.ip().unwrap().destination), (Some(7), B.into()));
    // More tags than are read, and a tag that is cut off.
    let mut tags = frame[..12].to_vec();
    tags.extend([0x81, 0, 0, 1].repeat(4));
    let packet = parse(&tags);
    assert_eq!((packet.vlan, packet.network), (Some(1), Network::Other { ethertype: 0x8100 }));
    assert_eq!(parse(&tags[..15]).vlan, None);
}

#[test]
fn arp_has_both_ends() {
    let (sender, target) = (MACS.0, MACS.1);
    let mut frame = [target, sender].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend(sender.into_iter().chain(A).chain(target).chain(B));
    let Network::Arp(arp) = parse(&frame).network else { panic!("no ARP") };
    assert_eq!(
        (arp.operation, arp.sender, arp.target),
        (2, (Mac(sender), A.into()), (Mac(target), B.into()))
    );
    // Of another network than IPv4.
    frame[16] = 0x86;
    assert_eq!(parse(&frame).network, Network::Other { ethertype: 0x0806 });
}

#[test]
fn a_type_that_contradicts_the_version_is_no_ip() {
    let mut frame = syn(A, B);
    frame[14] = 0x65;
    assert_eq!(parse(&frame).network, Network::Other { ethertype: 0x0800 });
    frame[12..14].copy_from_slice(&[0x88, 0xcc]);
    assert_eq!(parse(&frame).network, Network::Other { ethertype: 0x88cc });
}

proptest! {
    #[test]
    fn any_bytes_are_parsed(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        parse(&bytes);
    }

    /// Bytes behind a type that leads into a parser.
    #[test]
    fn any_bytes_behind_a_known_type_are_parsed(
        (kind, first) in prop::sample::select(vec![
            ([0x08, 0x00], 0x45), ([0x08, 0x00], 0x4f), ([0x86, 0xdd], 0x60), ([0x08, 0x06], 0), ([0x81, 0x00], 0),
        ]),
        bytes in proptest::collection::vec(prop_oneof![Just(0_u8), Just(44), Just(51), Just(60), any::<u8>()], 0..120),
    ) {
        let mut frame = [MACS.0, MACS.1].concat();
        frame.extend(kind);
        frame.push(first);
        frame.extend(bytes);
        for length in 0..=frame.len() {
            parse(&frame[..length]);
        }
    }

    /// Whatever `etherparse` accepts without doubt has the same ports here.
    #[test]
    fn a_strict_parser_finds_the_same_ports(
        ports in any::<(u16, u16)>(),
        is_tcp: bool,
        is_v6: bool,
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
        damage in proptest::option::of((14_usize..70, any::<u8>())),
    ) {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2(MACS.0, MACS.1);
        let builder = if is_v6 { builder.ipv6(A6, B6, 64) } else { builder.ipv4(A, B, 64) };
        if is_tcp {
            builder.tcp(ports.0, ports.1, 1, 1).write(&mut frame, &bytes).unwrap();
        } else {
            builder.udp(ports.0, ports.1).write(&mut frame, &bytes).unwrap();
        }
        if let Some((at, byte)) = damage && let Some(place) = frame.get_mut(at) {
            *place = byte;
        }
        if let Ok(strict) = SlicedPacket::from_ethernet(&frame) {
            let expected = match strict.transport {
                Some(TransportSlice::Tcp(tcp)) => Some((tcp.source_port(), tcp.destination_port())),
                Some(TransportSlice::Udp(udp)) => Some((udp.source_port(), udp.destination_port())),
                _ => None,
            };
            let found = parse(&frame).transport().and_then(|it| it.ports());
            if let Some(expected) = expected {
                prop_assert_eq!(found.map(|it| (it.source, it.destination)), Some(expected));
            }
        }
    }
}
