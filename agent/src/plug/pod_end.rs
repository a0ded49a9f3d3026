//! An inventory of the pod's end: the link, its addresses, routes and neighbours, as its namespace reports
//! them.
//!
//! The pod may change all of it, so nothing here decides what the pod may send or receive.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use ferrule_proto::names::IfName;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{LinkAttribute, LinkFlags},
    neighbour::{NeighbourAttribute, NeighbourMessage},
    route::{RouteAttribute, RouteHeader, RouteMessage, RouteProtocol},
};

use super::{
    PlugError, link,
    netlink::{NetlinkError, Socket},
    netns::Netns,
    parse,
    preflight::IPV6_PRIORITY,
    shaping,
};
use ferrule_vif::{Mac, PodRoute};

/// The pod's end and what is configured on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEndState {
    pub up: bool,
    pub mac: Option<Mac>,
    /// Bytes.
    pub mtu: u32,
    /// The limit of what the pod sends, in bytes per second.
    pub rate: Option<u64>,
    pub addresses: HashSet<IpAddr>,
    /// Routes of the main table through a gateway.
    pub routes: Vec<PodRoute>,
    pub neighbours: HashMap<IpAddr, Mac>,
}

/// The most addresses, routes or neighbours of a pod's end that the agent reads: each takes half a kilobyte.
const LIMIT: usize = 1 << 14;

// === impl PodEndState ===

impl PodEndState {
    /// Reads the interface of a name in a pod's namespace; `None` if the pod has no such interface.
    ///
    /// # Errors
    /// If the namespace cannot be entered, or the kernel refuses a dump.
    pub fn read(netns: &Netns, ifname: &IfName) -> Result<Option<Self>, PlugError> {
        let mut pod = netns.run(Socket::open)??.with_limit(LIMIT);
        let has_name = LinkAttribute::IfName(ifname.to_string());
        let link = link::by_name(&mut pod, ifname.as_str())?.filter(|it| it.attributes.contains(&has_name));
        let Some(link) = link else { return Ok(None) };
        let ifindex = link.header.index;
        let mut state = Self {
            up: link.header.flags.contains(LinkFlags::Up),
            mac: None,
            mtu: 0,
            rate: shaping::read(&mut pod, ifindex)?,
            addresses: addresses(&mut pod, ifindex)?,
            routes: routes(&mut pod, ifindex)?.iter().filter_map(parse::route_through_gateway).collect(),
            neighbours: neighbours(&mut pod, ifindex)?,
        };
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::Address(bytes) => state.mac = parse::mac(bytes),
                LinkAttribute::Mtu(mtu) => state.mtu = *mtu,
                _ => {}
            }
        }
        Ok(Some(state))
    }
}

/// The static routes through an interface of a pod: those that a plug added, if the pod has not changed them.
///
/// # Errors
/// If the namespace cannot be entered, or the kernel refuses the dump.
pub fn static_routes(netns: &Netns, ifindex: u32) -> Result<Vec<PodRoute>, PlugError> {
    let mut pod = netns.run(Socket::open)??.with_limit(LIMIT);
    let routes = static_routes_of(&mut pod, ifindex)?.into_iter();
    Ok(routes
        .map(|it| PodRoute {
            priority: it.priority.filter(|priority| it.gateway.is_ipv4() || *priority != IPV6_PRIORITY),
            ..it
        })
        .collect())
}

/// The limit of what the pod sends by an interface, in bytes per second.
///
/// # Errors
/// If the namespace cannot be entered, or the kernel refuses.
pub fn rate(netns: &Netns, ifindex: u32) -> Result<Option<u64>, PlugError> {
    let mut pod = netns.run(Socket::open)??.with_limit(LIMIT);
    Ok(shaping::read(&mut pod, ifindex)?)
}

/// As [`static_routes`], on a socket in the pod's namespace, and with the kernel's default priorities.
///
/// # Errors
/// If the kernel refuses the dump.
pub(super) fn static_routes_of(pod: &mut Socket, ifindex: u32) -> Result<Vec<PodRoute>, NetlinkError> {
    let routes = routes(pod, ifindex)?;
    let added = routes.iter().filter(|it| it.header.protocol == RouteProtocol::Static);
    Ok(added.filter_map(parse::route_through_gateway).collect())
}

fn addresses(pod: &mut Socket, ifindex: u32) -> Result<HashSet<IpAddr>, NetlinkError> {
    let mut of_link = AddressMessage::default();
    of_link.header.index = ifindex;
    let all = RouteNetlinkMessage::GetAddress(of_link);
    let address = |answer| match answer {
        RouteNetlinkMessage::NewAddress(message) if message.header.index == ifindex => {
            message.attributes.into_iter().find_map(|it| match it {
                AddressAttribute::Address(address) => Some(address),
                _ => None,
            })
        }
        _ => None,
    };
    Ok(pod.dump("list the pod's addresses", all)?.into_iter().filter_map(address).collect())
}

fn routes(pod: &mut Socket, ifindex: u32) -> Result<Vec<RouteMessage>, NetlinkError> {
    let mut through_link = RouteMessage::default();
    through_link.header.table = RouteHeader::RT_TABLE_MAIN;
    through_link.attributes.push(RouteAttribute::Oif(ifindex));
    let all = RouteNetlinkMessage::GetRoute(through_link);
    let route = move |answer| match answer {
        RouteNetlinkMessage::NewRoute(route) if route.header.table == RouteHeader::RT_TABLE_MAIN => {
            Some(route).filter(|route| parse::output_interface(route) == Some(ifindex))
        }
        _ => None,
    };
    Ok(pod.dump("list the pod's routes", all)?.into_iter().filter_map(route).collect())
}

fn neighbours(pod: &mut Socket, ifindex: u32) -> Result<HashMap<IpAddr, Mac>, NetlinkError> {
    let mut of_link = NeighbourMessage::default();
    of_link.attributes.push(NeighbourAttribute::IfIndex(ifindex));
    let all = RouteNetlinkMessage::GetNeighbour(of_link);
    let neighbours = pod.dump("list the pod's neighbours", all)?.into_iter().filter_map(parse::neighbour);
    Ok(neighbours.filter(|it| it.ifindex == ifindex).map(|it| (it.address, it.mac)).collect())
}
