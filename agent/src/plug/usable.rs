//! Waits until the kernel delivers to an IPv6 address that was just added.
//!
//! The kernel inserts the local route of an IPv6 address from a workqueue, also for an address that skips
//! duplicate address detection (`addrconf_dad_start` and `addrconf_dad_work` in `net/ipv6/addrconf.c`). On a
//! busy node that is tens of milliseconds after the request, and packets to the address are lost until then.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

use nix::errno::Errno;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};

use super::{
    PlugError,
    netlink::{NetlinkError, Request, Socket},
    netns::Netns,
};

/// `RTNLGRP_IPV6_ROUTE` in `linux/rtnetlink.h`.
const IPV6_ROUTE_GROUP: u32 = 11;
const NOT_LOCAL: [Errno; 4] = [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::EACCES, Errno::EINVAL];
/// Shorter than any caller's deadline: the wait holds a thread and the key's lock.
const DEADLINE: Duration = Duration::from_secs(2);

/// Returns once `pod`, a socket in the pod's namespace, finds the local route of the address.
///
/// # Errors
/// If the kernel refuses, or does not insert the route within two seconds.
pub(super) fn until_local(pod: &mut Socket, netns: &Netns, address: Ipv6Addr) -> Result<(), PlugError> {
    if is_local(pod, address)? {
        return Ok(());
    }
    let deadline = Instant::now() + DEADLINE;
    let mut notifications = netns.run(Socket::open)??;
    notifications.subscribe(IPV6_ROUTE_GROUP)?;
    // Once more after the subscription, so that no notification falls between.
    while !is_local(pod, address)? {
        if Instant::now() >= deadline {
            return Err(PlugError::AddressNotUsable { address, waited: DEADLINE });
        }
        notifications.wait(deadline)?;
    }
    Ok(())
}

fn is_local(pod: &mut Socket, address: Ipv6Addr) -> Result<bool, NetlinkError> {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet6;
    message.header.destination_prefix_length = 128;
    message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet6(address)));
    let what = format!("look up the route to {}", IpAddr::from(address));
    match pod.batch(vec![Request::change(what, RouteNetlinkMessage::GetRoute(message))]) {
        // Another route of the pod applies until then: none, `unreachable`, `prohibit` or `blackhole`.
        Err(error) if NOT_LOCAL.into_iter().any(|errno| error.is(errno)) => Ok(false),
        answers => Ok(answers?.into_iter().any(|answer| {
            matches!(answer, RouteNetlinkMessage::NewRoute(route) if route.header.kind == RouteType::Local)
        })),
    }
}
