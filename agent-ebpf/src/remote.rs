//! Packets between a pod of this node and one of another node, past the stack if nothing speaks against it.
//!
//! A flow passes the stack in both directions or in none: conntrack would call half of a flow invalid, and a
//! translated flow needs the stack for its replies. So the two ends decide, and `STACK_FLOWS`: only a pod's
//! and a remote pod's own addresses qualify, and none of the flows that the stack translates for this node's
//! pod. Whatever is not plainly forwarded goes to the stack, which answers, fragments, translates or drops.

use agent_common::{DropReason, NodeEntry, VifEntry};

use crate::{
    counters::Direction,
    delivery, endpoints, flow_stats, flows, icmp,
    meta::Meta,
    outcome::{Inbound, Outcome},
    packet::{Packet, Stamp},
    route, size,
};

/// A packet from a pod to a remote one, which has been checked.
///
/// # Errors
/// Why to drop the packet.
#[inline(always)]
pub fn send(
    packet: &mut Packet<'_>,
    meta: &Meta,
    vif: &VifEntry,
    node: &NodeEntry,
) -> Result<Outcome, DropReason> {
    icmp::check(packet, meta)?;
    let is_plain = is_plain(meta) && size::fits(packet, meta, node.mtu);
    if is_plain {
        delivery::check(packet, meta)?;
    }
    if flows::belongs_to_stack(packet, meta, vif, flows::REMOTE) {
        return Ok(Outcome::Stack(Stamp::Checked));
    }
    if !is_plain || !node.is_fast() {
        return Ok(Outcome::Stack(Stamp::Direct));
    }
    if node.is_tunnelled() {
        if !packet.set_tunnel(node.address) {
            return Ok(Outcome::Stack(Stamp::Direct));
        }
        delivery::decrement_hops(packet, meta)?;
        return Ok(Outcome::Tunnel { ifindex: node.ifindex });
    }
    match route::next_hop(packet, meta) {
        // Replies come by the interface that has `from_uplink`.
        Some(next) if next.ifindex == node.ifindex => {
            delivery::decrement_hops(packet, meta)?;
            Ok(Outcome::Neighbour(next))
        }
        _ => Ok(Outcome::Stack(Stamp::Direct)),
    }
}

/// A packet from a remote pod, behind `node`, which has been checked.
///
/// # Errors
/// Why to drop the packet.
#[inline(always)]
pub fn receive(packet: &mut Packet<'_>, meta: &Meta, node: &NodeEntry) -> Result<Inbound, DropReason> {
    let Some((endpoint, receiver)) = endpoints::find(meta)? else { return Ok(Inbound::Stack) };
    let is_plain = is_plain(meta) && size::fits(packet, meta, u32::from(receiver.mtu));
    if is_plain {
        delivery::check(packet, meta)?;
    }
    if flows::belongs_to_stack(packet, meta, receiver, flows::REMOTE) {
        return Ok(Inbound::Stack);
    }
    packet.stamp(Stamp::Direct);
    if !is_plain || !node.is_fast() {
        return Ok(Inbound::Stack);
    }
    flow_stats::count_at(packet, meta, receiver, endpoint.ifindex, Direction::Ingress);
    delivery::rewrite(packet, meta, endpoint)?;
    Ok(Inbound::Local { ifindex: endpoint.ifindex })
}

/// The stack handles options, answers packets at their last hop, and reassembles fragments where it
/// translates.
#[inline(always)]
fn is_plain(meta: &Meta) -> bool {
    !meta.has_options() && meta.hops > 1 && !meta.is_fragment()
}
