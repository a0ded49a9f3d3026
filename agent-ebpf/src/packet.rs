//! A packet, and its headers.
//!
//! Fields of headers are in network order. Addresses are `u16`s because headers lie at even addresses, not at
//! multiples of four: so the compiler reads two bytes at a time.

use agent_common::{DropReason, EndpointKey};
use aya_ebpf::programs::TcContext;

/// Offset of what comes after the Ethernet header.
pub const L3: usize = size_of::<Ethernet>();
/// Offset of what comes after an IPv4 header without options.
pub const IPV4_PAYLOAD: usize = L3 + size_of::<Ipv4>();
/// Offset of what comes after an IPv6 header without extensions.
pub const IPV6_PAYLOAD: usize = L3 + size_of::<Ipv6>();

pub const ETHERTYPE_IPV4: u16 = 0x0800_u16.to_be();
pub const ETHERTYPE_ARP: u16 = 0x0806_u16.to_be();
pub const ETHERTYPE_IPV6: u16 = 0x86dd_u16.to_be();
pub const ETHERTYPE_VLAN: u16 = 0x8100_u16.to_be();
pub const ETHERTYPE_QINQ: u16 = 0x88a8_u16.to_be();

/// Protocols, and next headers.
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;
pub const SCTP: u8 = 132;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

pub type Mac = [u8; 6];
pub type Ipv4Address = [u16; 2];
pub type Ipv6Address = [u16; 8];

/// A packet in the hands of a tc program.
pub struct Packet<'a> {
    ctx: &'a TcContext,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ethernet {
    pub destination: Mac,
    pub source: Mac,
    pub ethertype: u16,
}

/// RFC 826, for IPv4 over Ethernet.
#[derive(Clone, Copy)]
#[repr(C)]
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

/// RFC 791, without options.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ipv4 {
    pub version_ihl: u8,
    pub tos: u8,
    pub total_len: u16,
    pub id: u16,
    pub fragment: u16,
    pub ttl: u8,
    pub protocol: u8,
    pub checksum: u16,
    pub source: Ipv4Address,
    pub destination: Ipv4Address,
}

/// RFC 8200.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ipv6 {
    pub version_class_flow: [u8; 4],
    pub payload_len: u16,
    pub next_header: u8,
    pub hop_limit: u8,
    pub source: Ipv6Address,
    pub destination: Ipv6Address,
}

/// The header of a fragment (RFC 8200, 4.5).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FragmentHeader {
    pub next_header: u8,
    pub reserved: u8,
    pub offset: u16,
    pub id: [u16; 2],
}

/// What TCP, UDP, SCTP and ICMP have in their first eight bytes, which the first fragment of a packet has, and the
/// quote in an ICMP error.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Transport {
    words: [u16; 4],
}

/// What every ICMPv6 message begins with (RFC 4443, 2.1).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IcmpType {
    pub kind: u8,
    pub code: u8,
}

/// Neighbour solicitation and advertisement (RFC 4861, 4.3 and 4.4), up to their options.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct NeighbourMessage {
    pub kind: u8,
    pub code: u8,
    pub checksum: u16,
    pub flags: [u16; 2],
    pub target: Ipv6Address,
}

/// An option of such a message that tells a MAC (RFC 4861, 4.6.1).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MacOption {
    pub kind: u8,
    /// Of eight bytes.
    pub units: u8,
    pub mac: Mac,
}

/// # Safety
/// The type is valid for any bytes, and its alignment is at most two.
pub unsafe trait Header: Copy {}

// SAFETY: integers only, and none wider than two bytes.
unsafe impl Header for Ethernet {}
// SAFETY: as above.
unsafe impl Header for Arp {}
// SAFETY: as above.
unsafe impl Header for Ipv4 {}
// SAFETY: as above.
unsafe impl Header for Ipv6 {}
// SAFETY: as above.
unsafe impl Header for NeighbourMessage {}
// SAFETY: as above.
unsafe impl Header for MacOption {}
// SAFETY: as above.
unsafe impl Header for IcmpType {}
// SAFETY: as above.
unsafe impl Header for FragmentHeader {}
// SAFETY: as above.
unsafe impl Header for Transport {}

// === impl Packet ===

impl<'a> Packet<'a> {
    /// The longest headers that we read without a helper call.
    const HEADERS: u32 = (IPV6_PAYLOAD + size_of::<NeighbourMessage>() + size_of::<MacOption>()) as u32;

    #[inline(always)]
    pub fn new(ctx: &'a TcContext) -> Self {
        // A raw socket's packet can have its headers in a page of its own, where we cannot see them.
        let wanted = if ctx.len() < Self::HEADERS { ctx.len() } else { Self::HEADERS };
        if ctx.data() + wanted as usize > ctx.data_end() {
            // If it fails, the first read of a header does.
            let _ = ctx.skb.pull_data(wanted);
        }
        Self { ctx }
    }

    /// The host interface that the program runs on.
    #[inline(always)]
    pub fn ifindex(&self) -> u32 {
        // SAFETY: the kernel hands us a valid context.
        unsafe { (*self.ctx.skb.skb).ifindex }
    }

    /// Bytes, from the Ethernet header on.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.ctx.len()
    }

    /// Whether it is a tagged frame: the tag is usually not in the frame but beside it.
    #[inline(always)]
    pub fn has_vlan_tag(&self, ethertype: u16) -> bool {
        // SAFETY: the kernel hands us a valid context.
        let beside = unsafe { (*self.ctx.skb.skb).vlan_present } != 0;
        beside || ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ
    }

    /// Whether it is to be cut into segments later, so that a length of zero in its header means "over 64 KiB".
    #[inline(always)]
    pub fn is_segmented_later(&self) -> bool {
        // SAFETY: the kernel hands us a valid context.
        unsafe { (*self.ctx.skb.skb).gso_size != 0 }
    }

    /// The header at an offset.
    #[inline(always)]
    pub fn header<T: Header>(&self, offset: usize) -> Result<&T, DropReason> {
        let header = self.pointer::<T>(offset)?;
        // SAFETY: in bounds, and valid for any bytes. Nothing writes while it is borrowed: `header_mut` asks for
        // the packet alone, and helpers that move the data are called by `new` only.
        Ok(unsafe { &*header })
    }

    /// The header at an offset, to be changed in place.
    #[inline(always)]
    pub fn header_mut<T: Header>(&mut self, offset: usize) -> Result<&mut T, DropReason> {
        let header = self.pointer::<T>(offset)?;
        // SAFETY: as for `header`, and the packet is borrowed mutably.
        Ok(unsafe { &mut *header })
    }

    /// Bytes at an offset that is not known beforehand.
    #[inline(always)]
    pub fn bytes<const N: usize>(&self, offset: usize) -> Result<[u8; N], DropReason> {
        self.ctx.load(offset).map_err(|_| DropReason::Malformed)
    }

    /// The header at an offset that is not known beforehand: copied, and wherever in the packet it is.
    #[inline(always)]
    pub fn copy<T: Header>(&self, offset: usize) -> Option<T> {
        self.ctx.load(offset).ok()
    }

    #[inline(always)]
    fn pointer<T>(&self, offset: usize) -> Result<*mut T, DropReason> {
        let start = self.ctx.data() + offset;
        if start + size_of::<T>() > self.ctx.data_end() {
            return Err(DropReason::Malformed);
        }
        Ok(start as *mut T)
    }
}

// === impl Arp ===

impl Arp {
    pub const REQUEST: u16 = 1_u16.to_be();
    pub const REPLY: u16 = 2_u16.to_be();

    /// Whether it is about IPv4 over Ethernet.
    pub fn is_ipv4_over_ethernet(&self) -> bool {
        self.hardware == 1_u16.to_be()
            && self.protocol == ETHERTYPE_IPV4
            && self.hardware_len == 6
            && self.protocol_len == 4
    }
}

// === impl Ipv4 ===

impl Ipv4 {
    /// Version 4, and the length of a header without options in units of four bytes.
    const PLAIN: u8 = 0x45;
    const MORE_FRAGMENTS: u16 = 0x2000_u16.to_be();
    const OFFSET: u16 = 0x1fff_u16.to_be();

    /// # Errors
    /// Malformed, if the header contradicts itself or the frame.
    #[inline(always)]
    pub fn check(&self, packet: &Packet<'_>) -> Result<(), DropReason> {
        let header_len = u32::from(self.version_ihl & 0x0f) * 4;
        let total_len = u32::from(u16::from_be(self.total_len));
        let available = packet.len() - L3 as u32;
        let len_is_right = total_len >= header_len && total_len <= available;
        let over_64k = total_len == 0 && packet.is_segmented_later();
        if self.version_ihl >> 4 == 4 && header_len >= 20 && (len_is_right || over_64k) {
            Ok(())
        } else {
            Err(DropReason::Malformed)
        }
    }

    pub fn has_options(&self) -> bool {
        self.version_ihl != Self::PLAIN
    }

    /// Whether it is a part of a larger packet.
    pub fn is_fragment(&self) -> bool {
        self.fragment & (Self::MORE_FRAGMENTS | Self::OFFSET) != 0
    }

    /// Whether it is a part other than the first, which has no ports.
    pub fn is_later_fragment(&self) -> bool {
        self.fragment & Self::OFFSET != 0
    }

    /// Bytes, with options.
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0x0f) * 4
    }

    /// Whether the checksum of a header without options is right (RFC 1071).
    #[inline(always)]
    pub fn is_intact(&self) -> bool {
        let ([a, b], [c, d]) = (self.source, self.destination);
        let words = [
            u16::from_ne_bytes([self.version_ihl, self.tos]),
            self.total_len,
            self.id,
            self.fragment,
            u16::from_ne_bytes([self.ttl, self.protocol]),
            self.checksum,
            a,
            b,
            c,
            d,
        ];
        folded(words.into_iter().map(u32::from).sum()) == 0xffff
    }

    /// Takes a hop off, and mends the checksum (RFC 1624).
    #[inline(always)]
    pub fn take_hop(&mut self) {
        self.ttl -= 1;
        let sum = u32::from(u16::from_be(self.checksum)) + 0x0100;
        self.checksum = ((sum + u32::from(sum >= 0xffff)) as u16).to_be();
    }
}

/// The first byte of an address that is kept as `u16`s.
#[inline(always)]
pub fn first_byte(first: u16) -> u8 {
    (u16::from_be(first) >> 8) as u8
}

#[inline(always)]
pub fn ipv4_key(address: Ipv4Address) -> EndpointKey {
    // SAFETY: integers of the same size; memory order stays network order.
    EndpointKey::ipv4(unsafe { core::mem::transmute::<Ipv4Address, [u8; 4]>(address) })
}

// === impl Ipv6 ===

impl Ipv6 {
    /// # Errors
    /// Malformed, if the header contradicts itself or the frame.
    #[inline(always)]
    pub fn check(&self, packet: &Packet<'_>) -> Result<(), DropReason> {
        let len = IPV6_PAYLOAD as u32 + u32::from(u16::from_be(self.payload_len));
        let [version_class, ..] = self.version_class_flow;
        if version_class >> 4 == 6 && len <= packet.len() { Ok(()) } else { Err(DropReason::Malformed) }
    }

    /// Whether there are headers between this one and what it carries (RFC 8200, 4.1), among them that of a fragment.
    pub fn has_extensions(&self) -> bool {
        matches!(self.next_header, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS)
    }
}

// === impl NeighbourMessage ===

impl NeighbourMessage {
    /// The sum of its words, for a checksum.
    #[inline(always)]
    pub fn total(&self) -> u32 {
        let [high, low] = self.flags;
        let kind = u16::from_ne_bytes([self.kind, self.code]);
        u32::from(kind) + u32::from(self.checksum) + u32::from(high) + u32::from(low) + total(&self.target)
    }
}

// === impl MacOption ===

impl MacOption {
    /// The sum of its words, for a checksum.
    #[inline(always)]
    pub fn total(&self) -> u32 {
        let [a, b, c, d, e, f] = self.mac;
        let words = [[self.kind, self.units], [a, b], [c, d], [e, f]];
        words.into_iter().map(|word| u32::from(u16::from_ne_bytes(word))).sum()
    }
}

// === impl FragmentHeader ===

impl FragmentHeader {
    pub fn is_first(&self) -> bool {
        self.offset & 0xfff8_u16.to_be() == 0
    }
}

// === impl Transport ===

impl Transport {
    /// Of the source, and of the destination.
    #[inline(always)]
    pub fn ports(&self) -> [u16; 2] {
        let [source, destination, ..] = self.words;
        [u16::from_be(source), u16::from_be(destination)]
    }

    /// An ICMP message's type.
    #[inline(always)]
    pub fn kind(&self) -> u8 {
        let [kind_code, ..] = self.words;
        first_byte(kind_code)
    }

    /// The identifier of an echo, in the place of both ports.
    #[inline(always)]
    pub fn identifier(&self) -> [u16; 2] {
        let [_, _, identifier, _] = self.words;
        [u16::from_be(identifier); 2]
    }
}

#[inline(always)]
pub fn ipv6_key(address: &Ipv6Address) -> EndpointKey {
    // SAFETY: integers of the same size; memory order stays network order.
    EndpointKey::ipv6(unsafe { core::mem::transmute::<Ipv6Address, [u8; 16]>(*address) })
}

/// The sum of an address's words, for a checksum.
#[inline(always)]
pub fn total(address: &Ipv6Address) -> u32 {
    address.iter().map(|word| u32::from(*word)).sum()
}

/// The sum of fewer than 65536 words in ones' complement (RFC 1071), in which carries come in again at the low end.
#[inline(always)]
pub fn folded(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

pub const fn ipv4_address([a, b, c, d]: [u8; 4]) -> Ipv4Address {
    [u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])]
}

pub const fn ipv6_address(bytes: [u8; 16]) -> Ipv6Address {
    // SAFETY: integers of the same size; memory order stays network order.
    unsafe { core::mem::transmute::<[u8; 16], Ipv6Address>(bytes) }
}

/// Whether an address is link-local unicast, `fe80::/10`.
#[inline(always)]
pub fn is_link_local(address: &Ipv6Address) -> bool {
    let [first, ..] = *address;
    u16::from_be(first) & 0xffc0 == 0xfe80
}

#[inline(always)]
pub fn is_multicast_mac(mac: &Mac) -> bool {
    let [first, ..] = *mac;
    first & 1 != 0
}
