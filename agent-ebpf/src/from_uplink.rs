//! Packets from the wire to the node: dropped if their source is a pod of this node; those of a remote pod go
//! to a pod of this node, also those of the tunnel, out of which they are taken.
//!
//! The program runs for every packet that the node receives. Everything else passes, also what is cut off or
//! malformed: the stack judges that.

use agent_common::DropReason;

use crate::{
    address::Address,
    endpoints,
    headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, Ethernet, Ipv4, Ipv6, L3},
    meta::{Meta, Sender},
    nodes,
    outcome::Inbound,
    packet::Packet,
    remote, vxlan,
};

/// # Errors
/// Why to drop the packet.
#[inline(always)]
pub fn judge(packet: &mut Packet) -> Result<Inbound, DropReason> {
    // For the device of a VLAN, which has a filter of its own if it is an uplink.
    if packet.vlan_id() != 0 {
        return Ok(Inbound::STACK);
    }
    let Ok(ethernet) = packet.header::<Ethernet>(0) else { return Ok(Inbound::STACK) };
    let ethertype = u16::from_be_bytes(ethernet.ethertype);
    let (source, reason) = match ethertype {
        ETHERTYPE_IPV4 => match packet.header::<Ipv4>(L3).copied() {
            Ok(ip) => match vxlan::unpack(packet, ip)? {
                Some(inbound) => return Ok(inbound),
                None => (Address::v4(ip.source), DropReason::SpoofedIpv4),
            },
            Err(_) => return Ok(Inbound::STACK),
        },
        ETHERTYPE_IPV6 => match packet.header::<Ipv6>(L3) {
            Ok(ip) => (Address::v6(ip.source), DropReason::SpoofedIpv6),
            Err(_) => return Ok(Inbound::STACK),
        },
        // Behind a tag without a VLAN (a priority only), the kernel would remove this one, too, and a packet
        // without any could come out.
        ETHERTYPE_VLAN | ETHERTYPE_QINQ => return Err(DropReason::Vlan),
        _ => return Ok(Inbound::STACK),
    };
    let node = nodes::range(source);
    if node.is_some_and(|node| node.is_own()) || endpoints::interface(source).is_some() {
        return Err(reason);
    }
    // By any uplink, also if this node sends by another one or by the tunnel: the other node's choice may
    // differ, and half of a flow by the stack would be invalid to conntrack.
    match node.filter(|node| node.is_remote_range() && packet.is_for_host()) {
        // The stack judges packets that contradict themselves, like all others from outside.
        Some(node) => match Meta::parse(packet, ethertype, Sender::Outside) {
            Ok(meta) => match endpoints::find(&meta)? {
                Some(endpoint) => remote::receive(packet, &meta, &node, endpoint),
                None => Ok(Inbound::STACK),
            },
            Err(_) => Ok(Inbound::STACK),
        },
        None => Ok(Inbound::STACK),
    }
}
