//! Repairs of single settings of a host end.

use std::net::IpAddr;

use agent_common::GATEWAY_MAC;
use nix::errno::Errno;
use rtnetlink::{
    LinkUnspec,
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkMessage},
        route::RouteAttribute,
    },
};

use super::{
    host_route::host_route,
    link,
    netlink::{NetlinkError, Request, Socket},
    requests::{add_neighbour, set_link},
    shaping,
};
use crate::registry::Rate;
use ferrule_vif::Mac;

/// A setting to restore.
#[derive(Debug, Clone, Copy)]
pub enum Repair<'a> {
    /// Back into the default group.
    Group,
    /// Release from a bridge or bond.
    Master,
    Name(&'a str),
    Mac,
    /// Bytes.
    Mtu(u32),
    Up,
    /// IPv4.
    Forwarding,
    /// IPv4, off.
    Redirects,
    /// IPv4.
    Localnet,
    /// Of what leaves by the interface.
    Rate(Rate),
    Route(IpAddr),
    Neighbour(IpAddr, Mac),
}

/// Wins over the kernel's default (`IP6_RT_PRIO_USER` in `linux/ipv6_route.h`) and over the routes of routing
/// daemons.
const FIRST: u32 = 1;

// === impl Repair ===

impl Repair<'_> {
    /// Restores the setting on the host end at an index.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn apply(self, host: &mut Socket, ifindex: u32) -> Result<(), NetlinkError> {
        let link = || LinkUnspec::new_with_index(ifindex);
        let ipv4 = |setting, to| {
            let setting = LinkAttribute::AfSpecUnspec(vec![link::set_ipv4(&[(setting, to)])]);
            link().append_extra_attribute(setting).build()
        };
        let request = match self {
            Self::Name(name) => return rename(host, ifindex, name),
            Self::Group => set_link("reset the host interface's group", link().link_group(0).build()),
            Self::Master => {
                set_link("release the host interface from its master", link().nocontroller().build())
            }
            Self::Forwarding => {
                set_link("enable forwarding on the host interface", ipv4(link::FORWARDING, 1))
            }
            Self::Redirects => {
                set_link("turn off redirects on the host interface", ipv4(link::SEND_REDIRECTS, 0))
            }
            Self::Localnet => {
                set_link("let loopback addresses pass the host interface", ipv4(link::ROUTE_LOCALNET, 1))
            }
            Self::Rate(rate) => shaping::limit(ifindex, rate),
            Self::Mac => {
                set_link("set the host interface's MAC", link().address(GATEWAY_MAC.to_vec()).build())
            }
            Self::Mtu(mtu) => set_link("set the host interface's MTU", link().mtu(mtu).build()),
            Self::Up => set_link("set the host interface up", link().up().build()),
            // A foreign route to the same address stays, behind this one. The newest IPv4 route comes first;
            // IPv6 orders by priority.
            Self::Route(address) => {
                let mut route = host_route(ifindex, address);
                route.attributes.extend(address.is_ipv6().then_some(RouteAttribute::Priority(FIRST)));
                Request::put_first(
                    format!("add the route to {address}"),
                    RouteNetlinkMessage::NewRoute(route),
                )
            }
            Self::Neighbour(address, mac) => add_neighbour(ifindex, address, mac),
        };
        match host.batch(vec![request]) {
            // The route is back already.
            Err(error) if matches!(self, Self::Route(_)) && error.is(Errno::EEXIST) => Ok(()),
            result => result.map(drop),
        }
    }
}

/// Before Linux 6.2 the kernel renames only an interface that is down. The next pass of the repair adds the
/// routes that the interface loses by that.
fn rename(host: &mut Socket, ifindex: u32, name: &str) -> Result<(), NetlinkError> {
    let set = |message: LinkMessage| vec![set_link("rename the host interface", message)];
    let rename = || LinkUnspec::new_with_index(ifindex).name(name).build();
    match host.batch(set(rename())) {
        Err(error) if error.is(Errno::EBUSY) => {}
        result => return result.map(drop),
    }
    host.batch(set(LinkUnspec::new_with_index(ifindex).down().build()))?;
    let renamed = host.batch(set(rename())).map(drop);
    // Also after a failure: the pod needs the interface up more than its name.
    let up = set_link("set the host interface up again", LinkUnspec::new_with_index(ifindex).up().build());
    renamed.and(host.batch(vec![up]).map(drop))
}
