//! Packets between a pod of this node and one of another node, past the stack if nothing speaks against it.
//!
//! A flow goes through the stack in both directions or in none: conntrack would call half of a flow invalid,
//! and a translated flow needs the stack for its replies. So the two ends decide, and `STACK_FLOWS`: only a
//! pod's and a remote pod's own addresses qualify, and none of the flows that the stack translates for this
//! node's pod. The stack gets all packets that are not plainly forwarded, and answers, fragments, translates
//! or drops.

use agent_common::{DropReason, Endpoint, NodeEntry, VifEntry};

use crate::{
    address::Address,
    counters::{self, Direction},
    delivery, flow_stats, flows,
    meta::Meta,
    outcome::{Inbound, Outcome, Way},
    packet::{Packet, Stamp},
    policy::{self, Judge},
    size,
    target::Target,
    underlay,
};

/// How a packet from a remote pod gets to a pod of this node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// By the stack, which translates the flow, or may.
    Stack,
    /// By the stack, by the pod's own address.
    Untranslated,
    PastStack,
}

/// How a pod's packet leaves this node for a remote pod; `None` by the stack.
#[inline(always)]
pub fn way(packet: &Packet, target: &Target) -> Option<Outcome> {
    let Target { place: ifindex, address: next, .. } = *target;
    if target.tunnel_to == 0 {
        // An earlier agent wrote no next hop.
        return (next != Address::UNSPECIFIED)
            .then_some(Outcome { next, ..Outcome::by(Way::Neighbour, ifindex) });
    }
    match underlay::to(target.tunnel_to) {
        // The row may be older than that of `NODES`, from before the node got another address.
        row @ Some(to) if !packet.is_gso() && Address::v4(to.remote) == next => {
            Some(Outcome { row, ..Outcome::by(Way::Packed, to.ifindex) })
        }
        _ => packet.set_tunnel(next).then_some(Outcome::by(Way::Tunnel, ifindex)),
    }
}

/// A packet from a remote pod, behind `node`, which has been checked, to a pod of this node.
///
/// # Errors
/// Why to drop the packet.
#[inline(always)]
pub fn receive(
    packet: &mut Packet,
    meta: &Meta,
    node: &NodeEntry,
    (endpoint, receiver): (&Endpoint, &VifEntry),
) -> Result<Inbound, DropReason> {
    match judge(packet, meta, node, receiver)? {
        Arrival::Stack => Ok(Inbound::STACK),
        Arrival::Untranslated => {
            // Without the stamp, `to_pod` records the flow, whose other packets could go past the stack.
            let may_be_fast = node.is_fast() && !receiver.is_shaped();
            if !(may_be_fast && flows::is_of_connection(meta)) {
                packet.stamp(Stamp::Direct);
            }
            Ok(Inbound::STACK)
        }
        Arrival::PastStack => deliver(packet, meta, endpoint, receiver),
    }
}

/// # Errors
/// As for [`receive`].
#[inline(always)]
pub fn judge(
    packet: &Packet,
    meta: &Meta,
    node: &NodeEntry,
    receiver: &VifEntry,
) -> Result<Arrival, DropReason> {
    let fits = !receiver.is_shaped() && size::fits(packet, meta, u32::from(receiver.mtu));
    let is_plain = meta.is_plain() && fits;
    if is_plain {
        delivery::check(packet, meta)?;
    }
    if flows::belongs_to_stack(packet, meta, receiver, flows::REMOTE) {
        return Ok(Arrival::Stack);
    }
    let is_fast = is_plain && node.is_fast();
    // This node's conntrack must know a connection from such a port: a port of this node may lead the same
    // client to the same pod. Without the stamp, `to_pod` records the flow.
    if is_fast && flows::begins_at_translated_port(packet, meta) {
        return Ok(Arrival::Stack);
    }
    Ok(if is_fast { Arrival::PastStack } else { Arrival::Untranslated })
}

/// Delivers a packet that has been judged.
///
/// # Errors
/// Why to drop the packet.
#[inline(always)]
pub fn deliver(
    packet: &mut Packet,
    meta: &Meta,
    endpoint: &Endpoint,
    receiver: &VifEntry,
) -> Result<Inbound, DropReason> {
    policy::reaches(packet, meta, endpoint.ifindex, Judge::of(receiver))?;
    flow_stats::count_at(packet, meta, receiver, endpoint.ifindex, Direction::Ingress);
    delivery::rewrite(packet, meta, &endpoint.mac)?;
    counters::ingress(receiver.slot, packet.len());
    Ok(Inbound::to_pod(endpoint.ifindex))
}
