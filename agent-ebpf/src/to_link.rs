//! Packets that leave this node by an uplink or the tunnel: judges what a pod has sent to an address that the
//! stack has translated since, and notes what the stack has translated for a pod of this node, so that the
//! replies of a remote pod go through the stack, too. At an uplink, drops what others send into the tunnel of
//! a node.

use core::num::NonZeroU32;

use agent_common::DropReason;

use crate::{
    endpoints, flows,
    headers::Ethernet,
    meta::{Family, Meta, Sender},
    nodes,
    packet::{Packet, Stamp},
    policy, tunnels,
};

/// By what a packet leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Link {
    Tunnel,
    Uplink,
}

/// The program runs for every packet that the node sends. `from_pod` stamps packets: as checked if the stack
/// may have translated the packet, and as a Service's if policies are to judge it afterwards.
///
/// # Errors
/// Why to drop the packet.
#[inline(always)]
pub fn judge(packet: &Packet, link: Link) -> Result<(), DropReason> {
    let is_unjudged = packet.has_stamp(Stamp::Service);
    let is_pods = is_unjudged || packet.has_stamp(Stamp::Checked);
    let may_forge = link == Link::Uplink && tunnels::may_forge(packet);
    if !is_pods && !may_forge {
        return Ok(());
    }
    let meta = match parse(packet) {
        Ok(meta) => meta,
        Err(reason) if is_unjudged => return Err(reason),
        Err(_) => return Ok(()),
    };
    if may_forge {
        tunnels::check_uplink(packet, &meta)?;
    }
    if !is_pods {
        return Ok(());
    }
    let source = endpoints::interface(meta.source);
    if is_unjudged {
        // The kernel does not keep the interface of IPv6 fragments that it makes; without masquerading, the
        // source is the pod's. From an unknown pod, the packet is dropped.
        let from = match packet.ingress_ifindex() {
            0 => source.map_or(0, NonZeroU32::get),
            from => from,
        };
        if from != 0 || !is_of_another_tunnel(&meta, link) {
            policy::translated(packet, &meta, from)?;
        }
        // An uplink may lie on another one.
        packet.stamp(Stamp::Checked);
    }
    // A masqueraded packet has the node's source, and its replies come to the node.
    if let Some(client) = source
        && nodes::range(meta.destination).is_some_and(|node| node.is_remote_range())
    {
        flows::record(packet, &meta, client.get(), flows::REMOTE);
    }
    Ok(())
}

/// Whether a packet without an interface, and from no pod, is the outer one of another program's tunnel,
/// whose device has taken the interface from the packet (`skb_scrub_packet`). The pod's packet is inside: it
/// has left by that device, and the rules would judge the other end of the tunnel.
#[inline(always)]
fn is_of_another_tunnel(meta: &Meta, link: Link) -> bool {
    link == Link::Uplink && (meta.family == Family::Ipv4 || !meta.is_fragment())
}

#[inline(always)]
fn parse(packet: &Packet) -> Result<Meta, DropReason> {
    let ethertype = u16::from_be_bytes(packet.header::<Ethernet>(0)?.ethertype);
    Meta::parse(packet, ethertype, Sender::Stack)
}
