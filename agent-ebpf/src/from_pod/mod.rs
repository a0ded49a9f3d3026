//! What a pod sends: it must be the pod's own, and goes to a pod of this node or to the stack.

mod arp;
mod ipv4;
mod ipv6;
pub mod nd;

use agent_common::{DropReason, GATEWAY_MAC, VifEntry};

use crate::{
    packet::{
        ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, Ipv4Address, Ipv6Address, Mac, Packet,
        is_multicast_mac,
    },
    vifs,
};

/// Where a packet goes that may pass.
pub enum Outcome {
    /// To the host's stack: the node itself, and what is beyond it.
    Stack,
    /// To a pod of this node, whose host interface this is. The packet has been rewritten for it.
    Local { ifindex: u32 },
    /// Back to the pod: it has been rewritten into the answer of the gateway, whose addresses no interface has.
    Answered,
}

/// # Errors
/// Why the packet is to be dropped.
#[inline(always)]
pub fn judge(packet: &mut Packet<'_>) -> Result<Outcome, DropReason> {
    let vif = vifs::vif(packet.ifindex())?;
    let Ethernet { destination, source, ethertype } = *packet.header::<Ethernet>(0)?;
    if source != vif.mac {
        return Err(DropReason::SpoofedMac);
    }
    if packet.has_vlan_tag(ethertype) {
        return Err(DropReason::Vlan);
    }
    match ethertype {
        ETHERTYPE_IPV4 => ipv4::judge(packet, vif, &destination),
        ETHERTYPE_IPV6 => ipv6::judge(packet, vif, &destination),
        ETHERTYPE_ARP => arp::judge(packet, vif),
        _ => Err(DropReason::Ethertype),
    }
}

/// Whether an address is the pod's own.
#[inline(always)]
pub fn own_ipv4(vif: &VifEntry, address: Ipv4Address) -> bool {
    // SAFETY: integers of the same size; memory order stays network order.
    let own = unsafe { core::mem::transmute::<[u8; 4], Ipv4Address>(vif.ipv4) };
    vif.flags & VifEntry::HAS_IPV4 != 0 && own == address
}

/// Whether an address is the pod's own, other than link-local.
#[inline(always)]
pub fn own_ipv6(vif: &VifEntry, address: &Ipv6Address) -> bool {
    // SAFETY: integers of the same size; memory order stays network order.
    let own = unsafe { core::mem::transmute::<[u8; 16], Ipv6Address>(vif.ipv6) };
    vif.flags & VifEntry::HAS_IPV6 != 0 && same(&own, address)
}

/// A router takes a packet only from a frame that is addressed to it.
///
/// # Errors
/// If it is not.
#[inline(always)]
fn to_gateway(destination: &Mac) -> Result<(), DropReason> {
    if *destination == GATEWAY_MAC {
        Ok(())
    } else if is_multicast_mac(destination) {
        Err(DropReason::Multicast)
    } else {
        Err(DropReason::NotToGateway)
    }
}

/// Word by word: a comparison of arrays becomes a loop over bytes, which the verifier walks in full.
#[inline(always)]
fn same(a: &Ipv6Address, b: &Ipv6Address) -> bool {
    a[0] == b[0]
        && a[1] == b[1]
        && a[2] == b[2]
        && a[3] == b[3]
        && a[4] == b[4]
        && a[5] == b[5]
        && a[6] == b[6]
        && a[7] == b[7]
}

/// Rewrites the frame as a router would: from the gateway to the pod.
#[inline(always)]
fn address_frame(ethernet: &mut Ethernet, mac: Mac) {
    ethernet.destination = mac;
    ethernet.source = GATEWAY_MAC;
}
