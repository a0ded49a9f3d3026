//! Neighbour discovery (RFC 4861) from a pod: it may ask, and answer for itself.

use agent_common::{DropReason, Vif};

use super::{own_ipv6, same};
use crate::packet::{IPV6_PAYLOAD, Ipv6, Ipv6Address, NeighbourMessage, Packet};

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

/// Whether a type of ICMPv6 messages is neighbour discovery.
#[inline(always)]
pub fn is_nd(kind: u8) -> bool {
    (ROUTER_SOLICITATION..=REDIRECT).contains(&kind)
}

/// # Errors
/// `SpoofedNd`, if it claims what is not the pod's, or is for routers to send.
#[inline(always)]
pub fn judge(packet: &Packet<'_>, vif: &Vif, ip: &Ipv6, kind: u8) -> Result<(), DropReason> {
    // Of a router's messages there is nothing more to read, and they can be shorter.
    if kind != NEIGHBOUR_SOLICITATION && kind != NEIGHBOUR_ADVERTISEMENT {
        return Err(DropReason::SpoofedNd);
    }
    let message = packet.header::<NeighbourMessage>(IPV6_PAYLOAD)?;
    let own = |address| own_ipv6(vif, address) || own_link_local(vif, address);
    let allowed = if kind == NEIGHBOUR_SOLICITATION {
        // RFC 4862, 5.4: an address that is being probed is not used as source yet.
        own(&ip.source) || same(&ip.source, &[0; 8])
    } else {
        own(&ip.source) && own(&message.target)
    };
    if allowed && ip.hop_limit == 255 { own_mac_only(packet, vif, ip) } else { Err(DropReason::SpoofedNd) }
}

/// Whether an address is the one that the pod's kernel makes of its MAC (RFC 4291, appendix A).
#[inline(always)]
pub fn own_link_local(vif: &Vif, address: &Ipv6Address) -> bool {
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
fn own_mac_only(packet: &Packet<'_>, vif: &Vif, ip: &Ipv6) -> Result<(), DropReason> {
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
