//! Whether a pod's namespace has room for a plug, without a change: a repeated ADD looks before it removes
//! the earlier attachment.

use ferrule_proto::names::IfName;
use ipnet::IpNet;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::LinkAttribute,
    route::{RouteAttribute, RouteHeader, RouteMessage},
};

use super::{
    PlugError, link,
    netlink::{NetlinkError, Socket},
    netns::Netns,
    parse,
};

/// The priority that the kernel gives an IPv6 route without one (`IP6_RT_PRIO_USER` in `linux/ipv6_route.h`).
pub(super) const IPV6_PRIORITY: u32 = 1024;

/// A pod's end of the earlier attachment, which goes before the plug: its name, and the index of its host's
/// end.
#[derive(Debug, Clone, Copy)]
pub struct Going<'a> {
    pub ifname: &'a IfName,
    pub host_ifindex: u32,
}

/// What the kernel takes for the same route: destination and priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteKey {
    dst: IpNet,
    priority: u32,
}

// === impl RouteKey ===

impl RouteKey {
    pub fn new(dst: IpNet, priority: Option<u32>) -> Self {
        let default = if dst.addr().is_ipv6() { IPV6_PRIORITY } else { 0 };
        Self { dst, priority: priority.unwrap_or(default) }
    }
}

/// Refuses what a plug of these interfaces with these routes would fail for.
///
/// # Errors
/// [`PlugError::InterfaceExists`], [`PlugError::DefaultRouteExists`], or if the namespace cannot be read.
pub fn check(
    netns: &Netns,
    ifnames: &[&IfName],
    routes: &[RouteKey],
    going: &[Going<'_>],
) -> Result<(), PlugError> {
    let mut pod = netns.run(Socket::open)??;
    let going = indices(&mut pod, going)?;
    for ifname in ifnames {
        let found = link::by_name(&mut pod, ifname.as_str())?;
        if found.is_some_and(|it| !going.contains(&it.header.index)) {
            return Err(PlugError::InterfaceExists((*ifname).clone()));
        }
    }
    let all = RouteNetlinkMessage::GetRoute(RouteMessage::default());
    let listed = pod.dump("list the pod's routes", all)?;
    let stays = listed.iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) if route.header.table == RouteHeader::RT_TABLE_MAIN => {
            let goes = parse::output_interface(route).is_some_and(|it| going.contains(&it));
            key(route).filter(|_| !goes)
        }
        _ => None,
    });
    let conflict = stays.into_iter().any(|it| routes.contains(&it));
    if conflict { Err(PlugError::DefaultRouteExists) } else { Ok(()) }
}

/// The indices of the pod's ends that go. Another interface of the same name has another peer.
fn indices(pod: &mut Socket, going: &[Going<'_>]) -> Result<Vec<u32>, NetlinkError> {
    let mut indices = Vec::with_capacity(going.len());
    for Going { ifname, host_ifindex } in going {
        let found = link::by_name(pod, ifname.as_str())?;
        let is_peer = |it: &LinkAttribute| *it == LinkAttribute::Link(*host_ifindex);
        indices.extend(found.filter(|it| it.attributes.iter().any(is_peer)).map(|it| it.header.index));
    }
    Ok(indices)
}

fn key(route: &RouteMessage) -> Option<RouteKey> {
    let priority = route.attributes.iter().find_map(|it| match it {
        RouteAttribute::Priority(priority) => Some(*priority),
        _ => None,
    });
    // The kernel leaves a priority of 0 out.
    Some(RouteKey { dst: parse::destination(route)?, priority: priority.unwrap_or_default() })
}
