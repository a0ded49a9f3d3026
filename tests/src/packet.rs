//! Packets, made field by field.
//!
//! Lengths and checksums are right unless a test says otherwise, so that a packet is wrong in one respect only:
//!
//! ```
//! use ferrule_tests::packet::{Ipv4, udp};
//!
//! let ip = Ipv4 { ttl: 1, ..Ipv4::new([10, 0, 0, 1], [10, 0, 0, 2], 17) };
//! assert_eq!(ip.with(&udp(53, 53, b"x")).len(), 20 + 8 + 1);
//! ```

use std::fmt::Write as _;

pub type Mac = [u8; 6];
pub type Ipv4Address = [u8; 4];
pub type Ipv6Address = [u8; 16];

pub const ARP: u16 = 0x0806;
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
pub const VLAN: u16 = 0x8100;
pub const QINQ: u16 = 0x88a8;

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const SCTP: u8 = 132;
/// IPv6 extension headers, and ICMPv6.
pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const ICMPV6: u8 = 58;
pub const DESTINATION_OPTIONS: u8 = 60;

/// Neighbour discovery (RFC 4861) and MLD (RFC 3810).
pub const ROUTER_SOLICITATION: u8 = 133;
pub const ROUTER_ADVERTISEMENT: u8 = 134;
pub const NEIGHBOUR_SOLICITATION: u8 = 135;
pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
pub const REDIRECT: u8 = 137;
pub const MLD_REPORT: u8 = 143;
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

/// RFC 791. `None` is what is right.
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
    /// As long as a multiple of four.
    pub options: Vec<u8>,
}

/// RFC 8200. `None` is what is right.
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

/// A frame around an IP packet, or whatever else.
pub fn frame(destination: Mac, source: Mac, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&destination, &source, ethertype.to_be_bytes().as_slice(), payload].concat()
}

/// A frame that carries tags, the outer one first: tag protocol, and VLAN.
pub fn tagged(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let (macs, rest) = frame.split_at_checked(12).unwrap_or((frame, &[]));
    let tags = tags.iter().flat_map(|(protocol, vlan)| [protocol.to_be_bytes(), vlan.to_be_bytes()].concat());
    [macs, &tags.collect::<Vec<u8>>(), rest].concat()
}

/// The first bytes of a packet.
pub fn cut(packet: &[u8], len: usize) -> Vec<u8> {
    packet.iter().copied().take(len).collect()
}

/// What carries no checksum of its own or none that anybody on the way looks at: ports, a sequence of bytes.
pub fn udp(source: u16, destination: u16, data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + data.len()).unwrap_or(u16::MAX);
    [&words(&[source, destination, len, 0]), data].concat()
}

/// A TCP segment without options: an opening one.
pub fn tcp(source: u16, destination: u16, data: &[u8]) -> Vec<u8> {
    let (offset_flags, window) = (0x5002, 64240);
    [&words(&[source, destination, 0, 1, 0, 0, offset_flags, window, 0, 0]), data].concat()
}

/// An ICMP or ICMPv6 error about a packet, as much of which is quoted as fits. Without a checksum.
pub fn icmp_error(kind: u8, about: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0], cut(about, 576 - 28).as_slice()].concat()
}

/// An ICMP echo request.
pub fn echo(data: &[u8]) -> Vec<u8> {
    let sum = checksum(&[&words(&[0x0800, 0, 7, 1]), data]);
    [&words(&[0x0800, sum, 7, 1]), data].concat()
}

/// What follows the fixed part of a hop-by-hop, routing or destination options header that is eight bytes long.
pub fn extension(next_header: u8, payload: &[u8]) -> Vec<u8> {
    // One option: four bytes of padding.
    [&[next_header, 0, 1, 4, 0, 0, 0, 0], payload].concat()
}

/// A fragment header; the offset is in units of eight bytes.
pub fn fragment(next_header: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let offset = (offset << 3 | u16::from(more)).to_be_bytes();
    [&[next_header, 0], &offset, [0, 0, 0, 9].as_slice(), payload].concat()
}

/// A neighbour solicitation or advertisement, or a redirect's beginning; options follow. Without a checksum.
pub fn neighbour(kind: u8, target: Ipv6Address, options: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0], target.as_slice(), options].concat()
}

/// A router advertisement for half an hour, without options and checksum.
pub fn router_advertisement() -> Vec<u8> {
    [[ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0, 7, 8], [0; 8]].concat()
}

/// An option of neighbour discovery that holds a MAC.
pub fn mac_option(kind: u8, mac: Mac) -> Vec<u8> {
    [&[kind, 1], mac.as_slice()].concat()
}

/// The same bytes over and over, as many as asked for: something that is easy to see in a dump.
pub fn data(len: usize) -> Vec<u8> {
    b"ferrule ".iter().copied().cycle().take(len).collect()
}

/// The Internet checksum (RFC 1071) of parts of even length, except for the last.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let pairs = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u64 = pairs
        .map(|pair| match *pair {
            [high, low] => u64::from(u16::from_be_bytes([high, low])),
            [high] => u64::from(high) << 8,
            _ => 0,
        })
        .sum();
    // The carries' carry at most twice.
    let folded = (0..4).fold(sum, |sum, _| (sum & 0xffff) + (sum >> 16));
    !(folded as u16)
}

/// The packet in rows of sixteen bytes.
pub fn hexdump(packet: &[u8]) -> String {
    let mut dump = String::new();
    for (row, bytes) in packet.chunks(16).enumerate() {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x} ")).collect();
        let text: String =
            bytes.iter().map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' }).collect();
        // Writing to a string does not fail.
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

    /// A request.
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

    /// The packet.
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

    /// The packet.
    pub fn with(&self, payload: &[u8]) -> Vec<u8> {
        let first = (u32::from(self.version) << 28 | self.class_flow & 0x0fff_ffff).to_be_bytes();
        let len = self.payload_len.unwrap_or(payload.len() as u16).to_be_bytes();
        let hops = [self.next_header, self.hop_limit];
        [first.as_slice(), &len, &hops, &self.source, &self.destination, payload].concat()
    }

    /// The packet around an ICMPv6 message, whose checksum is put in.
    pub fn icmp(&self, message: &[u8]) -> Vec<u8> {
        self.with(&self.sealed(message))
    }

    /// An ICMPv6 message with its checksum, which is also over the addresses (RFC 8200, 8.1).
    pub fn sealed(&self, message: &[u8]) -> Vec<u8> {
        let len = (message.len() as u32).to_be_bytes();
        let sum =
            checksum(&[&self.source, &self.destination, &len, &[0, 0, 0, ICMPV6], message]).to_be_bytes();
        message
            .iter()
            .enumerate()
            .map(|(at, byte)| {
                if at == 2 {
                    sum[0]
                } else if at == 3 {
                    sum[1]
                } else {
                    *byte
                }
            })
            .collect()
    }
}
