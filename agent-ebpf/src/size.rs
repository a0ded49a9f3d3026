//! The size of a packet, and the MTU of its way.

use crate::{
    headers::{IPV6_PAYLOAD, L3, TCP, TCP_DATA_OFFSET},
    meta::Meta,
    packet::Packet,
};

/// The kernel's `GSO_BY_FRAGS` (`linux/skbuff.h`): the segments have different sizes.
const BY_FRAGS: u32 = 0xffff;
const UDP_HEADER: usize = 8;
/// In bytes: the length field of an IPv6 header has 16 bits.
const LARGEST_PAYLOAD: usize = 0xffff;
/// The hop-by-hop header with the length of a larger packet (RFC 2675), which its segments do not have.
const JUMBO_HEADER: usize = 8;

/// Whether a packet, or each segment that it is later cut into, fits the MTU. Nothing fits an MTU of 0.
#[inline(always)]
pub fn fits(packet: &Packet, meta: &Meta, mtu: u32) -> bool {
    let mtu = mtu as usize;
    match packet.gso_size() {
        0 => packet.len() as usize <= L3 + mtu,
        BY_FRAGS => mtu != 0,
        size => segment(packet, meta, size as usize) <= L3 + mtu,
    }
}

/// The length of a segment, with all headers.
#[inline(always)]
fn segment(packet: &Packet, meta: &Meta, size: usize) -> usize {
    let header = if meta.protocol == TCP {
        let offset = packet.copy::<[u8; 1]>(meta.payload + TCP_DATA_OFFSET).map_or(0, |[byte]| byte >> 4);
        usize::from(offset) * 4
    } else {
        UDP_HEADER
    };
    // BIG TCP over IPv6, before Linux 6.19.
    let is_jumbo = meta.is_extended() && packet.len() as usize > IPV6_PAYLOAD + LARGEST_PAYLOAD;
    let lost = if is_jumbo { JUMBO_HEADER } else { 0 };
    meta.payload - lost + header + size
}
