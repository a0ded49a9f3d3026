//! Packets from a pod: dropped unless they are the pod's own, then delivered to a pod of this node, sent to
//! one of another node, or left to the host's stack.

use agent_common::{DropReason, GATEWAY_MAC, VifEntry};

use crate::{
    arp,
    counters::{self, Direction},
    delivery, endpoints, flow_stats, flows,
    headers::{ETHERTYPE_ARP, Ethernet, Mac},
    icmp,
    meta::{Meta, Scope, Sender},
    nd, nodes, offload,
    outcome::{Outcome, Way},
    packet::{Packet, Stamp},
    policy::{self, Judge},
    remote, services, size, spoofing,
    target::Target,
    tunnels, vifs,
};

/// Decides what becomes of a packet from a pod, and counts a packet that is not dropped.
///
/// # Errors
/// Why to drop the packet.
#[inline(always)]
pub fn judge(packet: &mut Packet) -> Result<Outcome, DropReason> {
    let vif = vifs::find(packet.ifindex())?;
    let outcome = judge_of(packet, vif)?;
    counters::egress(vif, packet.len());
    Ok(outcome)
}

#[inline(always)]
fn judge_of(packet: &mut Packet, vif: &VifEntry) -> Result<Outcome, DropReason> {
    let subject = policy::judge(vif, packet.ifindex(), Direction::Egress)?;
    let Ethernet { destination, source, ethertype } = *packet.header::<Ethernet>(0)?;
    if source != vif.mac {
        return Err(DropReason::SpoofedMac);
    }
    let ethertype = u16::from_be_bytes(ethertype);
    if packet.has_vlan_tag(ethertype) {
        return Err(DropReason::Vlan);
    }
    if ethertype == ETHERTYPE_ARP {
        return arp::judge(packet, vif);
    }
    let meta = Meta::parse(packet, ethertype, Sender::Outside)?;
    if let Some(icmpv6_type) = meta.icmpv6_type(packet)?
        && nd::is_nd(icmpv6_type)
    {
        return nd::judge(packet, &meta, vif, icmpv6_type);
    }
    spoofing::check(&meta, vif)?;
    check_scope(&meta)?;
    check_frame(&destination)?;
    services::check(&meta)?;
    let outcome = forward(packet, &meta, vif, subject)?;
    flow_stats::count(packet, &meta, vif, Direction::Egress);
    Ok(outcome)
}

#[inline(always)]
fn forward(packet: &mut Packet, meta: &Meta, vif: &VifEntry, subject: Judge) -> Result<Outcome, DropReason> {
    let target = past_stack(packet, meta, vif)?;
    // The host interface that receives: none of this node for a remote pod.
    let to = target.map_or(flows::REMOTE, |target| target.peer);
    let receives = if to == flows::REMOTE {
        // The packet may leave this node.
        offload::check(packet, meta)?;
        Judge::OPEN
    } else {
        target.map_or(Judge::OPEN, |it| it.judge())
    };
    if policy::passes(packet, meta, subject, to, receives, target.is_none())? {
        packet.stamp(Stamp::Service);
    }
    let Some(target) = target else { return Ok(Outcome::STACK) };
    if target.peer != flows::REMOTE {
        let [mac @ .., _, _, _, _, _, _, _, _, _, _] = target.address.to_v6();
        delivery::rewrite(packet, meta, &mac)?;
        counters::ingress(target.place, packet.len());
        return Ok(Outcome::by(Way::Local, target.peer));
    }
    match remote::way(packet, &target) {
        Some(outcome) => {
            delivery::decrement_hops(packet, meta)?;
            Ok(outcome)
        }
        // `to_link` records the flow as if translated, and the replies go through the stack, too.
        None => Ok(Outcome::stack(packet, Stamp::Service)),
    }
}

/// The pod to which a packet goes past the stack, if nothing speaks against it. Otherwise, the packet is
/// stamped.
#[inline(always)]
fn past_stack(packet: &Packet, meta: &Meta, vif: &VifEntry) -> Result<Option<Target>, DropReason> {
    packet.stamp(Stamp::Checked);
    let Some(target) = target(packet, meta)? else { return Ok(None) };
    icmp::check(packet, meta)?;
    // The stack handles options, answers packets at their last hop and those that are too big, and
    // reassembles fragments where it translates: they have no ports to look a flow up by. What a pod with a
    // limited rate receives passes its qdisc, behind the stack; conntrack wants the other direction, too.
    let is_plain = meta.is_plain() && !vif.is_shaped() && size::fits(packet, meta, target.mtu);
    if is_plain {
        delivery::check(packet, meta)?;
    }
    if flows::belongs_to_stack(packet, meta, vif, target.peer) {
        return Ok(None);
    }
    if !is_plain {
        // Between pods whose packets take the stack anyway, in both directions, nothing is to be recorded.
        let may_be_fast = !vif.is_shaped() && target.mtu != 0;
        if !(may_be_fast && flows::is_of_connection(meta)) {
            packet.stamp(Stamp::Direct);
        }
        return Ok(None);
    }
    if flows::begins_at_translated_port(packet, meta) {
        return Ok(None);
    }
    Ok(Some(target))
}

/// The pod that has the destination; `None` for any other destination.
#[inline(always)]
fn target(packet: &Packet, meta: &Meta) -> Result<Option<Target>, DropReason> {
    if let Some((endpoint, receiver)) = endpoints::find(meta)? {
        return Ok(Some(Target::local(endpoint, receiver)));
    }
    tunnels::check(packet, meta)?;
    Ok(nodes::range(meta.destination).filter(|node| node.is_remote_range()).map(|node| Target::remote(&node)))
}

#[inline(always)]
fn check_scope(meta: &Meta) -> Result<(), DropReason> {
    match meta.destination_scope() {
        Scope::Unicast => Ok(()),
        Scope::Multicast => Err(DropReason::Multicast),
        Scope::Host => Err(DropReason::Martian),
    }
}

/// A router accepts a packet only in a frame that is addressed to it.
#[inline(always)]
fn check_frame(destination: &Mac) -> Result<(), DropReason> {
    let [first, ..] = *destination;
    if *destination == GATEWAY_MAC {
        Ok(())
    } else if first & 1 != 0 {
        Err(DropReason::Multicast)
    } else {
        Err(DropReason::NotToGateway)
    }
}
