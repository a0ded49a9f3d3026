//! Delivery to a pod of this node: the frame and its hop limit are rewritten as a router would.

use agent_common::DropReason;

use crate::{
    headers::{Ethernet, Ipv4, Ipv6, L3, Mac},
    meta::{Family, Meta},
    packet::Packet,
};

/// # Errors
/// `Malformed`, if the checksum of the IPv4 header is wrong: a router drops such packets (RFC 1812, 5.2.2).
#[inline(always)]
pub fn check(packet: &Packet, meta: &Meta) -> Result<(), DropReason> {
    match meta.family {
        Family::Ipv4 if !packet.header::<Ipv4>(L3)?.is_intact() => Err(DropReason::Malformed),
        _ => Ok(()),
    }
}

/// # Errors
/// Never for a parsed packet; the verifier requires the bounds check.
#[inline(always)]
pub fn rewrite(packet: &mut Packet, meta: &Meta, mac: &Mac) -> Result<(), DropReason> {
    decrement_hops(packet, meta)?;
    packet.header_mut::<Ethernet>(0)?.readdress(mac);
    Ok(())
}

/// # Errors
/// As for [`rewrite`].
#[inline(always)]
pub fn decrement_hops(packet: &mut Packet, meta: &Meta) -> Result<(), DropReason> {
    match meta.family {
        Family::Ipv4 => packet.header_mut::<Ipv4>(L3)?.decrement_ttl(),
        Family::Ipv6 => {
            let added = packet.header_mut::<Ipv6>(L3)?.decrement_hop_limit();
            packet.add_to_sum(added);
        }
    }
    Ok(())
}
