//! The filter of a VXLAN device that receives for one network identifier only (Linux 5.18). Without the
//! filter, `from_tunnel` drops foreign identifiers.

use std::{io, time::Duration};

use agent_common::TUNNEL_VNI as VNI;
use nix::{
    errno::Errno,
    sys::{
        socket::{setsockopt, sockopt::ReceiveTimeout},
        time::{TimeVal, TimeValLike as _},
    },
};
use rtnetlink::{
    packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NlasIterator},
    sys::{Socket as Raw, SocketAddr, protocols::NETLINK_ROUTE},
};

use super::super::netlink::{NetlinkError, borrow};
use crate::crash::{self, Step};

/// `RTNLGRP_TUNNEL` in `linux/rtnetlink.h`: notifications about the filters.
pub(super) const GROUP: u32 = 35;
/// `RTM_NEWTUNNEL`, `RTM_DELTUNNEL` and `RTM_GETTUNNEL`.
pub(super) const NEW_TUNNEL: u16 = 120;
pub(super) const DELETE_TUNNEL: u16 = 121;
const GET_TUNNEL: u16 = 122;
/// `NLMSG_ERROR` and `NLMSG_DONE` in `linux/netlink.h`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `PF_BRIDGE` in `linux/socket.h`.
const BRIDGE: u8 = 7;
/// `VXLAN_VNIFILTER_ENTRY`, `VXLAN_VNIFILTER_ENTRY_START` and `…_END` in `linux/if_link.h`.
const ENTRY: u16 = 1;
const ENTRY_START: u16 = 1;
const ENTRY_END: u16 = 2;
/// `NLA_F_NESTED` in `linux/netlink.h`.
const NESTED: u16 = 1 << 15;
/// Bytes: `struct nlmsghdr`, `struct tunnel_msg`.
const HEADER: usize = 16;
const DEVICE: usize = 8;
const DEADLINE: Duration = Duration::from_secs(2);
/// Bytes: larger than any datagram of a dump.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// Bounds a dump: a device has at most as many ranges as there are identifiers, 2^24.
const DATAGRAMS: usize = 16 * 1024;

/// What a datagram of a dump says.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// The tunnel's network is among those of the device.
    Found,
    More,
    End,
}

/// Lets a device receive the tunnel's packets. A kernel without the filter needs no permission.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn permit(ifindex: u32) -> Result<(), NetlinkError> {
    let what = format!("let the tunnel device receive the network {VNI}");
    match send(&permission(ifindex)) {
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
    let socket = Raw::new(NETLINK_ROUTE)?;
    let deadline = TimeVal::milliseconds(i64::try_from(DEADLINE.as_millis()).unwrap_or(i64::MAX));
    setsockopt(&borrow(&socket), ReceiveTimeout, &deadline)?;
    socket.send(&message(GET_TUNNEL, NLM_F_DUMP, ifindex, &[]), 0)?;
    let mut datagram = Vec::with_capacity(RECEIVE_BUFFER);
    for _ in 0..DATAGRAMS {
        datagram.clear();
        socket.recv(&mut datagram, 0)?;
        match part(&datagram)? {
            Part::Found => return Ok(true),
            Part::More => {}
            Part::End => return Ok(false),
        }
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

fn part(mut rest: &[u8]) -> io::Result<Part> {
    while let Ok(message) = NetlinkBuffer::new_checked(rest) {
        let body = message.payload();
        match message.message_type() {
            // The kernel ends a dump with an error number, too.
            ERROR | DONE => match number(body).map(u32::cast_signed) {
                Some(code) if code != 0 => return Err(io::Error::from_raw_os_error(code.saturating_abs())),
                _ => return Ok(Part::End),
            },
            NEW_TUNNEL if has_network(body.get(DEVICE..).unwrap_or_default()) => return Ok(Part::Found),
            _ => {}
        }
        rest = rest.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(Part::More)
}

/// The kernel shows neighbouring identifiers as a range.
fn has_network(entries: &[u8]) -> bool {
    NlasIterator::new(entries).flatten().filter(|it| it.kind() & !NESTED == ENTRY).any(|entry| {
        let edge = |kind| {
            let edge = NlasIterator::new(entry.value()).flatten().find(|it| it.kind() == kind);
            edge.and_then(|it| number(it.value()))
        };
        edge(ENTRY_START).is_some_and(|first| (first..=edge(ENTRY_END).unwrap_or(first)).contains(&VNI))
    })
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk::<4>().map(|it| u32::from_ne_bytes(*it))
}

fn send(message: &[u8]) -> io::Result<()> {
    let socket = Raw::new(NETLINK_ROUTE)?;
    socket.send_to(message, &SocketAddr::new(0, 0), 0)?;
    crash::point(Step::NetlinkChanged);
    // The kernel has answered before the message was sent.
    let (answer, _) = socket.recv_from_full()?;
    let kind = answer.get(4..6).and_then(|it| it.first_chunk::<2>()).map(|it| u16::from_ne_bytes(*it));
    let code = answer.get(16..20).and_then(|it| it.first_chunk::<4>()).map(|it| i32::from_ne_bytes(*it));
    match (kind, code) {
        (Some(ERROR), Some(0)) => Ok(()),
        (Some(ERROR), Some(code)) => Err(io::Error::from_raw_os_error(code.saturating_abs())),
        _ => Err(io::Error::other("the kernel's answer is no acknowledgement")),
    }
}

fn permission(ifindex: u32) -> Vec<u8> {
    let start = [&8_u16.to_ne_bytes()[..], &ENTRY_START.to_ne_bytes(), &VNI.to_ne_bytes()].concat();
    let entry = [&12_u16.to_ne_bytes()[..], &(ENTRY | NESTED).to_ne_bytes(), &start].concat();
    message(NEW_TUNNEL, NLM_F_ACK | NLM_F_CREATE, ifindex, &entry)
}

fn message(kind: u16, flags: u16, ifindex: u32, attributes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + DEVICE + attributes.len()).unwrap_or(u32::MAX);
    let flags = NLM_F_REQUEST | flags;
    let header = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]].concat();
    let device = [&[BRIDGE, 0, 0, 0][..], &ifindex.to_ne_bytes()].concat();
    [&header, &device, attributes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel shows a range.
    fn range(first: u32, last: Option<u32>) -> Vec<u8> {
        let edge = |kind: u16, value: u32| {
            [&8_u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &value.to_ne_bytes()].concat()
        };
        let edges = [edge(1, first), last.map(|it| edge(2, it)).unwrap_or_default()].concat();
        let length = u16::try_from(edges.len() + 4).unwrap();
        let entry = [&length.to_ne_bytes()[..], &(1_u16 | 1 << 15).to_ne_bytes(), &edges].concat();
        message(120, 0, 7, &entry)
    }

    fn end(kind: u16, code: i32) -> Vec<u8> {
        let header = [&20_u32.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10]].concat();
        [&header[..], &code.to_ne_bytes()].concat()
    }

    #[test]
    fn a_request_is_as_long_as_its_header_says() {
        assert_eq!(permission(7).len(), 36);
        for message in [permission(7), message(GET_TUNNEL, NLM_F_DUMP, 7, &[])] {
            assert_eq!(NetlinkBuffer::new_checked(&message[..]).unwrap().length() as usize, message.len());
        }
    }

    #[test]
    fn the_network_is_found_alone_and_in_a_range() {
        for (first, last, expected) in [
            (70, None, Part::Found),
            (70, Some(71), Part::Found),
            (1, Some(70), Part::Found),
            (69, None, Part::End),
            (71, Some(99), Part::End),
            (1, Some(69), Part::End),
        ] {
            let datagram = [range(1000, None), range(first, last), end(3, 0)].concat();
            assert_eq!(part(&datagram).unwrap(), expected, "{first} to {last:?}");
        }
        assert_eq!(part(&range(69, None)).unwrap(), Part::More);
        assert_eq!(part(&range(70, None)[..30]).unwrap(), Part::More, "cut off");
    }

    #[test]
    fn a_refused_dump_is_an_error_however_the_kernel_says_so() {
        for kind in [2, 3] {
            let error = part(&end(kind, -95)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::EOPNOTSUPP as i32));
        }
    }
}
