//! IPv6 from a pod.

use agent_common::{DropReason, Vif};

use super::{Outcome, address_frame, nd, own_ipv6, to_gateway};
use crate::{
    packet::{Ethernet, ICMPV6, Ipv6, Ipv6Address, L3, Mac, Packet, first_byte, ipv6_key, is_link_local},
    vifs,
};

#[inline(always)]
pub fn judge(packet: &mut Packet<'_>, vif: &Vif, frame_to: &Mac) -> Result<Outcome, DropReason> {
    let ip = packet.header::<Ipv6>(L3)?;
    ip.check(packet)?;
    if ip.next_header == ICMPV6 && nd::is_nd(packet)? {
        nd::judge(packet, vif, ip)?;
        return Ok(Outcome::Stack);
    }
    let destination = &ip.destination;
    let [first, ..] = *destination;
    if first_byte(first) == 0xff {
        return Err(DropReason::Multicast);
    }
    if !own_ipv6(vif, &ip.source) {
        // From its link-local address a pod reaches its link, on which there is only the gateway. That also
        // ends router advertisements and redirects behind extension headers, where `nd` does not look: both are
        // only heard from a link-local source, and the stack hears them only to its own link-local address,
        // where `accept_ra` and `accept_redirects` are off.
        let link = nd::own_link_local(vif, &ip.source) && is_link_local(destination);
        if !link {
            return Err(DropReason::SpoofedIpv6);
        }
    }
    if is_local_to_host(destination) {
        return Err(DropReason::Martian);
    }
    to_gateway(frame_to)?;

    // The stack answers a packet that has come to its last hop.
    if ip.hop_limit <= 1 {
        return Ok(Outcome::Stack);
    }
    let Some(endpoint) = vifs::endpoint(ipv6_key(destination)) else {
        return Ok(Outcome::Stack);
    };
    packet.header_mut::<Ipv6>(L3)?.hop_limit -= 1;
    address_frame(packet.header_mut::<Ethernet>(0)?, endpoint.mac);
    Ok(Outcome::Local { ifindex: endpoint.ifindex })
}

/// `::`, `::1`, and IPv4 in IPv6 (`::/96`, `::ffff:0:0/96`), under which `ENDPOINTS` keeps IPv4.
#[inline(always)]
fn is_local_to_host(address: &Ipv6Address) -> bool {
    let [a, b, c, d, e, f, ..] = *address;
    a | b | c | d | e == 0 && (f == 0 || f == 0xffff)
}
