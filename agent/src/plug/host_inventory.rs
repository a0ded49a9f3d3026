//! An inventory of the pods' host ends: links, routes, neighbours and filters, as netlink dumps report them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
};

use nix::errno::Errno;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage, LinkXdp},
    neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::{RouteAttribute, RouteHeader, RouteMessage, RouteProtocol},
};

use super::{
    filter::{self, Attached, Listed},
    host_route::ROUTE_PROTOCOL,
    link,
    netlink::{NetlinkError, Socket},
    parse,
    reaper::RETIRED,
    requests::link_of,
    shaping,
    stamp::Stamp,
};
use ferrule_vif::Mac;

/// Facts about host ends. Several dumps make up one inventory, so its parts may be of different moments: act
/// on a difference only after a second read under the attachment's lock.
#[derive(Debug, Clone, Default)]
pub struct HostInventory {
    /// By index: every link with a stamp, and the requested ones.
    pub links: HashMap<u32, HostLinkState>,
    /// The agent's host routes: interface and address.
    pub routes: HashSet<(u32, IpAddr)>,
    /// MAC and permanence, by interface and address.
    pub neighbours: HashMap<(u32, IpAddr), (Mac, bool)>,
    /// Filters of the requested links.
    pub filters: HashMap<u32, Vec<Attached>>,
    /// Kinds of foreign qdiscs that occupy the place of clsact, of the requested links.
    pub foreign_qdiscs: HashMap<u32, String>,
    /// Limits of what leaves by the requested links, in bytes per second.
    pub rates: HashMap<u32, u64>,
}

/// A link in the host's network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLinkState {
    pub name: String,
    /// `None` without an alias, or if the alias is not an ownership stamp.
    pub stamp: Option<Stamp>,
    pub group: u32,
    /// Index of the bridge or bond that receives the link's ingress packets.
    pub master: Option<u32>,
    pub up: bool,
    pub mac: Option<Mac>,
    /// Bytes.
    pub mtu: u32,
    /// IPv4 only: the kernel takes the node-wide setting for IPv6.
    pub forwards_ipv4: bool,
    /// IPv4; the node-wide setting permits them, too.
    pub sends_redirects: bool,
    /// IPv4.
    pub routes_localnet: bool,
    /// Program IDs.
    pub xdp: Vec<u32>,
    /// Index of the pod's end, in the pod's namespace.
    pub peer: Option<u32>,
    /// The host's number for the pod's namespace (`IFLA_LINK_NETNSID`).
    pub peer_nsid: Option<i32>,
}

/// The facts of a stamped link that a lost record can be rebuilt from.
#[derive(Debug, Clone)]
pub struct StampedLink {
    pub ifindex: u32,
    pub ifname: String,
    pub stamp: Stamp,
    /// Bytes.
    pub mtu: u32,
    /// Index of the pod's end, in the pod's namespace.
    pub peer: Option<u32>,
    /// The host's number for the pod's namespace.
    pub nsid: Option<i32>,
    /// Destinations of the agent's host routes.
    pub addresses: Vec<IpAddr>,
    /// MAC of the pod's end, from the permanent neighbour entries.
    pub mac: Option<Mac>,
}

// === impl HostInventory ===

impl HostInventory {
    /// Reads every link with a stamp, all host routes of the agent and all neighbours, and adds the
    /// `requested` links with their filters.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn all(host: &mut Socket, requested: &HashSet<u32>) -> Result<Self, NetlinkError> {
        let mut inventory = Self::links(host)?;
        inventory.links.retain(|ifindex, link| link.stamp.is_some() || requested.contains(ifindex));
        inventory.read_routes(host, None)?;
        inventory.read_neighbours(host, None)?;
        for ifindex in
            requested.iter().filter(|it| inventory.links.contains_key(it)).copied().collect::<Vec<_>>()
        {
            inventory.read_filters(host, ifindex)?;
        }
        Ok(inventory)
    }

    /// Reads every link, with or without a stamp, and nothing else.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn links(host: &mut Socket) -> Result<Self, NetlinkError> {
        let links = host.dump("list the interfaces", RouteNetlinkMessage::GetLink(link::get()))?;
        let links = links.into_iter().filter_map(link_of);
        let links = links.filter_map(|link| Some((link.header.index, HostLinkState::of(&link)?)));
        Ok(Self { links: links.collect(), ..Self::default() })
    }

    /// Reads one link with its routes, neighbours and filters; empty if there is no such link.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn one(host: &mut Socket, ifindex: u32) -> Result<Self, NetlinkError> {
        let mut inventory = Self::default();
        let Some(link) = link::by_index(host, ifindex)? else { return Ok(inventory) };
        inventory.links.extend(HostLinkState::of(&link).map(|link| (ifindex, link)));
        let mut rest = || {
            inventory.read_routes(host, Some(ifindex))?;
            inventory.read_neighbours(host, Some(ifindex))?;
            inventory.read_filters(host, ifindex)
        };
        match rest() {
            // The link was deleted between two dumps.
            Err(error) if error.is(Errno::ENODEV) => Ok(Self::default()),
            read => read.map(|()| inventory),
        }
    }

    /// The stamped links in service, by index.
    pub fn stamped_links(&self) -> impl Iterator<Item = StampedLink> {
        let links: BTreeMap<_, _> = self
            .links
            .iter()
            .filter(|(_, link)| link.group != RETIRED)
            .map(|(ifindex, it)| (*ifindex, it))
            .collect();
        links.into_iter().filter_map(|(ifindex, link)| {
            let routes = self.routes.iter().filter(|(on, _)| *on == ifindex);
            let mut permanent =
                self.neighbours.iter().filter(|((on, _), (_, is_permanent))| *on == ifindex && *is_permanent);
            Some(StampedLink {
                ifindex,
                ifname: link.name.clone(),
                stamp: link.stamp.clone()?,
                mtu: link.mtu,
                peer: link.peer,
                nsid: link.peer_nsid,
                addresses: routes.map(|(_, address)| *address).collect(),
                mac: permanent.next().map(|(_, (mac, _))| *mac),
            })
        })
    }

    fn read_routes(&mut self, host: &mut Socket, ifindex: Option<u32>) -> Result<(), NetlinkError> {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            // The kernel filters the dump by protocol and interface (`ip_valid_fib_dump_req`): a host may
            // have a million foreign routes.
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
            message.attributes.extend(ifindex.map(RouteAttribute::Oif));
            let routes = host.dump("list the agent's routes", RouteNetlinkMessage::GetRoute(message))?;
            self.routes.extend(routes.into_iter().filter_map(host_route));
        }
        Ok(())
    }

    fn read_neighbours(&mut self, host: &mut Socket, ifindex: Option<u32>) -> Result<(), NetlinkError> {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = NeighbourMessage::default();
            message.header.family = family;
            message.attributes.extend(ifindex.map(NeighbourAttribute::IfIndex));
            let neighbours = host.dump("list the neighbours", RouteNetlinkMessage::GetNeighbour(message))?;
            self.neighbours.extend(
                neighbours
                    .into_iter()
                    .filter_map(parse::neighbour)
                    .map(|it| ((it.ifindex, it.address), (it.mac, it.state == NeighbourState::Permanent))),
            );
        }
        Ok(())
    }

    fn read_filters(&mut self, host: &mut Socket, ifindex: u32) -> Result<(), NetlinkError> {
        let listed = filter::list(host, ifindex).and_then(|it| Ok((it, shaping::read(host, ifindex)?)));
        match listed {
            // The link was deleted since the dump of the links.
            Err(error) if error.is(Errno::ENODEV) => drop(self.links.remove(&ifindex)),
            listed => {
                let (Listed { filters, foreign_qdisc }, rate) = listed?;
                self.rates.extend(rate.map(|rate| (ifindex, rate)));
                self.filters.insert(ifindex, filters);
                self.foreign_qdiscs.extend(foreign_qdisc.map(|kind| (ifindex, kind)));
            }
        }
        Ok(())
    }
}

// === impl HostLinkState ===

impl HostLinkState {
    fn of(message: &LinkMessage) -> Option<Self> {
        let mut link = Self {
            name: String::new(),
            stamp: link::alias(message).and_then(Stamp::parse),
            group: 0,
            master: None,
            up: message.header.flags.contains(LinkFlags::Up),
            mac: None,
            mtu: 0,
            forwards_ipv4: link::forwards_ipv4(message),
            sends_redirects: link::sends_redirects(message),
            routes_localnet: link::routes_localnet(message),
            xdp: Vec::new(),
            peer: None,
            peer_nsid: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(it) => link.name.clone_from(it),
                LinkAttribute::Group(it) => link.group = *it,
                LinkAttribute::Controller(it) => link.master = Some(*it),
                LinkAttribute::Address(it) => link.mac = parse::mac(it),
                LinkAttribute::Mtu(it) => link.mtu = *it,
                LinkAttribute::Link(it) => link.peer = Some(*it),
                LinkAttribute::LinkNetNsId(it) => link.peer_nsid = Some(*it).filter(|it| *it >= 0),
                LinkAttribute::Xdp(it) => link.xdp.extend(it.iter().filter_map(|it| match it {
                    LinkXdp::ProgId(id) => Some(*id),
                    _ => None,
                })),
                _ => {}
            }
        }
        Some(link).filter(|link| !link.name.is_empty())
    }
}

/// Interface and address of a host route of the agent.
fn host_route(answer: RouteNetlinkMessage) -> Option<(u32, IpAddr)> {
    let RouteNetlinkMessage::NewRoute(route) = answer else { return None };
    let is_ours = route.header.table == RouteHeader::RT_TABLE_MAIN
        && route.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL);
    let destination = parse::destination(&route)?;
    let is_host_route = destination.prefix_len() == destination.max_prefix_len();
    (is_ours && is_host_route).then_some((parse::output_interface(&route)?, destination.addr()))
}
