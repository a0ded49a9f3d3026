//! Neighbour discovery (RFC 4861) from a pod: probes pass, and advertisements of the pod's own addresses.
//! Solicitations are answered, as ARP requests are.

use agent_common::{DropReason, GATEWAY_IPV6, GATEWAY_MAC, VifEntry};

use crate::{
    address::Address,
    checksum::Sum,
    headers::{Ethernet, ICMPV6, IPV6_PAYLOAD, Ipv6, L3, MacOption, NeighbourMessage},
    meta::{Meta, Scope},
    outcome::Outcome,
    packet::{Packet, Stamp},
    vifs,
};

pub const NEIGHBOUR_SOLICITATION: u8 = 135;
const ROUTER_SOLICITATION: u8 = 133;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// Offset of the first option.
const OPTIONS: usize = IPV6_PAYLOAD + size_of::<NeighbourMessage>();
/// Linux sends at most two: a MAC, and a nonce (RFC 7527).
const MAX_OPTIONS: usize = 4;
const SOURCE_MAC: u8 = 1;
const TARGET_MAC: u8 = 2;

#[inline(always)]
pub fn is_nd(icmpv6_type: u8) -> bool {
    (ROUTER_SOLICITATION..=REDIRECT).contains(&icmpv6_type)
}

/// # Errors
/// `SpoofedNd`, if the message claims an address or MAC that is not the pod's, or is for routers to send;
/// `Multicast` for a router solicitation, because the pod's only router is configured; `Malformed`, if the
/// message is truncated.
#[inline(always)]
pub fn judge(
    packet: &mut Packet,
    meta: &Meta,
    vif: &VifEntry,
    icmpv6_type: u8,
) -> Result<Outcome, DropReason> {
    let own = |address: Address| vif.owns_ipv6(address.to_v6()) || vifs::owns_link_local(vif, address);
    let own_source = own(meta.source);
    // Messages for routers to send are not parsed further, and can be shorter.
    match icmpv6_type {
        NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => {}
        ROUTER_SOLICITATION if own_source => return Err(DropReason::Multicast),
        _ => return Err(DropReason::SpoofedNd),
    }
    packet.pull_neighbour_message();
    let target = Address::v6(packet.header::<NeighbourMessage>(IPV6_PAYLOAD)?.target);
    let solicits = icmpv6_type == NEIGHBOUR_SOLICITATION;
    let allowed = if solicits {
        // RFC 4862, 5.4: an address that is being probed is not used as source yet.
        own_source || meta.source == Address::UNSPECIFIED
    } else {
        own_source && own(target)
    };
    // RFC 4861, 7.1: a routed message has a lower hop limit.
    if !allowed || meta.hops != 255 {
        return Err(DropReason::SpoofedNd);
    }
    // Neighbour discovery does not leave the link: the stack would route a message to another address.
    if meta.destination_scope() == Scope::Host {
        return Err(DropReason::Martian);
    }
    if !meta.destination.is_on_link() {
        return Err(DropReason::SpoofedNd);
    }
    check_options(packet, vif)?;
    if solicits && own_source && !own(target) && target.first_of_v6() != 0xff {
        answer(packet, meta, vif, target)?;
        return Ok(Outcome::ANSWERED);
    }
    Ok(Outcome::stack(packet, Stamp::Checked))
}

/// # Errors
/// `SpoofedNd`, if an option holds a MAC other than the pod's, or if there are too many; `Malformed`, if one
/// is truncated.
#[inline(always)]
fn check_options(packet: &Packet, vif: &VifEntry) -> Result<(), DropReason> {
    let end = IPV6_PAYLOAD + usize::from(u16::from_be_bytes(packet.header::<Ipv6>(L3)?.payload_len));
    let mut offset = OPTIONS;
    for _ in 0..MAX_OPTIONS {
        if offset >= end {
            return Ok(());
        }
        let option = packet.copy::<MacOption>(offset).ok_or(DropReason::Malformed)?;
        if option.len == 0 {
            return Err(DropReason::Malformed);
        }
        if matches!(option.kind, SOURCE_MAC | TARGET_MAC) && option.mac != vif.mac {
            return Err(DropReason::SpoofedNd);
        }
        offset += usize::from(option.len) * 8;
    }
    if offset >= end { Ok(()) } else { Err(DropReason::SpoofedNd) }
}

/// Rewrites a solicitation into the gateway's advertisement, in place. The gateway's MAC takes the place of
/// the pod's; a unicast solicitation may lack that, and then the answer may, too (RFC 4861, 4.4).
#[inline(always)]
fn answer(packet: &mut Packet, meta: &Meta, vif: &VifEntry, target: Address) -> Result<(), DropReason> {
    const MESSAGE: u16 = size_of::<NeighbourMessage>() as u16;
    const WITH_OPTION: u16 = MESSAGE + size_of::<MacOption>() as u16;

    let pod = meta.source.to_v6();
    let ip = packet.header_mut::<Ipv6>(L3)?;
    let has_room = u16::from_be_bytes(ip.payload_len) >= WITH_OPTION;
    let payload_len = if has_room { WITH_OPTION } else { MESSAGE };
    (ip.source, ip.destination) = (GATEWAY_IPV6, pod);
    ip.payload_len = payload_len.to_be_bytes();

    let mut message = NeighbourMessage {
        kind: NEIGHBOUR_ADVERTISEMENT,
        code: 0,
        checksum: [0; 2],
        // Router, solicited, override.
        flags: [0xe0, 0, 0, 0],
        target: target.to_v6(),
    };
    let option = MacOption { kind: TARGET_MAC, len: 1, mac: GATEWAY_MAC };
    // With the pseudo-header (RFC 8200, 8.1).
    let pseudo = Sum::ZERO.header(&GATEWAY_IPV6).header(&pod).number(payload_len).number(u16::from(ICMPV6));
    let mut sum = pseudo.header(&message);
    if has_room {
        sum = sum.header(&option);
        *packet.header_mut::<MacOption>(OPTIONS)? = option;
    }
    message.checksum = (!sum.fold()).to_ne_bytes();
    *packet.header_mut::<NeighbourMessage>(IPV6_PAYLOAD)? = message;
    packet.header_mut::<Ethernet>(0)?.readdress(&vif.mac);
    Ok(())
}
