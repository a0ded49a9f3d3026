//! Packets from the tunnel between nodes: dropped unless a node sends them for itself or its pods, to this
//! node or its pods.
//!
//! A host that reaches the tunnel's port chooses both headers. The outer source must be a node, the inner
//! source must belong to that node, and the inner packet must end here.

use agent_common::{DropReason, NodeEntry, TUNNEL_VNI};

use crate::{
    address::Address,
    endpoints,
    headers::Ethernet,
    meta::{Meta, Scope, Sender},
    nodes,
    outcome::Inbound,
    packet::{Packet, Tunnel},
    remote, tunnels,
};

/// # Errors
/// Why to drop the packet.
#[inline(always)]
pub fn judge(packet: &mut Packet) -> Result<Inbound, DropReason> {
    let inner = inner(packet);
    let node = inner.as_ref().ok().and_then(|meta| nodes::find(meta.source));
    let sender =
        packet.tunnel().and_then(|outer| sender(&outer, node.as_ref())).ok_or(DropReason::TunnelOuter)?;
    let meta = inner?;
    let node = node.filter(|node| node.id == sender).ok_or(DropReason::TunnelInner)?;
    match meta.destination_scope() {
        Scope::Unicast => {}
        Scope::Multicast => return Err(DropReason::Multicast),
        Scope::Host => return Err(DropReason::Martian),
    }
    let endpoint = endpoints::find(&meta)?;
    if endpoint.is_none() && !nodes::find(meta.destination).is_some_and(|node| node.is_own()) {
        return Err(DropReason::TunnelDestination);
    }
    // To a pod, too: an address in the ranges need not be a pod's, but can be one of the host's.
    if tunnels::carries_packet(&meta) {
        return Err(DropReason::TunnelNested);
    }
    match endpoint {
        Some(endpoint) if node.is_remote_range() => remote::receive(packet, &meta, &node, endpoint),
        _ => Ok(Inbound::STACK),
    }
}

#[inline(always)]
fn inner(packet: &Packet) -> Result<Meta, DropReason> {
    let ethertype = u16::from_be_bytes(packet.header::<Ethernet>(0)?.ethertype);
    if packet.has_vlan_tag(ethertype) {
        return Err(DropReason::Vlan);
    }
    Meta::parse(packet, ethertype, Sender::Outside)
}

/// The ID of the node that has sent the outer packet, from one of its addresses to one of this node's.
/// `inner` has the inner source: most packets come from where packets to there go, which spares a look-up.
///
/// Before Linux 6.0, the kernel does not tell to which address. `from_pod` knows only the addresses that
/// nodes report, and masquerading gives a pod's packets to others the address of its node.
#[inline(always)]
fn sender(outer: &Tunnel, inner: Option<&NodeEntry>) -> Option<u32> {
    let tells_destination = outer.destination != Address::UNSPECIFIED;
    if outer.vni != TUNNEL_VNI || tells_destination && !is_own_address(outer.destination) {
        return None;
    }
    if let Some(node) = inner
        && node.is_remote_range()
        && node.is_tunnelled()
        && Address::v6(node.address) == outer.source
    {
        return Some(node.id);
    }
    nodes::owner(outer.source).filter(|node| !node.is_own()).map(|node| node.id)
}

#[inline(always)]
fn is_own_address(address: Address) -> bool {
    nodes::owner(address).is_some_and(|node| node.is_own())
}
