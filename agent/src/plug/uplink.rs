//! The MTU of the way out of the node, which is what pods get.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use nix::errno::Errno;
use rtnetlink::{
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        route::{RouteAttribute, RouteHeader, RouteMessage},
    },
    sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE},
};

use super::{
    PlugError,
    default_route::{DefaultRoute, Links},
    host,
    netconf::{self, Forwards, Of, RTM_NEWNETCONF},
    netlink::{NetlinkError, Socket},
};
use crate::health::Reporter;

/// Follows the MTU of the interface that the node's default route goes through.
#[derive(Debug, Clone)]
pub struct Uplink(Arc<AtomicU32>);

/// The way out as the routes have it.
#[derive(Debug)]
struct WayOut {
    mtu: u32,
    /// The interfaces of the default routes of IPv4 and of IPv6.
    interfaces: [Vec<u32>; 2],
    links: Links,
}

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV6_IFADDR` and `RTMGRP_IPV6_ROUTE` in
/// `linux/rtnetlink.h`. IPv4's routes that go with an address or a link are not told one by one. And whether interfaces
/// forward it.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400 | netconf::GROUP_IPV4;
/// How long to wait after the kernel has refused.
const RETRY: Duration = Duration::from_secs(5);
/// How long changes gather before all is looked at.
const GATHER: Duration = Duration::from_millis(100);
/// More than the kernel keeps for us.
const MOST_AT_ONCE: usize = 10_000;
/// As much of a change as is looked at; the kernel cuts off the rest.
const PEEK: usize = 64;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;

/// The MTU of a node without a default route: Ethernet's.
const ETHERNET: u32 = 1500;
/// The least that a link with IPv6 may have (RFC 8200, 5) and that one with IPv4 must carry (RFC 791, 3.2).
const LEAST_IPV6: u32 = 1280;
const LEAST_IPV4: u32 = 68;
/// The most that veth takes (`ETH_MAX_MTU` in `linux/if_ether.h`); loopback, for one, has more.
const MOST: u32 = 65535;

// === impl Uplink ===

impl Uplink {
    /// Looks at the node as it is now.
    ///
    /// # Errors
    /// If the kernel refuses to tell.
    pub fn detect() -> Result<Self, NetlinkError> {
        let mtu = WayOut::find()?.mtu;
        tracing::info!(mtu, "pods get the uplink's MTU");
        Ok(Self(Arc::new(AtomicU32::new(mtu))))
    }

    /// The MTU in bytes for a pod: the uplink's, or a smaller one that was asked for.
    ///
    /// # Errors
    /// If what was asked for is larger than the uplink's, or smaller than a family of the pod allows.
    pub fn mtu_for(&self, asked: Option<u32>, has_ipv6: bool) -> Result<u32, PlugError> {
        let uplink = self.0.load(Ordering::Relaxed);
        let least = if has_ipv6 { LEAST_IPV6 } else { LEAST_IPV4 };
        let mtu = asked.unwrap_or(uplink.min(MOST));
        if mtu > uplink {
            return Err(PlugError::Mtu { mtu, why: format!("the node's uplink carries only {uplink}") });
        }
        if mtu < least {
            return Err(PlugError::Mtu { mtu, why: format!("the pod's addresses need at least {least}") });
        }
        Ok(mtu)
    }

    /// Follows changes of links, routes and addresses, for ever. New pods get the new MTU, `default_route` learns whether there is a way
    /// out still, and `own` which addresses the node has.
    pub async fn follow(self, health: Reporter, mut default_route: DefaultRoute, own: impl Fn(&[IpAddr])) {
        loop {
            let Err(error) = self.follow_until_it_fails(&health, &mut default_route, &own).await;
            health.unhealthy(format!("changes of the uplink's MTU are missed; trying again: {error:#}"));
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn follow_until_it_fails(
        &self,
        health: &Reporter,
        default_route: &mut DefaultRoute,
        own: impl Fn(&[IpAddr]),
    ) -> anyhow::Result<Infallible> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        socket.socket_mut().bind(&SocketAddr::new(0, GROUPS))?;
        let mut changes = Vec::with_capacity(PEEK);
        loop {
            let (way_out, addresses) =
                tokio::task::spawn_blocking(|| Ok::<_, NetlinkError>((WayOut::find()?, host::addresses()?)))
                    .await??;
            own(&addresses);
            let before = self.0.swap(way_out.mtu, Ordering::Relaxed);
            if before != way_out.mtu {
                tracing::info!(before, mtu = way_out.mtu, "the uplink's MTU has changed; new pods get it");
            }
            health.healthy(format!("its MTU is {}, and changes are followed", way_out.mtu));
            default_route.look(&way_out.interfaces, &way_out.links);
            loop {
                changes.clear();
                match socket.recv(&mut changes).await {
                    Ok(()) if !way_out.may_change_by(&changes) => {}
                    // Addresses and routes often come many at a time.
                    Ok(()) => {
                        tokio::time::sleep(GATHER).await;
                        drain(&mut socket).await;
                        break;
                    }
                    // More came than the kernel keeps for us: any of it may have been the uplink's.
                    Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

// === impl WayOut ===

impl WayOut {
    /// Looks at the best default route of each family. The smallest MTU counts, if they differ.
    fn find() -> Result<Self, NetlinkError> {
        let mut host = Socket::open()?;
        let links = Links::list(&mut host)?;
        let mut interfaces = [Vec::new(), Vec::new()];
        let mut mtu = None;
        for (family, interfaces) in
            [AddressFamily::Inet, AddressFamily::Inet6].into_iter().zip(&mut interfaces)
        {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            let routes = host.dump("list the routes", RouteNetlinkMessage::GetRoute(message))?;
            let mut defaults: Vec<_> = routes.into_iter().filter_map(default_route).collect();
            defaults.sort_by_key(|(metric, _)| *metric);
            *interfaces = defaults.into_iter().flat_map(|(_, interfaces)| interfaces).collect();
            let best = interfaces.first().and_then(|ifindex| links.mtu(*ifindex));
            mtu = mtu.into_iter().chain(best).min();
        }
        Ok(Self { mtu: mtu.unwrap_or(ETHERNET), interfaces, links })
    }

    /// Looks at the fixed head of a change only: every plug of ours sends a dozen of them, and none of those matters.
    fn may_change_by(&self, change: &[u8]) -> bool {
        let Some((header, body)) = change.split_first_chunk::<16>() else { return true };
        // `struct nlmsghdr`: length, type, flags, …
        let [_, _, _, _, a, b, ..] = *header;
        let is_its = |ifindex| self.interfaces.iter().any(|interfaces| interfaces.contains(&ifindex));
        match (u16::from_ne_bytes([a, b]), body) {
            // `struct ifinfomsg`: family, padding, type, index; `struct ifaddrmsg` has its index there too.
            (RTM_NEWLINK | RTM_DELLINK | RTM_DELADDR, [_, _, _, _, a, b, c, d, ..]) => {
                is_its(u32::from_ne_bytes([*a, *b, *c, *d]))
            }
            // Pods' interfaces have none on the node.
            (RTM_NEWADDR, _) => true,
            (RTM_NEWNETCONF, body) => Forwards::parse(body)
                .is_some_and(|it| matches!(it.of, Of::Interface(ifindex) if it.is_ipv4 && is_its(ifindex))),
            // `struct rtmsg`: family, length of the destination's prefix; zero is the default route's.
            (RTM_NEWROUTE | RTM_DELROUTE, [_, length, ..]) => *length == 0,
            _ => false,
        }
    }
}

/// What has come meanwhile is looked at with what came first.
async fn drain(socket: &mut TokioSocket) {
    let mut change = Vec::with_capacity(PEEK);
    for _ in 0..MOST_AT_ONCE {
        change.clear();
        match tokio::time::timeout(Duration::ZERO, socket.recv(&mut change)).await {
            Ok(Ok(())) => {}
            // None is left; or what is wrong comes up with the next one.
            _ => break,
        }
    }
}

fn is_default(header: &RouteHeader) -> bool {
    header.destination_prefix_length == 0 && header.table == RouteHeader::RT_TABLE_MAIN
}

/// Metric and interfaces of a default route of the main table. One that leads nowhere (blackhole) has none.
fn default_route(message: RouteNetlinkMessage) -> Option<(u32, Vec<u32>)> {
    let RouteNetlinkMessage::NewRoute(route) = message else { return None };
    if !is_default(&route.header) {
        return None;
    }
    let mut metric = 0;
    let mut interfaces = Vec::new();
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Oif(index) => interfaces.push(*index),
            RouteAttribute::MultiPath(hops) => interfaces.extend(hops.iter().map(|hop| hop.interface_index)),
            _ => {}
        }
    }
    Some((metric, interfaces)).filter(|(_, interfaces)| !interfaces.is_empty())
}
