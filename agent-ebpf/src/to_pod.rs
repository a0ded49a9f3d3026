//! What the host's stack sends to a pod: only what is for the pod's own addresses gets in.

use agent_common::{DropReason, VifEntry};

use crate::{
    flows,
    from_pod::{nd, own_ipv4, own_ipv6},
    packet::{
        Arp, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, ICMPV6, IPV6_PAYLOAD, IcmpType, Ipv4,
        Ipv6, L3, Packet, first_byte, ipv4_key, ipv6_key, is_link_local,
    },
    vifs,
};

/// # Errors
/// Why the packet is to be dropped.
#[inline(always)]
pub fn judge(packet: &Packet<'_>) -> Result<(), DropReason> {
    let vif = vifs::vif(packet.ifindex())?;
    let ethertype = packet.header::<Ethernet>(0)?.ethertype;
    if packet.has_vlan_tag(ethertype) {
        return Err(DropReason::Vlan);
    }
    match ethertype {
        ETHERTYPE_IPV4 => ipv4(packet, vif),
        ETHERTYPE_IPV6 => ipv6(packet, vif),
        ETHERTYPE_ARP => arp(packet, vif),
        _ => Err(DropReason::Ethertype),
    }
}

#[inline(always)]
fn ipv4(packet: &Packet<'_>, vif: &VifEntry) -> Result<(), DropReason> {
    let ip = packet.header::<Ipv4>(L3)?;
    let [high, _] = ip.destination;
    if own_ipv4(vif, ip.destination) {
        if vifs::is_endpoint(ipv4_key(ip.source)) {
            flows::note_ipv4(packet, ip);
        }
        Ok(())
    } else if first_byte(high) >= 224 {
        Err(DropReason::Multicast)
    } else {
        Err(DropReason::NotForPod)
    }
}

#[inline(always)]
fn ipv6(packet: &Packet<'_>, vif: &VifEntry) -> Result<(), DropReason> {
    let ip = packet.header::<Ipv6>(L3)?;
    if own_ipv6(vif, &ip.destination) {
        if vifs::is_endpoint(ipv6_key(&ip.source)) {
            flows::note_ipv6(packet, ip);
        }
        return Ok(());
    }
    // Only this pod is behind the interface, so that its link-local addresses are its own affair.
    if is_link_local(&ip.destination) {
        return Ok(());
    }
    let [first, ..] = ip.destination;
    if first_byte(first) != 0xff {
        return Err(DropReason::NotForPod);
    }
    // The one multicast that a pod needs: the host asks for its MAC, should the permanent entry be gone.
    let asks = ip.next_header == ICMPV6
        && packet.header::<IcmpType>(IPV6_PAYLOAD)?.kind == nd::NEIGHBOUR_SOLICITATION;
    if asks { Ok(()) } else { Err(DropReason::Multicast) }
}

#[inline(always)]
fn arp(packet: &Packet<'_>, vif: &VifEntry) -> Result<(), DropReason> {
    let arp = packet.header::<Arp>(L3)?;
    if own_ipv4(vif, arp.target_ip) { Ok(()) } else { Err(DropReason::NotForPod) }
}
