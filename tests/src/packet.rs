//! A builder of packets, field by field.
//!
//! Lengths and checksums are correct unless a test sets them, so that a packet is wrong in one respect only:
//!
//! ```
//! use ferrule_tests::packet::{Ipv4, udp};
//!
//! let ip = Ipv4 { ttl: 1, ..Ipv4::new([10, 0, 0, 1], [10, 0, 0, 2], 17) };
//! assert_eq!(ip.with(&udp(53, 53, b"x")).len(), 20 + 8 + 1);
//! ```
//!
//! Numbers and checksums are etherparse's: nothing is shared with the programs. The headers that tests need
//! malformed are built here, because etherparse builds none that contradict themselves.

use std::{fmt::Write as _, net::IpAddr};

use etherparse::{
    EtherType, IcmpEchoHeader, Icmpv4Header, Icmpv4Type, IpFragOffset, IpNumber, Ipv6FragmentHeader,
    TcpHeader, UdpHeader, checksum::Sum16BitWords, icmpv6,
};

pub type Mac = [u8; 6];
pub type Ipv4Address = [u8; 4];
pub type Ipv6Address = [u8; 16];

pub const ARP: u16 = EtherType::ARP.0;
pub const IPV4: u16 = EtherType::IPV4.0;
pub const IPV6: u16 = EtherType::IPV6.0;
pub const VLAN: u16 = EtherType::VLAN_TAGGED_FRAME.0;
pub const QINQ: u16 = EtherType::PROVIDER_BRIDGING.0;

pub const ICMP: u8 = IpNumber::ICMP.0;
pub const TCP: u8 = IpNumber::TCP.0;
pub const UDP: u8 = IpNumber::UDP.0;
pub const SCTP: u8 = IpNumber::SCTP.0;
pub const ICMPV6: u8 = IpNumber::IPV6_ICMP.0;
pub const HOP_BY_HOP: u8 = IpNumber::IPV6_HEADER_HOP_BY_HOP.0;
pub const ROUTING: u8 = IpNumber::IPV6_ROUTE_HEADER.0;
pub const FRAGMENT: u8 = IpNumber::IPV6_FRAGMENTATION_HEADER.0;
pub const DESTINATION_OPTIONS: u8 = IpNumber::IPV6_DESTINATION_OPTIONS.0;

pub const ROUTER_SOLICITATION: u8 = icmpv6::TYPE_ROUTER_SOLICITATION;
pub const ROUTER_ADVERTISEMENT: u8 = icmpv6::TYPE_ROUTER_ADVERTISEMENT;
pub const NEIGHBOUR_SOLICITATION: u8 = icmpv6::TYPE_NEIGHBOR_SOLICITATION;
pub const NEIGHBOUR_ADVERTISEMENT: u8 = icmpv6::TYPE_NEIGHBOR_ADVERTISEMENT;
pub const REDIRECT: u8 = icmpv6::TYPE_REDIRECT_MESSAGE;
/// Version 2 (RFC 3810).
pub const MLD_REPORT: u8 = 143;
/// Source and target link-layer address options (RFC 4861, 4.6.1).
pub const SOURCE_MAC: u8 = 1;
pub const TARGET_MAC: u8 = 2;

pub const BROADCAST: Mac = [0xff; 6];

/// RFC 826.
#[derive(Debug, Clone)]
pub struct Arp {
    pub hardware: u16,
    pub protocol: u16,
    pub hardware_len: u8,
    pub protocol_len: u8,
    pub operation: u16,
    pub sender_mac: Mac,
    pub sender_ip: Ipv4Address,
    pub target_mac: Mac,
    pub target_ip: Ipv4Address,
}

/// RFC 791. `None` means the correct value.
#[derive(Debug, Clone)]
pub struct Ipv4 {
    pub version: u8,
    pub ihl: Option<u8>,
    pub tos: u8,
    pub total_len: Option<u16>,
    pub id: u16,
    /// Flags and offset.
    pub fragment: u16,
    pub ttl: u8,
    pub protocol: u8,
    pub checksum: Option<u16>,
    pub source: Ipv4Address,
    pub destination: Ipv4Address,
    /// A multiple of four bytes.
    pub options: Vec<u8>,
}

/// RFC 8200. `None` means the correct value.
#[derive(Debug, Clone)]
pub struct Ipv6 {
    pub version: u8,
    pub class_flow: u32,
    pub payload_len: Option<u16>,
    pub next_header: u8,
    pub hop_limit: u8,
    pub source: Ipv6Address,
    pub destination: Ipv6Address,
}

pub fn frame(destination: Mac, source: Mac, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&destination, &source, ethertype.to_be_bytes().as_slice(), payload].concat()
}

/// Adds VLAN tags to a frame, the outer tag first: tag protocol, and VLAN.
pub fn tagged(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let (macs, rest) = frame.split_at_checked(12).unwrap_or((frame, &[]));
    let tags = tags.iter().flat_map(|(protocol, vlan)| [protocol.to_be_bytes(), vlan.to_be_bytes()].concat());
    [macs, &tags.collect::<Vec<u8>>(), rest].concat()
}

/// The first bytes of a packet.
pub fn cut(packet: &[u8], len: usize) -> Vec<u8> {
    packet.iter().copied().take(len).collect()
}

/// A datagram without a checksum, which the programs do not read.
pub fn udp(source: u16, destination: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + data.len()).unwrap_or(u16::MAX);
    let header = UdpHeader { source_port: source, destination_port: destination, length, checksum: 0 };
    [header.to_bytes().as_slice(), data].concat()
}

/// A SYN segment without options and checksum.
pub fn tcp(source: u16, destination: u16, data: &[u8]) -> Vec<u8> {
    let header = TcpHeader { syn: true, ..TcpHeader::new(source, destination, 1, 64240) };
    [&header.to_bytes(), data].concat()
}

/// An ICMP or ICMPv6 error without a checksum, which quotes as much of a packet as fits.
pub fn icmp_error(kind: u8, about: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0], cut(about, 576 - 28).as_slice()].concat()
}

/// An ICMP echo request with the identifier 7.
pub fn echo(data: &[u8]) -> Vec<u8> {
    let echo = Icmpv4Type::EchoRequest(IcmpEchoHeader { id: 7, seq: 1 });
    [&Icmpv4Header::with_checksum(echo, data).to_bytes(), data].concat()
}

/// A hop-by-hop, routing or destination options header of eight bytes, and the payload behind it.
pub fn extension(next_header: u8, payload: &[u8]) -> Vec<u8> {
    // One option: four bytes of padding.
    [&[next_header, 0, 1, 4, 0, 0, 0, 0], payload].concat()
}

/// A fragment header, and the payload behind it; the offset is in units of eight bytes.
pub fn fragment(next_header: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let offset = IpFragOffset::try_new(offset).unwrap_or_default();
    [Ipv6FragmentHeader::new(next_header.into(), offset, more, 9).to_bytes().as_slice(), payload].concat()
}

/// A neighbour solicitation or advertisement, or the start of a redirect, with options and without a
/// checksum.
pub fn neighbour(kind: u8, target: Ipv6Address, options: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0], target.as_slice(), options].concat()
}

/// A router advertisement with a lifetime of half an hour, without options and checksum.
pub fn router_advertisement() -> Vec<u8> {
    [[ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0, 7, 8], [0; 8]].concat()
}

/// A link-layer address option of neighbour discovery.
pub fn mac_option(kind: u8, mac: Mac) -> Vec<u8> {
    [&[kind, 1], mac.as_slice()].concat()
}

/// Payload that is easy to recognise in a dump.
pub fn data(len: usize) -> Vec<u8> {
    b"ferrule ".iter().copied().cycle().take(len).collect()
}

/// Fills in the checksum over addresses, protocol and payload, at an offset in the payload.
pub fn sealed(source: IpAddr, destination: IpAddr, protocol: u8, at: usize, mut payload: Vec<u8>) -> Vec<u8> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(it) => it.octets().to_vec(),
        IpAddr::V6(it) => it.octets().to_vec(),
    };
    let len = (payload.len() as u16).to_be_bytes();
    let sum = checksum(&[&octets(source), &octets(destination), &[0, protocol], &len, &payload]);
    payload.iter_mut().skip(at).zip(sum.to_be_bytes()).for_each(|(slot, byte)| *slot = byte);
    payload
}

/// The Internet checksum (RFC 1071) of parts, all of even length except for the last.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    parts.iter().fold(Sum16BitWords::new(), |sum, part| sum.add_slice(part)).ones_complement().to_be()
}

/// A dump in rows of sixteen bytes.
pub fn hexdump(packet: &[u8]) -> String {
    let mut dump = String::new();
    for (row, bytes) in packet.chunks(16).enumerate() {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x} ")).collect();
        let text: String =
            bytes.iter().map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' }).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(dump, "    {:04x}  {hex:48} {text}", row * 16);
    }
    dump
}

fn words(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

// === impl Arp ===

impl Arp {
    pub const REQUEST: u16 = 1;
    pub const REPLY: u16 = 2;

    pub fn ask(sender_mac: Mac, sender_ip: Ipv4Address, target_ip: Ipv4Address) -> Self {
        Self {
            hardware: 1,
            protocol: IPV4,
            hardware_len: 6,
            protocol_len: 4,
            operation: Self::REQUEST,
            sender_mac,
            sender_ip,
            target_mac: [0; 6],
            target_ip,
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let Self { hardware, protocol, hardware_len, protocol_len, operation, .. } = *self;
        let lens = u16::from_be_bytes([hardware_len, protocol_len]);
        let fixed = words(&[hardware, protocol, lens, operation]);
        [&fixed, self.sender_mac.as_slice(), &self.sender_ip, &self.target_mac, &self.target_ip].concat()
    }
}

// === impl Ipv4 ===

impl Ipv4 {
    pub const DO_NOT_FRAGMENT: u16 = 0x4000;
    pub const MORE_FRAGMENTS: u16 = 0x2000;

    pub fn new(source: Ipv4Address, destination: Ipv4Address, protocol: u8) -> Self {
        Self {
            version: 4,
            ihl: None,
            tos: 0,
            total_len: None,
            id: 0x1234,
            fragment: Self::DO_NOT_FRAGMENT,
            ttl: 64,
            protocol,
            checksum: None,
            source,
            destination,
            options: Vec::new(),
        }
    }

    /// The packet with a payload.
    pub fn with(&self, payload: &[u8]) -> Vec<u8> {
        let len = 20 + self.options.len();
        let ihl = self.ihl.unwrap_or((len / 4) as u8);
        let total_len = self.total_len.unwrap_or((len + payload.len()) as u16);
        let header = |sum| {
            let fixed = words(&[
                u16::from_be_bytes([self.version << 4 | ihl & 15, self.tos]),
                total_len,
                self.id,
                self.fragment,
                u16::from_be_bytes([self.ttl, self.protocol]),
                sum,
            ]);
            [&fixed, self.source.as_slice(), &self.destination, &self.options].concat()
        };
        let sum = self.checksum.unwrap_or_else(|| checksum(&[&header(0)]));
        [&header(sum), payload].concat()
    }
}

// === impl Ipv6 ===

impl Ipv6 {
    pub fn new(source: Ipv6Address, destination: Ipv6Address, next_header: u8) -> Self {
        Self { version: 6, class_flow: 0, payload_len: None, next_header, hop_limit: 64, source, destination }
    }

    /// The packet with a payload.
    pub fn with(&self, payload: &[u8]) -> Vec<u8> {
        let first = (u32::from(self.version) << 28 | self.class_flow & 0x0fff_ffff).to_be_bytes();
        let len = self.payload_len.unwrap_or(payload.len() as u16).to_be_bytes();
        let hops = [self.next_header, self.hop_limit];
        [first.as_slice(), &len, &hops, &self.source, &self.destination, payload].concat()
    }

    /// The packet with an ICMPv6 message whose checksum is filled in.
    pub fn icmp(&self, message: &[u8]) -> Vec<u8> {
        self.with(&self.sealed(message))
    }

    /// An ICMPv6 message with its checksum, which covers the addresses too (RFC 8200, 8.1).
    pub fn sealed(&self, message: &[u8]) -> Vec<u8> {
        let len = (message.len() as u32).to_be_bytes();
        let sum =
            checksum(&[&self.source, &self.destination, &len, &[0, 0, 0, ICMPV6], message]).to_be_bytes();
        let mut sealed = message.to_vec();
        sealed.iter_mut().skip(2).zip(sum).for_each(|(slot, byte)| *slot = byte);
        sealed
    }
}
