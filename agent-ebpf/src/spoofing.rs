//! Anti-spoofing: a pod sends IP packets from its own addresses only.

use agent_common::{DropReason, VifEntry};

use crate::{
    headers::{ICMPV6, TCP, UDP},
    meta::{Family, Meta, Scope},
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
    } else if !meta.is_fragment() && matches!(meta.protocol, ICMPV6 | TCP | UDP) {
        Ok(())
    } else {
        Err(DropReason::SpoofedNd)
    }
}
