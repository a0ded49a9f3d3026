//! Packets from the host's stack to a pod: dropped unless they are for the pod's own addresses.

use core::num::NonZeroU32;

use agent_common::{DropReason, VifEntry};

use crate::{
    address::Address,
    counters::{self, Direction},
    endpoints, flow_stats, flows,
    headers::{Arp, ETHERTYPE_ARP, Ethernet, L3},
    meta::{Family, Meta, Scope, Sender},
    nd, nodes,
    packet::{Packet, Stamp},
    policy, spoofing, vifs,
};

/// # Errors
/// Why to drop the packet.
#[inline(always)]
pub fn judge(packet: &Packet) -> Result<(), DropReason> {
    let vif = vifs::find(packet.ifindex())?;
    judge_of(packet, vif)?;
    counters::ingress(vif.slot, packet.len());
    Ok(())
}

#[inline(always)]
fn judge_of(packet: &Packet, vif: &VifEntry) -> Result<(), DropReason> {
    let subject = policy::judge(vif, packet.ifindex(), Direction::Ingress)?;
    let ethertype = u16::from_be_bytes(packet.header::<Ethernet>(0)?.ethertype);
    if packet.has_vlan_tag(ethertype) {
        return Err(DropReason::Vlan);
    }
    if ethertype == ETHERTYPE_ARP {
        return arp(packet, vif);
    }
    let meta = Meta::parse(packet, ethertype, Sender::Stack)?;
    let sibling = endpoints::interface(meta.source);
    if let Some(interface) = sibling {
        spoofing::check_sibling(packet, &meta, interface.get())?;
    }
    if vifs::owns(vif, meta.family, meta.destination) {
        policy::arrives(packet, &meta, subject, sibling.map_or(0, NonZeroU32::get))?;
        if sibling.is_some() && packet.has_stamp(Stamp::Direct) {
            // Counted by the sender's `from_pod`.
            return Ok(());
        }
        flow_stats::count(packet, &meta, vif, Direction::Ingress);
        // Without the stamp, the stack has translated the packet.
        match sibling {
            Some(client) => flows::record(packet, &meta, client.get(), packet.ifindex()),
            None if !packet.has_stamp(Stamp::Direct) && is_remote_pod(meta.source) => {
                flows::record(packet, &meta, packet.ifindex(), flows::REMOTE);
            }
            None => {}
        }
        return Ok(());
    }
    // The pod is alone on its link, and may choose its link-local addresses.
    if meta.family == Family::Ipv6 && meta.destination.is_link_local() {
        return Ok(());
    }
    if meta.destination_scope() != Scope::Multicast {
        return Err(DropReason::NotForPod);
    }
    // The only multicast that a pod needs: the host solicits its MAC, should the permanent neighbour entry be
    // missing.
    match meta.icmpv6_type(packet)? {
        Some(nd::NEIGHBOUR_SOLICITATION) => Ok(()),
        _ => Err(DropReason::Multicast),
    }
}

#[inline(always)]
fn is_remote_pod(address: Address) -> bool {
    nodes::range(address).is_some_and(|node| node.is_remote_range())
}

#[inline(always)]
fn arp(packet: &Packet, vif: &VifEntry) -> Result<(), DropReason> {
    let arp = packet.header::<Arp>(L3)?;
    if vif.owns_ipv4(arp.target_ip) { Ok(()) } else { Err(DropReason::NotForPod) }
}
