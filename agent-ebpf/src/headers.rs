//! Layouts of packet headers.
//!
//! All fields are bytes in network order, so that a header is valid at any address.

use agent_common::GATEWAY_MAC;

pub type Mac = [u8; 6];

pub const ETHERTYPE_IPV4: u16 = 0x0800;
pub const ETHERTYPE_ARP: u16 = 0x0806;
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
pub const ETHERTYPE_VLAN: u16 = 0x8100;
pub const ETHERTYPE_QINQ: u16 = 0x88a8;

/// IPv4 protocols and IPv6 next headers.
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;
pub const SCTP: u8 = 132;
pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const DESTINATION_OPTIONS: u8 = 60;
pub const IP_IN_IP: u8 = 4;
pub const IPV6_IN_IP: u8 = 41;
pub const GRE: u8 = 47;

/// Offset of the byte with the header length in a TCP header (RFC 9293, 3.1).
pub const TCP_DATA_OFFSET: usize = 12;
/// Offset of a TCP header's flags.
pub const TCP_FLAGS: usize = 13;
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// Offset of the IP or ARP header.
pub const L3: usize = size_of::<Ethernet>();
/// Offset of the payload of an IPv4 packet without options.
pub const IPV4_PAYLOAD: usize = L3 + size_of::<Ipv4>();
/// Offset of the payload of an IPv6 packet without extension headers.
pub const IPV6_PAYLOAD: usize = L3 + size_of::<Ipv6>();

/// A type that is valid for any bytes.
///
/// # Safety
/// The alignment is 1 and every bit pattern is a valid value.
pub unsafe trait Header: Copy {}

// SAFETY: bytes.
unsafe impl<const N: usize> Header for [u8; N] {}

/// The first eight bytes of TCP, UDP, SCTP and ICMP, in network order: as much as every first fragment and
/// every packet quoted in an ICMP error has.
#[derive(Clone, Copy)]
pub struct Transport(u64);

/// Defines headers: structs of bytes.
macro_rules! headers {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$about:meta])* $field:ident: $type:ty,)+ })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            #[repr(C)]
            pub struct $name {
                $($(#[$about])* pub $field: $type,)+
            }

            // SAFETY: bytes and arrays of bytes only (alignment 1 is asserted).
            unsafe impl Header for $name {}
            const _: () = assert!(align_of::<$name>() == 1);
        )+
    };
}

headers! {
    struct Ethernet {
        destination: Mac,
        source: Mac,
        ethertype: [u8; 2],
    }

    /// RFC 826, for IPv4 over Ethernet.
    struct Arp {
        hardware: [u8; 2],
        protocol: [u8; 2],
        hardware_len: u8,
        protocol_len: u8,
        operation: [u8; 2],
        sender_mac: Mac,
        sender_ip: [u8; 4],
        target_mac: Mac,
        target_ip: [u8; 4],
    }

    /// RFC 791, without options.
    struct Ipv4 {
        version_ihl: u8,
        tos: u8,
        total_len: [u8; 2],
        id: [u8; 2],
        fragment: [u8; 2],
        ttl: u8,
        protocol: u8,
        checksum: [u8; 2],
        source: [u8; 4],
        destination: [u8; 4],
    }

    /// RFC 8200.
    struct Ipv6 {
        version_class_flow: [u8; 4],
        payload_len: [u8; 2],
        next_header: u8,
        hop_limit: u8,
        source: [u8; 16],
        destination: [u8; 16],
    }

    /// RFC 8200, 4.5. The first byte is the same in all extension headers.
    struct FragmentHeader {
        next_header: u8,
        /// In other extension headers, the length in units of eight bytes, without the first eight.
        reserved: u8,
        offset: [u8; 2],
        id: [u8; 4],
    }

    /// The start of every ICMPv6 message (RFC 4443, 2.1).
    struct IcmpType {
        kind: u8,
        code: u8,
    }

    /// Neighbour solicitation and advertisement (RFC 4861, 4.3 and 4.4), without options.
    struct NeighbourMessage {
        kind: u8,
        code: u8,
        checksum: [u8; 2],
        flags: [u8; 4],
        target: [u8; 16],
    }

    /// Source or target link-layer address option (RFC 4861, 4.6.1).
    struct MacOption {
        kind: u8,
        /// In units of eight bytes.
        len: u8,
        mac: Mac,
    }
}

/// Copies a MAC in two words: LLVM copies an array of six bytes byte by byte.
#[inline(always)]
pub fn set_mac(slot: &mut Mac, mac: &Mac) {
    let (from, to) = (mac.as_ptr(), slot.as_mut_ptr());
    // SAFETY: four bytes and two are in bounds of both.
    unsafe {
        to.cast::<u32>().write_unaligned(from.cast::<u32>().read_unaligned());
        to.add(4).cast::<u16>().write_unaligned(from.add(4).cast::<u16>().read_unaligned());
    }
}

// === impl Ethernet ===

impl Ethernet {
    /// Addresses the frame from the gateway to a pod.
    #[inline(always)]
    pub fn readdress(&mut self, pod: &Mac) {
        set_mac(&mut self.destination, pod);
        set_mac(&mut self.source, &GATEWAY_MAC);
    }
}

// === impl Ipv4 ===

impl Ipv4 {
    pub const MORE_FRAGMENTS: u16 = 0x2000;
    pub const OFFSET: u16 = 0x1fff;

    /// Bytes, including options.
    #[inline(always)]
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0x0f) * 4
    }

    /// Whether the packet is a fragment other than the first, which has no transport header.
    #[inline(always)]
    pub fn is_later_fragment(&self) -> bool {
        u16::from_be_bytes(self.fragment) & Self::OFFSET != 0
    }
}

// === impl Transport ===

impl Transport {
    #[inline(always)]
    pub fn new(bytes: [u8; 8]) -> Self {
        Self(u64::from_ne_bytes(bytes))
    }

    /// Source and destination port of TCP, UDP and SCTP.
    #[inline(always)]
    pub fn ports(self) -> [u16; 2] {
        let [a, b, c, d, ..] = self.0.to_ne_bytes();
        [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
    }

    /// Type of an ICMP or ICMPv6 message.
    #[inline(always)]
    pub fn icmp_type(self) -> u8 {
        let [kind, ..] = self.0.to_ne_bytes();
        kind
    }

    /// Identifier of an ICMP or ICMPv6 echo.
    #[inline(always)]
    pub fn echo_id(self) -> u16 {
        let [_, _, _, _, a, b, ..] = self.0.to_ne_bytes();
        u16::from_be_bytes([a, b])
    }
}

// === impl Arp ===

impl Arp {
    pub const REQUEST: u16 = 1;
    pub const REPLY: u16 = 2;

    #[inline(always)]
    pub fn is_ipv4_over_ethernet(&self) -> bool {
        u16::from_be_bytes(self.hardware) == 1
            && u16::from_be_bytes(self.protocol) == ETHERTYPE_IPV4
            && self.hardware_len == 6
            && self.protocol_len == 4
    }
}
