//! The filter of a VXLAN device that receives for one network identifier only (Linux 5.18). Without the
//! filter, `from_tunnel` drops foreign identifiers.

use std::{io, ops::ControlFlow};

use agent_common::TUNNEL_VNI as VNI;
use nix::errno::Errno;
use rtnetlink::{
    packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST},
    sys::protocols::NETLINK_ROUTE,
};

use super::super::{
    message::{Attribute, attributes_of, encode, encode_all, find},
    netlink::NetlinkError,
    raw,
};

/// `RTNLGRP_TUNNEL` in `linux/rtnetlink.h`: notifications about the filters.
pub(super) const GROUP: u32 = 35;
/// `RTM_NEWTUNNEL`, `RTM_DELTUNNEL` and `RTM_GETTUNNEL`.
pub(super) const NEW_TUNNEL: u16 = 120;
pub(super) const DELETE_TUNNEL: u16 = 121;
const GET_TUNNEL: u16 = 122;
/// `PF_BRIDGE` in `linux/socket.h`.
const BRIDGE: u8 = 7;
/// `VXLAN_VNIFILTER_ENTRY`, `VXLAN_VNIFILTER_ENTRY_START` and `…_END` in `linux/if_link.h`.
const ENTRY: u16 = 1;
const ENTRY_START: u16 = 1;
const ENTRY_END: u16 = 2;
/// Bytes of `struct tunnel_msg`, which precedes the attributes.
const DEVICE: usize = 8;
/// Bounds a dump: a device has at most as many ranges as there are identifiers, 2^24.
const DATAGRAMS: usize = 16 * 1024;

/// Lets a device receive the tunnel's packets. A kernel without the filter needs no permission.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn permit(ifindex: u32) -> Result<(), NetlinkError> {
    let what = format!("let the tunnel device receive the network {VNI}");
    match raw::open(NETLINK_ROUTE).and_then(|socket| raw::change(&socket, &permission(ifindex))) {
        Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => Ok(()),
        result => result.map_err(|source| NetlinkError::new(what, source)),
    }
}

/// Whether a device receives the tunnel's packets.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn is_permitted(ifindex: u32) -> Result<bool, NetlinkError> {
    match list(ifindex) {
        Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => Ok(true),
        result => result
            .map_err(|source| NetlinkError::new("list the networks that the tunnel device receives", source)),
    }
}

fn list(ifindex: u32) -> io::Result<bool> {
    let request = message(GET_TUNNEL, NLM_F_DUMP, ifindex, &[]);
    raw::dump(&raw::open(NETLINK_ROUTE)?, &request, DATAGRAMS, |is_found, message| {
        *is_found = message.kind == NEW_TUNNEL && has_network(message.body());
        if *is_found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// The kernel shows neighbouring identifiers as a range.
fn has_network(body: &[u8]) -> bool {
    let entries = attributes_of(body.get(DEVICE..).unwrap_or_default());
    entries.filter(|it| it.kind() == ENTRY).any(|entry| {
        let edge = |kind| find(entry.value(), &[kind])?.first_chunk().map(|it| u32::from_ne_bytes(*it));
        edge(ENTRY_START).is_some_and(|first| (first..=edge(ENTRY_END).unwrap_or(first)).contains(&VNI))
    })
}

fn permission(ifindex: u32) -> Vec<u8> {
    let start = Attribute::Value(ENTRY_START, VNI.to_ne_bytes().to_vec());
    message(NEW_TUNNEL, NLM_F_ACK | NLM_F_CREATE, ifindex, &[Attribute::Nest(ENTRY, vec![start])])
}

fn message(kind: u16, flags: u16, ifindex: u32, attributes: &[Attribute]) -> Vec<u8> {
    let body = [&[BRIDGE, 0, 0, 0][..], &ifindex.to_ne_bytes(), &encode_all(attributes)].concat();
    encode((kind, NLM_F_REQUEST | flags, 0), &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_found_alone_and_in_a_range() {
        // As the kernel shows a range.
        let range = |first: u32, last: Option<u32>| {
            let edge = |kind, value: u32| Attribute::Value(kind, value.to_ne_bytes().to_vec());
            let edges = [Some(edge(1, first)), last.map(|it| edge(2, it))];
            Attribute::Nest(1, edges.into_iter().flatten().collect())
        };
        for (first, last, expected) in [
            (70, None, true),
            (70, Some(71), true),
            (1, Some(70), true),
            (69, None, false),
            (71, Some(99), false),
            (1, Some(69), false),
        ] {
            let body = [&[0; DEVICE][..], &encode_all(&[range(1000, None), range(first, last)])].concat();
            assert_eq!(has_network(&body), expected, "{first} to {last:?}");
            assert!(!has_network(&body[..30]), "cut off");
        }
    }
}
