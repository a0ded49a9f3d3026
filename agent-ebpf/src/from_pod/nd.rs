//! Neighbour discovery (RFC 4861) from a pod: it may ask, and answer for itself. For the gateway, this is what answers.

use agent_common::{DropReason, GATEWAY_IPV6, GATEWAY_MAC, VifEntry};

use super::{Outcome, address_frame, own_ipv6, same};
use crate::packet::{
    Ethernet, ICMPV6, IPV6_PAYLOAD, Ipv6, Ipv6Address, L3, MacOption, NeighbourMessage, Packet, folded,
    ipv6_address, total,
};

pub const NEIGHBOUR_SOLICITATION: u8 = 135;
const ROUTER_SOLICITATION: u8 = 133;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// Offset of the first option of a neighbour message.
const OPTIONS: usize = IPV6_PAYLOAD + size_of::<NeighbourMessage>();
/// Linux sends at most two: its MAC, and a nonce (RFC 7527).
const MAX_OPTIONS: usize = 4;
const SOURCE_MAC: u8 = 1;
const TARGET_MAC: u8 = 2;
const GATEWAY: Ipv6Address = ipv6_address(GATEWAY_IPV6);

/// Whether a type of ICMPv6 messages is neighbour discovery.
#[inline(always)]
pub fn is_nd(kind: u8) -> bool {
    (ROUTER_SOLICITATION..=REDIRECT).contains(&kind)
}

/// # Errors
/// `SpoofedNd`, if it claims what is not the pod's, or is for routers to send. `Multicast`, if it asks for routers: there
/// is one, which it knows.
#[inline(always)]
pub fn judge(packet: &mut Packet<'_>, vif: &VifEntry, kind: u8) -> Result<Outcome, DropReason> {
    let ip = packet.header::<Ipv6>(L3)?;
    let own = |address| own_ipv6(vif, address) || own_link_local(vif, address);
    let own_source = own(&ip.source);
    // Of what only routers send there is nothing more to read, and it can be shorter.
    match kind {
        NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => {}
        ROUTER_SOLICITATION if own_source => return Err(DropReason::Multicast),
        _ => return Err(DropReason::SpoofedNd),
    }
    let message = packet.header::<NeighbourMessage>(IPV6_PAYLOAD)?;
    let allowed = if kind == NEIGHBOUR_SOLICITATION {
        // RFC 4862, 5.4: an address that is being probed is not used as source yet.
        own_source || same(&ip.source, &[0; 8])
    } else {
        own_source && own(&message.target)
    };
    if !allowed || ip.hop_limit != 255 {
        return Err(DropReason::SpoofedNd);
    }
    own_mac_only(packet, vif, ip)?;
    if kind == NEIGHBOUR_SOLICITATION && own_source && same(&message.target, &GATEWAY) {
        answer(packet, vif)?;
        return Ok(Outcome::Answered);
    }
    Ok(Outcome::Stack)
}

/// Whether an address is the one that the pod's kernel makes of its MAC (RFC 4291, appendix A).
#[inline(always)]
pub fn own_link_local(vif: &VifEntry, address: &Ipv6Address) -> bool {
    let [a, b, c, d, e, f] = vif.mac;
    let own = [
        0xfe80_u16.to_be(),
        0,
        0,
        0,
        u16::from_ne_bytes([a ^ 2, b]),
        u16::from_ne_bytes([c, 0xff]),
        u16::from_ne_bytes([0xfe, d]),
        u16::from_ne_bytes([e, f]),
    ];
    same(&own, address)
}

#[inline(always)]
fn own_mac_only(packet: &Packet<'_>, vif: &VifEntry, ip: &Ipv6) -> Result<(), DropReason> {
    let end = IPV6_PAYLOAD + usize::from(u16::from_be(ip.payload_len));
    let mut offset = OPTIONS;
    for _ in 0..MAX_OPTIONS {
        if offset >= end {
            return Ok(());
        }
        let [kind, units, mac @ ..] = packet.bytes::<8>(offset)?;
        if units == 0 {
            return Err(DropReason::Malformed);
        }
        if matches!(kind, SOURCE_MAC | TARGET_MAC) && mac != vif.mac {
            return Err(DropReason::SpoofedNd);
        }
        offset += usize::from(units) * 8;
    }
    if offset >= end { Ok(()) } else { Err(DropReason::SpoofedNd) }
}

/// Rewrites a solicitation into the gateway's advertisement, in place. There is room for the gateway's MAC unless it was
/// asked without the pod's, by unicast; then it may be left out (RFC 4861, 4.4).
#[inline(always)]
fn answer(packet: &mut Packet<'_>, vif: &VifEntry) -> Result<(), DropReason> {
    const MESSAGE: u16 = size_of::<NeighbourMessage>() as u16;
    const OPTION: u16 = size_of::<MacOption>() as u16;

    let ip = packet.header_mut::<Ipv6>(L3)?;
    let has_room = u16::from_be(ip.payload_len) >= MESSAGE + OPTION;
    let payload_len = if has_room { (MESSAGE + OPTION).to_be() } else { MESSAGE.to_be() };
    let pod = ip.source;
    (ip.source, ip.destination) = (GATEWAY, pod);
    ip.payload_len = payload_len;

    let mut message = NeighbourMessage {
        kind: NEIGHBOUR_ADVERTISEMENT,
        code: 0,
        checksum: 0,
        // From a router, asked for, and to replace what is known.
        flags: [0xe000_u16.to_be(), 0],
        target: GATEWAY,
    };
    let option = MacOption { kind: TARGET_MAC, units: 1, mac: GATEWAY_MAC };
    // With the pseudo-header (RFC 8200, 8.1).
    let mut sum = u32::from(payload_len) + u32::from(u16::from(ICMPV6).to_be());
    sum += total(&GATEWAY) + total(&pod) + message.total();
    if has_room {
        sum += option.total();
        *packet.header_mut::<MacOption>(OPTIONS)? = option;
    }
    message.checksum = !folded(sum);
    *packet.header_mut::<NeighbourMessage>(IPV6_PAYLOAD)? = message;
    address_frame(packet.header_mut::<Ethernet>(0)?, vif.mac);
    Ok(())
}
