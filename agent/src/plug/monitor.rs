//! What the kernel tells of changes to interfaces and of what is on them.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt::RcvBufForce},
};
use rtnetlink::{
    packet_core::{NLM_F_REPLACE, NlasIterator},
    sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE},
};

use super::{
    netconf::{self, Forwards, Of, RTM_NEWNETCONF},
    netlink::borrow,
};

/// Hears of changes in the network namespace that it was opened in.
pub struct Monitor {
    socket: TokioSocket,
    message: Vec<u8>,
}

/// A change that may be about a pod's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Something came, or is another way, on an interface.
    Set(u32),
    /// Something went away from an interface, or it did itself.
    Removed(u32),
    /// A route to an address was put in the place of another one.
    Replaced(IpAddr),
    /// The node forwards a family no more.
    NotForwarded,
    /// More happened than the kernel keeps for us: it may be anything.
    Lost,
}

/// `RTMGRP_LINK`, `RTMGRP_NEIGH`, `RTMGRP_TC`, `RTMGRP_IPV4_ROUTE` and `RTMGRP_IPV6_ROUTE` in `linux/rtnetlink.h`, and whether
/// interfaces forward.
const GROUPS: u32 = 0x1 | 0x4 | 0x8 | 0x40 | 0x400 | netconf::GROUP_IPV4 | netconf::GROUP_IPV6;
/// Holds all of a route; of longer messages only the head is looked at, and the kernel cuts off the rest.
const PEEK: usize = 512;
/// For what happens while nobody looks: thousands of notifications.
const ROOM: usize = 8 << 20;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_DELQDISC: u16 = 37;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
/// Attributes of routes: `RTA_DST`, `RTA_OIF`.
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;

// === impl Monitor ===

impl Monitor {
    /// Begins to listen.
    ///
    /// # Errors
    /// If the kernel gives no socket.
    pub fn open() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        socket.socket_mut().bind(&SocketAddr::new(0, GROUPS))?;
        setsockopt(&borrow(socket.socket_ref()), RcvBufForce, &ROOM)?;
        Ok(Self { socket, message: Vec::with_capacity(PEEK) })
    }

    /// The next change that matters. It can be dropped, and misses nothing by that.
    ///
    /// # Errors
    /// If the socket fails.
    pub async fn next(&mut self) -> io::Result<Change> {
        loop {
            self.message.clear();
            match self.socket.recv(&mut self.message).await {
                Ok(()) => {
                    if let Some(change) = change(&self.message) {
                        return Ok(change);
                    }
                }
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => return Ok(Change::Lost),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Notifications come one to a datagram.
fn change(message: &[u8]) -> Option<Change> {
    let (header, body) = message.split_first_chunk::<16>()?;
    // `struct nlmsghdr`: length, type, flags, …
    let [_, _, _, _, a, b, c, d, ..] = *header;
    let (kind, flags) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
    // `struct ifinfomsg`, `struct ndmsg` and `struct tcmsg` have their index at the same place.
    let index = || Some(u32::from_ne_bytes(*body.get(4..)?.first_chunk::<4>()?));
    match kind {
        RTM_NEWLINK | RTM_NEWNEIGH | RTM_NEWTFILTER => Some(Change::Set(index()?)),
        RTM_DELLINK | RTM_DELNEIGH | RTM_DELQDISC | RTM_DELTFILTER => Some(Change::Removed(index()?)),
        RTM_DELROUTE => {
            let index = route_attribute(body, RTA_OIF)?;
            Some(Change::Removed(u32::from_ne_bytes(index.try_into().ok()?)))
        }
        // The one that it replaces is not told of.
        RTM_NEWROUTE if flags & NLM_F_REPLACE != 0 => {
            let address = route_attribute(body, RTA_DST)?;
            let v4 = <[u8; 4]>::try_from(address.as_slice()).map(Ipv4Addr::from).map(IpAddr::V4).ok();
            let v6 = || <[u8; 16]>::try_from(address.as_slice()).map(Ipv6Addr::from).map(IpAddr::V6).ok();
            Some(Change::Replaced(v4.or_else(v6)?))
        }
        // Each interface tells of itself as well, of which many are somebody else's.
        RTM_NEWNETCONF => match Forwards::parse(body)? {
            Forwards { on: true, .. } => None,
            Forwards { of: Of::Node, .. } => Some(Change::NotForwarded),
            Forwards { of: Of::Interface(index), is_ipv4, .. } => is_ipv4.then_some(Change::Set(index)),
        },
        _ => None,
    }
}

/// `struct rtmsg` has 12 bytes; attributes follow.
fn route_attribute(body: &[u8], kind: u16) -> Option<Vec<u8>> {
    let attributes = NlasIterator::new(body.get(12..)?).flatten();
    attributes.into_iter().find(|it| it.kind() == kind).map(|it| it.value().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut message = vec![0; 4];
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend([0; 8]);
        message.extend(body);
        message
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).unwrap();
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
    }

    #[test]
    fn what_is_told_of_an_interface_names_it() {
        let body = [&[0; 4][..], &7_u32.to_ne_bytes(), &[0; 8]].concat();
        assert_eq!(change(&message(RTM_NEWLINK, 0, &body)), Some(Change::Set(7)));
        assert_eq!(change(&message(RTM_DELTFILTER, 0, &body)), Some(Change::Removed(7)));
        assert_eq!(change(&message(20, 0, &body)), None, "an address is no matter");
        assert_eq!(change(&message(RTM_DELLINK, 0, &body[..6])), None);
        assert_eq!(change(&[]), None);
    }

    #[test]
    fn forwarding_is_told_when_it_ends() {
        let body = |family: u8, index: i32, on: i32| {
            let attributes = [attribute(1, &index.to_ne_bytes()), attribute(2, &on.to_ne_bytes())].concat();
            message(RTM_NEWNETCONF, 0, &[&[family, 0, 0, 0][..], &attributes].concat())
        };
        assert_eq!(change(&body(10, -1, 0)), Some(Change::NotForwarded));
        assert_eq!(change(&body(2, 7, 0)), Some(Change::Set(7)));
        assert_eq!(change(&body(2, -1, 1)), None);
        assert_eq!(change(&body(10, 7, 0)), None, "IPv6 goes by the node's alone");
    }

    #[test]
    fn a_route_names_its_interface_and_one_that_replaces_another_its_address() {
        let attributes =
            [attribute(RTA_DST, &[10, 0, 0, 2]), attribute(RTA_OIF, &7_u32.to_ne_bytes())].concat();
        let body = [&[0; 12][..], &attributes].concat();
        assert_eq!(change(&message(RTM_DELROUTE, 0, &body)), Some(Change::Removed(7)));
        assert_eq!(change(&message(RTM_NEWROUTE, 0, &body)), None, "one more harms nobody");
        let replaced = Change::Replaced([10, 0, 0, 2].into());
        assert_eq!(change(&message(RTM_NEWROUTE, NLM_F_REPLACE, &body)), Some(replaced));
    }
}
