//! IPv4 from a pod.

use agent_common::{DropReason, VifEntry};

use super::{Outcome, address_frame, own_ipv4, to_gateway};
use crate::{
    flows::{self, Ends},
    packet::{Ethernet, ICMP, IPV4_PAYLOAD, Ipv4, L3, Mac, Packet, first_byte, ipv4_key},
    vifs,
};

#[inline(always)]
pub fn judge(packet: &mut Packet<'_>, vif: &VifEntry, frame_to: &Mac) -> Result<Outcome, DropReason> {
    let ip = packet.header::<Ipv4>(L3)?;
    ip.check(packet)?;
    if !own_ipv4(vif, ip.source) {
        return Err(DropReason::SpoofedIpv4);
    }
    let destination = ip.destination;
    let [high, _] = destination;
    match first_byte(high) {
        0 | 127 => return Err(DropReason::Martian),
        224.. => return Err(DropReason::Multicast),
        _ => {}
    }
    to_gateway(frame_to)?;

    // The stack knows what to do with options, and answers a packet that has come to its last hop. Fragments it puts
    // together where it translates: they have no ports by which we could tell that a flow is the stack's.
    if ip.has_options() || ip.ttl <= 1 || ip.is_fragment() {
        return Ok(Outcome::Stack);
    }
    let Some(endpoint) = vifs::endpoint(ipv4_key(destination))? else {
        return Ok(Outcome::Stack);
    };
    // A pod gets nothing that a router would not pass on (RFC 1812, 5.2.2). The stack sees for itself.
    if !ip.is_intact() {
        return Err(DropReason::Malformed);
    }
    if flows::belongs_to_stack(packet, &Ends::ipv4(ip), ip.protocol, IPV4_PAYLOAD, ICMP) {
        return Ok(Outcome::Stack);
    }
    packet.header_mut::<Ipv4>(L3)?.take_hop();
    address_frame(packet.header_mut::<Ethernet>(0)?, endpoint.mac);
    Ok(Outcome::Local { ifindex: endpoint.ifindex })
}
