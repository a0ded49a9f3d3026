//! Route netlink notifications about changes of links, addresses, routes, neighbours and filters.
//!
//! Each subscriber opens its own monitor with the multicast groups that it needs.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt::RcvBufForce},
};
use rtnetlink::{
    packet_core::NLM_F_REPLACE,
    sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE},
};

use super::{
    host_route::ROUTE_PROTOCOL,
    message::{Message, find, messages},
    netconf::{self, Forwarding, RTM_NEWNETCONF},
    netlink::{borrow, readable},
};

/// A subscription in the network namespace of the thread that opened it.
pub struct Monitor {
    socket: Socket,
    message: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notification {
    /// A link was created, changed or deleted.
    Link(u32),
    /// A neighbour or filter of a link was added, changed or deleted, or its qdisc or a route was deleted.
    OnLink(u32),
    /// A route to an address replaced another one; the kernel does not report the deletion of the other.
    RouteReplaced(IpAddr),
    /// An unreachable route of the agent was deleted.
    RangeRouteRemoved,
    /// A default route was added, changed or deleted.
    DefaultRoute,
    /// An address was added or removed.
    Address,
    Forwarding(Forwarding),
    /// The socket's buffer overflowed, and the kernel dropped notifications: anything may have changed.
    Overrun,
}

/// `RTMGRP_LINK`, `RTMGRP_NEIGH`, `RTMGRP_TC`, `RTMGRP_IPV4_ROUTE` and `RTMGRP_IPV6_ROUTE` in
/// `linux/rtnetlink.h`, and the forwarding settings: everything that can break a pod's interface.
pub const POD_INTERFACES: u32 = 0x1 | 0x4 | 0x8 | 0x40 | 0x400 | netconf::GROUP_IPV4 | netconf::GROUP_IPV6;
/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV6_IFADDR` and `RTMGRP_IPV6_ROUTE`,
/// and IPv4 forwarding. The kernel deletes IPv4 routes together with their address or link without a
/// notification of their own.
pub const UPLINK: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400 | netconf::GROUP_IPV4;
/// Bytes. Holds a whole route; of longer messages the parser needs only the fixed head, and the kernel
/// truncates the rest.
const PEEK: usize = 512;
/// Bytes: room for thousands of notifications between two reads.
const BUFFER: usize = 8 << 20;
/// The most notifications of one read: more than the kernel keeps for a socket.
const MOST_AT_ONCE: usize = 10_000;
pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_DELADDR: u16 = 21;
pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
pub(super) const RTM_DELQDISC: u16 = 37;
pub(super) const RTM_NEWTFILTER: u16 = 44;
pub(super) const RTM_DELTFILTER: u16 = 45;
const RTN_UNREACHABLE: u8 = 7;
/// Attributes of routes.
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;

// === impl Monitor ===

impl Monitor {
    /// Subscribes to multicast groups, such as [`POD_INTERFACES`].
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub fn open(groups: u32) -> io::Result<Self> {
        Self::of(NETLINK_ROUTE, groups)
    }

    /// As [`Self::open`], of another protocol of netlink.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn of(protocol: isize, groups: u32) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.set_non_blocking(true)?;
        socket.bind(&SocketAddr::new(0, groups))?;
        setsockopt(&borrow(&socket), RcvBufForce, &BUFFER)?;
        Ok(Self { socket, message: Vec::with_capacity(PEEK) })
    }

    /// Subscribes to a group above 31, which the mask of groups cannot name.
    ///
    /// # Errors
    /// If the kernel does not have the group.
    pub(super) fn join(&self, group: u32) -> io::Result<()> {
        self.socket.add_membership(group)
    }

    /// Waits until the kernel has delivered a notification, and leaves it to [`Self::read`]. Cancel safe.
    ///
    /// The runtime polls the socket during this wait only. A polled socket wakes a thread for each
    /// notification, whether or not a task waits for it, and an ADD causes dozens.
    ///
    /// # Errors
    /// If the runtime cannot poll the socket.
    pub async fn arrival(&self) -> io::Result<()> {
        readable(&self.socket).await
    }

    /// Passes the notifications that the kernel has delivered to `each`, without a wait.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn read(&mut self, mut each: impl FnMut(Notification)) -> io::Result<()> {
        self.read_datagrams(|datagram| match datagram {
            Some(datagram) => parse(datagram).into_iter().for_each(&mut each),
            None => each(Notification::Overrun),
        })
    }

    /// As [`Self::read`], undecoded: each a message of netlink, cut at 512 bytes, or `None` for an overrun.
    ///
    /// # Errors
    /// If the socket fails.
    pub(super) fn read_datagrams(&mut self, mut each: impl FnMut(Option<&[u8]>)) -> io::Result<()> {
        for _ in 0..MOST_AT_ONCE {
            self.message.clear();
            match self.socket.recv(&mut self.message, 0) {
                Ok(_) => each(Some(&self.message)),
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => each(None),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Parses a datagram, which holds one notification.
fn parse(datagram: &[u8]) -> Option<Notification> {
    let message = messages(datagram).next()?;
    let Message { kind, flags, .. } = message;
    let body = message.body();
    // `struct ifinfomsg`, `ndmsg` and `tcmsg` have the interface's index at the same offset.
    let index = || Some(u32::from_ne_bytes(*body.get(4..)?.first_chunk::<4>()?));
    match kind {
        RTM_NEWLINK | RTM_DELLINK => Some(Notification::Link(index()?)),
        RTM_NEWNEIGH | RTM_DELNEIGH | RTM_DELQDISC | RTM_NEWTFILTER | RTM_DELTFILTER => {
            Some(Notification::OnLink(index()?))
        }
        RTM_NEWADDR | RTM_DELADDR => Some(Notification::Address),
        // `struct rtmsg`: family, length of the destination's prefix, …
        RTM_NEWROUTE | RTM_DELROUTE if *body.get(1)? == 0 => Some(Notification::DefaultRoute),
        // `struct rtmsg`: … protocol, scope, type, …
        RTM_DELROUTE if (*body.get(5)?, *body.get(7)?) == (ROUTE_PROTOCOL, RTN_UNREACHABLE) => {
            Some(Notification::RangeRouteRemoved)
        }
        RTM_DELROUTE => {
            let index = route_attribute(body, RTA_OIF)?;
            Some(Notification::OnLink(u32::from_ne_bytes(index.try_into().ok()?)))
        }
        RTM_NEWROUTE if flags & NLM_F_REPLACE != 0 => {
            let address = route_attribute(body, RTA_DST)?;
            let v4 = <[u8; 4]>::try_from(address).map(Ipv4Addr::from).map(IpAddr::V4).ok();
            let v6 = || <[u8; 16]>::try_from(address).map(Ipv6Addr::from).map(IpAddr::V6).ok();
            Some(Notification::RouteReplaced(v4.or_else(v6)?))
        }
        RTM_NEWNETCONF => Forwarding::parse(body).map(Notification::Forwarding),
        _ => None,
    }
}

/// `struct rtmsg` has 12 bytes; attributes follow.
fn route_attribute(body: &[u8], kind: u16) -> Option<&[u8]> {
    find(body.get(12..)?, &[kind])
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            message::{Attribute, encode, encode_all},
            netconf::Scope,
        },
        Notification::{Address, DefaultRoute, Link, OnLink, RouteReplaced},
        *,
    };

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        encode((kind, flags, 0), body)
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        encode_all(&[Attribute::Value(kind, value.to_vec())])
    }

    #[test]
    fn notifications_of_links_and_filters_name_the_link_and_those_of_addresses_nothing() {
        let body = [&[0; 4][..], &7_u32.to_ne_bytes(), &[0; 8]].concat();
        assert_eq!(parse(&message(RTM_NEWLINK, 0, &body)), Some(Link(7)));
        assert_eq!(parse(&message(RTM_DELLINK, 0, &body)), Some(Link(7)));
        assert_eq!(parse(&message(RTM_DELTFILTER, 0, &body)), Some(OnLink(7)));
        assert_eq!(parse(&message(RTM_NEWADDR, 0, &body)), Some(Address));
        assert_eq!(parse(&message(RTM_DELADDR, 0, &body)), Some(Address));
        assert_eq!(parse(&message(RTM_DELLINK, 0, &body[..6])), None);
        assert_eq!(parse(&[]), None);
    }

    #[test]
    fn forwarding_names_its_scope_and_value() {
        let body = |family: u8, index: i32, on: i32| {
            let attributes = [attribute(1, &index.to_ne_bytes()), attribute(2, &on.to_ne_bytes())].concat();
            message(RTM_NEWNETCONF, 0, &[&[family, 0, 0, 0][..], &attributes].concat())
        };
        let forwarding =
            |is_ipv4, scope, on| Some(Notification::Forwarding(Forwarding { is_ipv4, scope, on }));
        assert_eq!(parse(&body(10, -1, 0)), forwarding(false, Scope::Node, false));
        assert_eq!(parse(&body(2, 7, 0)), forwarding(true, Scope::Interface(7), false));
        assert_eq!(parse(&body(2, -1, 1)), forwarding(true, Scope::Node, true));
    }

    #[test]
    fn a_deleted_route_names_its_link_and_a_replaced_one_its_address() {
        let attributes =
            [attribute(RTA_DST, &[10, 0, 0, 2]), attribute(RTA_OIF, &7_u32.to_ne_bytes())].concat();
        let body = [&[2, 32][..], &[0; 10], &attributes].concat();
        assert_eq!(parse(&message(RTM_DELROUTE, 0, &body)), Some(OnLink(7)));
        assert_eq!(parse(&message(RTM_NEWROUTE, 0, &body)), None, "one more route breaks nothing");
        let replaced = RouteReplaced([10, 0, 0, 2].into());
        assert_eq!(parse(&message(RTM_NEWROUTE, NLM_F_REPLACE, &body)), Some(replaced));
    }

    #[test]
    fn a_deleted_unreachable_route_of_the_agent_names_no_link() {
        let body = |protocol, kind| [&[2, 24, 0, 0, 254, protocol, 0, kind][..], &[0; 4]].concat();
        assert_eq!(parse(&message(RTM_DELROUTE, 0, &body(70, 7))), Some(Notification::RangeRouteRemoved));
        assert_eq!(parse(&message(RTM_DELROUTE, 0, &body(4, 7))), None, "of another program");
        assert_eq!(parse(&message(RTM_NEWROUTE, 0, &body(70, 7))), None);
    }

    #[test]
    fn default_routes_are_reported_without_their_interface() {
        let body = [&[2, 0][..], &[0; 10]].concat();
        assert_eq!(parse(&message(RTM_NEWROUTE, 0, &body)), Some(DefaultRoute));
        assert_eq!(parse(&message(RTM_DELROUTE, 0, &body)), Some(DefaultRoute));
    }
}
