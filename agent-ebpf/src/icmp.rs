//! ICMP errors between pods of this node: the quoted packet is one that the receiver has sent to the sender.
//!
//! Otherwise, a pod could disturb its sibling's connections with others: an error's receiver looks the
//! connection up by the quoted packet only.

use agent_common::DropReason;

use crate::{
    address::Address,
    headers::{ICMP, ICMPV6, Ipv4, Ipv6, Transport},
    meta::{Family, Meta},
    packet::Packet,
};

/// Length of the ICMP or ICMPv6 error header before the quoted packet (RFC 792; RFC 4443, 3).
pub const ERROR: usize = 8;

/// Whether an ICMP message quotes a packet (RFC 792; RFC 4443, 2.1).
#[inline(always)]
pub fn is_error(meta: &Meta, transport: Transport) -> bool {
    is_error_of(meta.family, meta.protocol, transport)
}

/// The same of a packet's parts.
#[inline(always)]
pub fn is_error_of(family: Family, protocol: u8, transport: Transport) -> bool {
    let kind = transport.icmp_type();
    match family {
        Family::Ipv4 => protocol == ICMP && matches!(kind, 3 | 4 | 5 | 11 | 12),
        Family::Ipv6 => protocol == ICMPV6 && kind < 128,
    }
}

/// # Errors
/// `ForgedIcmp`, if the packet is an ICMP error about another flow, or one whose flow is not known: the
/// quote is cut off, or in another fragment. Errors are never that large.
#[inline(always)]
pub fn check(packet: &Packet, meta: &Meta) -> Result<(), DropReason> {
    match meta.transport() {
        Some(transport) if is_error(meta, transport) => {}
        _ => return Ok(()),
    }
    if !meta.is_fragment()
        && is_about(packet, meta.family, meta.payload + ERROR, meta.destination, meta.source)
    {
        Ok(())
    } else {
        Err(DropReason::ForgedIcmp)
    }
}

/// Whether the quoted packet has these addresses.
#[inline(always)]
fn is_about(packet: &Packet, family: Family, quote: usize, source: Address, destination: Address) -> bool {
    match family {
        Family::Ipv4 => packet
            .copy::<Ipv4>(quote)
            .is_some_and(|ip| Address::v4(ip.source) == source && Address::v4(ip.destination) == destination),
        Family::Ipv6 => packet
            .copy::<Ipv6>(quote)
            .is_some_and(|ip| Address::v6(ip.source) == source && Address::v6(ip.destination) == destination),
    }
}
