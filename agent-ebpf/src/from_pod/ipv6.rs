//! IPv6 from a pod.

use agent_common::{DropReason, VifEntry};

use super::{Outcome, address_frame, nd, own_ipv6, to_gateway};
use crate::{
    flows::{self, Ends},
    packet::{
        Ethernet, ICMPV6, IPV6_PAYLOAD, IcmpType, Ipv6, Ipv6Address, L3, Mac, Packet, TCP, UDP, first_byte,
        ipv6_key, is_link_local,
    },
    vifs,
};

#[inline(always)]
pub fn judge(packet: &mut Packet<'_>, vif: &VifEntry, frame_to: &Mac) -> Result<Outcome, DropReason> {
    let ip = packet.header::<Ipv6>(L3)?;
    ip.check(packet)?;
    if ip.next_header == ICMPV6 {
        let kind = packet.header::<IcmpType>(IPV6_PAYLOAD)?.kind;
        if nd::is_nd(kind) {
            return nd::judge(packet, vif, kind);
        }
    }
    let destination = &ip.destination;
    let [first, ..] = *destination;
    if first_byte(first) == 0xff {
        return Err(DropReason::Multicast);
    }
    if !own_ipv6(vif, &ip.source) {
        on_link(vif, ip)?;
    }
    if is_local_to_host(destination) {
        return Err(DropReason::Martian);
    }
    to_gateway(frame_to)?;

    // As for IPv4: a packet at its last hop, options, fragments.
    if ip.hop_limit <= 1 || ip.has_extensions() {
        return Ok(Outcome::Stack);
    }
    let Some(endpoint) = vifs::endpoint(ipv6_key(destination))? else {
        return Ok(Outcome::Stack);
    };
    if flows::belongs_to_stack(packet, &Ends::ipv6(ip), ip.next_header, IPV6_PAYLOAD, ICMPV6) {
        return Ok(Outcome::Stack);
    }
    packet.header_mut::<Ipv6>(L3)?.hop_limit -= 1;
    address_frame(packet.header_mut::<Ethernet>(0)?, endpoint.mac);
    Ok(Outcome::Local { ifindex: endpoint.ifindex })
}

/// From its link-local address a pod reaches its link, on which there is only the gateway.
///
/// Behind an extension header, where `nd` does not look, could be what only a router may send: router
/// advertisements and redirects, which are heard from a link-local source only (RFC 4861, 6.1.2 and 8.1). Nothing
/// that a pod says to its gateway needs such a header.
#[inline(always)]
fn on_link(vif: &VifEntry, ip: &Ipv6) -> Result<(), DropReason> {
    if !nd::own_link_local(vif, &ip.source) || !is_link_local(&ip.destination) {
        Err(DropReason::SpoofedIpv6)
    } else if matches!(ip.next_header, ICMPV6 | TCP | UDP) {
        Ok(())
    } else {
        Err(DropReason::SpoofedNd)
    }
}

/// `::`, `::1`, and IPv4 in IPv6 (`::/96`, `::ffff:0:0/96`), under which `ENDPOINTS` keeps IPv4.
#[inline(always)]
fn is_local_to_host(address: &Ipv6Address) -> bool {
    let [a, b, c, d, e, f, ..] = *address;
    a | b | c | d | e == 0 && (f == 0 || f == 0xffff)
}
