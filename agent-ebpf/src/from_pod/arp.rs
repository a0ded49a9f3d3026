//! ARP (RFC 826) from a pod: it may ask, and tell of its own address.

use agent_common::{DropReason, GATEWAY_IPV4, GATEWAY_MAC, VifEntry};

use super::{Outcome, address_frame, own_ipv4};
use crate::packet::{Arp, Ethernet, Ipv4Address, L3, Packet, ipv4_address};

const GATEWAY: Ipv4Address = ipv4_address(GATEWAY_IPV4);

/// Whom it asks about does not matter: no other pod hears it. If it is the gateway, this is where it gets its answer.
#[inline(always)]
pub fn judge(packet: &mut Packet<'_>, vif: &VifEntry) -> Result<Outcome, DropReason> {
    let arp = packet.header::<Arp>(L3)?;
    let own = own_ipv4(vif, arp.sender_ip);
    let asks = arp.operation == Arp::REQUEST;
    let allowed = match arp.operation {
        // RFC 5227: a probe for an address that is not yet in use comes from 0.0.0.0.
        Arp::REQUEST => own || arp.sender_ip == [0, 0],
        Arp::REPLY => own,
        _ => false,
    };
    if !arp.is_ipv4_over_ethernet() || arp.sender_mac != vif.mac || !allowed {
        return Err(DropReason::SpoofedArp);
    }
    if !asks || !own || arp.target_ip != GATEWAY {
        return Ok(Outcome::Stack);
    }
    let arp = packet.header_mut::<Arp>(L3)?;
    (arp.target_mac, arp.target_ip) = (arp.sender_mac, arp.sender_ip);
    (arp.sender_mac, arp.sender_ip) = (GATEWAY_MAC, GATEWAY);
    arp.operation = Arp::REPLY;
    address_frame(packet.header_mut::<Ethernet>(0)?, vif.mac);
    Ok(Outcome::Answered)
}
