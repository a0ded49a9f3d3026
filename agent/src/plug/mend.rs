//! Single settings of a host's end, put right: what somebody else has changed.

use std::net::IpAddr;

use agent_common::GATEWAY_MAC;
use nix::errno::Errno;
use rtnetlink::{
    LinkUnspec,
    packet_route::{
        RouteNetlinkMessage,
        link::{AfSpecInet, AfSpecUnspec, InetDevConf, LinkAttribute, LinkMessage},
        route::RouteAttribute,
    },
};

use super::{
    netlink::{NetlinkError, Request, Socket},
    requests::{add_neighbour, host_route, set_link},
};
use ferrule_vif::Mac;

/// What is put right.
#[derive(Debug, Clone, Copy)]
pub enum Mend<'a> {
    /// Back into the group of those that are in none.
    Group,
    /// Out of the hands of a bridge.
    Master,
    Name(&'a str),
    Mac,
    /// Bytes.
    Mtu(u32),
    Up,
    /// IPv4's.
    Forwarding,
    Route(IpAddr),
    Neighbour(IpAddr, Mac),
}

/// Before all that have the kernel's own (`IP6_RT_PRIO_USER` in `linux/ipv6_route.h`), or a routing daemon's.
const FIRST: u32 = 1;

// === impl Mend ===

impl Mend<'_> {
    /// Puts it right on the host's end at an index.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn apply(self, host: &mut Socket, ifindex: u32) -> Result<(), NetlinkError> {
        let link = || LinkUnspec::new_with_index(ifindex);
        let request = match self {
            Self::Name(name) => return rename(host, ifindex, name),
            Self::Group => {
                set_link("take the host's interface out of its group", link().link_group(0).build())
            }
            Self::Master => {
                set_link("take the host's interface away from its master", link().nocontroller().build())
            }
            Self::Forwarding => {
                let mut ipv4 = InetDevConf::default();
                ipv4.forwarding = 1;
                let setting = vec![AfSpecUnspec::Inet(vec![AfSpecInet::DevConfRequest(ipv4)])];
                let setting = LinkAttribute::AfSpecUnspec(setting);
                let message = link().append_extra_attribute(setting).build();
                set_link("let the host's interface forward", message)
            }
            Self::Mac => {
                let message = link().address(GATEWAY_MAC.to_vec()).build();
                set_link("set the MAC of the host's interface", message)
            }
            Self::Mtu(mtu) => set_link("set the MTU of the host's interface", link().mtu(mtu).build()),
            Self::Up => set_link("set the host's interface up", link().up().build()),
            // Somebody may have put another one in its place, which is theirs, and stays behind it. IPv4 puts the last one
            // first; IPv6 goes by the priority.
            Self::Route(address) => {
                let mut route = host_route(ifindex, address);
                route.attributes.extend(address.is_ipv6().then_some(RouteAttribute::Priority(FIRST)));
                Request::put_first(
                    format!("add the route to {address}"),
                    RouteNetlinkMessage::NewRoute(route),
                )
            }
            Self::Neighbour(address, mac) => add_neighbour(ifindex, address, mac.0),
        };
        match host.batch(vec![request]) {
            // It came back by itself.
            Err(error) if matches!(self, Self::Route(_)) && error.is(Errno::EEXIST) => Ok(()),
            result => result.map(drop),
        }
    }
}

/// Before Linux 6.2 an interface has to be down for it; what it loses by that is found missing and put right next.
fn rename(host: &mut Socket, ifindex: u32, name: &str) -> Result<(), NetlinkError> {
    let set = |message: LinkMessage| vec![set_link("give the host's interface its name", message)];
    let rename = || LinkUnspec::new_with_index(ifindex).name(name).build();
    match host.batch(set(rename())) {
        Err(error) if error.is(Errno::EBUSY) => {}
        result => return result.map(drop),
    }
    host.batch(set(LinkUnspec::new_with_index(ifindex).down().build()))?;
    let renamed = host.batch(set(rename())).map(drop);
    // Whatever came of it: a pod can do without the name, and not without the interface.
    let up = set_link("set the host's interface up again", LinkUnspec::new_with_index(ifindex).up().build());
    renamed.and(host.batch(vec![up]).map(drop))
}
