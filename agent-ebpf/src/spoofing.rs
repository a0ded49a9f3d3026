//! Anti-spoofing: the source address of an IP packet is that of the pod which sends it.

use agent_common::{DropReason, VifEntry};

use crate::{
    headers::{ICMPV6, TCP, UDP},
    meta::{Family, Meta, Scope},
    packet::Packet,
    vifs,
};

/// # Errors
/// If the source address is not the pod's.
#[inline(always)]
pub fn check(meta: &Meta, vif: &VifEntry) -> Result<(), DropReason> {
    if vifs::owns(vif, meta.family, meta.source) {
        return Ok(());
    }
    match meta.family {
        Family::Ipv4 => Err(DropReason::SpoofedIpv4),
        Family::Ipv6 => link_local(meta, vif),
    }
}

/// Checks a packet from the stack whose source is a pod of this node, by the pod's host interface. A
/// neighbour on the wire can send such a packet, too, unless `rp_filter` is strict; IPv6 has no `rp_filter`.
///
/// The host itself may send from a pod's address: a transparent proxy does, and netfilter when it rejects a
/// packet. The kernel does not keep the interface in IPv6 fragments that it makes (`ip6_copy_metadata`), but
/// it keeps the stamp.
///
/// # Errors
/// If the packet comes from another interface.
#[inline(always)]
pub fn check_sibling(packet: &Packet, meta: &Meta, interface: u32) -> Result<(), DropReason> {
    let from = packet.ingress_ifindex();
    let genuine = if from != 0 {
        from == interface
    } else if meta.family == Family::Ipv6 && meta.is_fragment() {
        packet.is_stamped()
    } else {
        true
    };
    match meta.family {
        _ if genuine => Ok(()),
        Family::Ipv4 => Err(DropReason::SpoofedIpv4),
        Family::Ipv6 => Err(DropReason::SpoofedIpv6),
    }
}

/// From its link-local address, a pod reaches its link, where only the gateway is.
///
/// Extension headers are refused: behind one, where `nd` does not parse, a pod could hide a router
/// advertisement or a redirect, which hosts accept from link-local sources only (RFC 4861, 6.1.2 and 8.1).
#[inline(always)]
fn link_local(meta: &Meta, vif: &VifEntry) -> Result<(), DropReason> {
    // MLD reports and the like, also before the pod has an address: counted by what they are.
    if meta.destination_scope() == Scope::Multicast {
        Err(DropReason::Multicast)
    } else if !vifs::owns_link_local(vif, meta.source) || !meta.destination.is_link_local() {
        Err(DropReason::SpoofedIpv6)
    } else if !meta.is_fragment() && !meta.is_extended() && matches!(meta.protocol, ICMPV6 | TCP | UDP) {
        Ok(())
    } else {
        Err(DropReason::SpoofedNd)
    }
}
