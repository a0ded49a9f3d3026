//! Packets from the wire to the node: dropped if their source is a pod of this node.
//!
//! The program runs for every packet that the node receives. Everything else passes, also what is cut off or
//! malformed: the stack judges that.

use agent_common::DropReason;

use crate::{
    address::Address,
    endpoints,
    headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, Ethernet, Ipv4, Ipv6, L3},
    nodes,
    packet::Packet,
};

/// # Errors
/// Why to drop the packet.
#[inline(always)]
pub fn judge(packet: &Packet<'_>) -> Result<(), DropReason> {
    // For the device of a VLAN, which has a filter of its own if it is an uplink.
    if packet.vlan_id() != 0 {
        return Ok(());
    }
    let Ok(ethernet) = packet.header::<Ethernet>(0) else { return Ok(()) };
    let (source, reason) = match u16::from_be_bytes(ethernet.ethertype) {
        ETHERTYPE_IPV4 => match packet.header::<Ipv4>(L3) {
            Ok(ip) => (Address::v4(ip.source), DropReason::SpoofedIpv4),
            Err(_) => return Ok(()),
        },
        ETHERTYPE_IPV6 => match packet.header::<Ipv6>(L3) {
            Ok(ip) => (Address::v6(ip.source), DropReason::SpoofedIpv6),
            Err(_) => return Ok(()),
        },
        // Behind a tag without a VLAN (a priority only), the kernel would remove this one, too, and a packet
        // without any could come out.
        ETHERTYPE_VLAN | ETHERTYPE_QINQ => return Err(DropReason::Vlan),
        _ => return Ok(()),
    };
    if is_pods(source) { Err(reason) } else { Ok(()) }
}

/// Whether an address is a pod's of this node, or in the ranges of its pods.
#[inline(always)]
fn is_pods(address: Address) -> bool {
    endpoints::interface(address).is_some()
        || nodes::find(address).is_some_and(|node| node.is_own() && !node.is_address())
}
