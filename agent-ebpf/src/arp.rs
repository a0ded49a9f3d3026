//! ARP (RFC 826) from a pod: probes pass, and claims of the pod's own address. Requests are answered: the
//! gateway is alone with the pod on its link, and routes to all addresses, whichever of them the pod takes
//! for its gateway's.

use agent_common::{DropReason, GATEWAY_MAC, VifEntry};

use crate::{
    headers::{Arp, Ethernet, L3, set_mac},
    outcome::Outcome,
    packet::{Packet, Stamp},
};

/// The target address is not checked, since no other pod receives the message.
///
/// # Errors
/// `SpoofedArp`, if the message claims an address or MAC that is not the pod's; `Malformed`, if it is
/// truncated.
#[inline(always)]
pub fn judge(packet: &mut Packet, vif: &VifEntry) -> Result<Outcome, DropReason> {
    let arp = packet.header::<Arp>(L3)?;
    let own = vif.owns_ipv4(arp.sender_ip);
    let operation = u16::from_be_bytes(arp.operation);
    let allowed = match operation {
        // RFC 5227: a probe for an address that is not in use yet comes from 0.0.0.0.
        Arp::REQUEST => own || arp.sender_ip == [0; 4],
        Arp::REPLY => own,
        _ => false,
    };
    if !arp.is_ipv4_over_ethernet() || arp.sender_mac != vif.mac || !allowed {
        return Err(DropReason::SpoofedArp);
    }
    // Not a claim, and not a probe, whose answer would mean that the address is in use.
    if operation != Arp::REQUEST || !own || arp.target_ip == arp.sender_ip {
        return Ok(Outcome::stack(packet, Stamp::Checked));
    }
    let arp = packet.header_mut::<Arp>(L3)?;
    set_mac(&mut arp.target_mac, &vif.mac);
    set_mac(&mut arp.sender_mac, &GATEWAY_MAC);
    (arp.target_ip, arp.sender_ip) = (arp.sender_ip, arp.target_ip);
    arp.operation = Arp::REPLY.to_be_bytes();
    packet.header_mut::<Ethernet>(0)?.readdress(&vif.mac);
    Ok(Outcome::ANSWERED)
}
