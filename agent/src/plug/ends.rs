//! What the kernel has of the host's ends: a snapshot by dumps, of all of them or of one.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use nix::errno::Errno;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage, LinkXdp},
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol},
};

use super::{
    ROUTE_PROTOCOL, alias,
    filter::{self, Attached, Listed},
    forwards_ipv4, get_link,
    netlink::{NetlinkError, Request, Socket},
    requests::link_of,
    stamp::Stamp,
};
use ferrule_vif::Mac;

/// A snapshot. Its parts were not read at one time: what it says is to be believed only after a second look.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// By index; of a look at all, those that carry a stamp or were asked for.
    pub links: HashMap<u32, End>,
    /// Our routes: interface and address.
    pub routes: HashSet<(u32, IpAddr)>,
    /// By interface and address: its MAC, and whether it is permanent.
    pub neighbours: HashMap<(u32, IpAddr), (Mac, bool)>,
    /// Of the interfaces that were asked for.
    pub filters: HashMap<u32, Vec<Attached>>,
    /// The kinds of other people's qdiscs that are in the place of our filters', of those.
    pub strangers: HashMap<u32, String>,
}

/// An interface of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub name: String,
    /// `None` if it has no alias, or one that is no stamp.
    pub stamp: Option<Stamp>,
    pub group: u32,
    /// The index of a bridge or another interface that has what comes in.
    pub master: Option<u32>,
    pub up: bool,
    pub mac: Option<Mac>,
    /// Bytes.
    pub mtu: u32,
    /// Whether what comes in over IPv4 may leave the node again. IPv6 goes by the node's setting alone.
    pub forwards_ipv4: bool,
    /// The IDs of XDP programs.
    pub xdp: Vec<u32>,
}

// === impl Ends ===

impl Ends {
    /// Reads all interfaces with a stamp, all our routes, all neighbours, and the filters of some interfaces.
    ///
    /// # Errors
    /// If the kernel refuses to tell.
    pub fn all(host: &mut Socket, of: &HashSet<u32>) -> Result<Self, NetlinkError> {
        let links = host.dump("list the interfaces", RouteNetlinkMessage::GetLink(get_link()))?;
        let links = links.into_iter().filter_map(link_of).filter_map(|link| {
            let (index, end) = (link.header.index, End::of(&link)?);
            (end.stamp.is_some() || of.contains(&index)).then_some((index, end))
        });
        let mut ends = Self { links: links.collect(), ..Self::default() };
        ends.read_routes(host, None)?;
        ends.read_neighbours(host, None)?;
        for ifindex in of.iter().filter(|it| ends.links.contains_key(it)).copied().collect::<Vec<_>>() {
            ends.read_filters(host, ifindex)?;
        }
        Ok(ends)
    }

    /// Reads one interface, and what is on it.
    ///
    /// # Errors
    /// If the kernel refuses to tell.
    pub fn one(host: &mut Socket, ifindex: u32) -> Result<Self, NetlinkError> {
        let mut ends = Self::default();
        let mut get = get_link();
        get.header.index = ifindex;
        let get = Request::change("read the host's interface", RouteNetlinkMessage::GetLink(get));
        let read = match host.batch(vec![get]) {
            Err(error) if error.is(Errno::ENODEV) => return Ok(ends),
            answers => answers?,
        };
        ends.links
            .extend(read.into_iter().filter_map(link_of).filter_map(|it| Some((ifindex, End::of(&it)?))));
        let mut rest = || {
            ends.read_routes(host, Some(ifindex))?;
            ends.read_neighbours(host, Some(ifindex))?;
            ends.read_filters(host, ifindex)
        };
        match rest() {
            // It went meanwhile, with all that was on it.
            Err(error) if error.is(Errno::ENODEV) => Ok(Self::default()),
            read => read.map(|()| ends),
        }
    }

    fn read_routes(&mut self, host: &mut Socket, of: Option<u32>) -> Result<(), NetlinkError> {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            // The kernel sorts them out by this (`ip_valid_fib_dump_req`).
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
            message.attributes.extend(of.map(RouteAttribute::Oif));
            let routes = host.dump("list our routes", RouteNetlinkMessage::GetRoute(message))?;
            self.routes.extend(routes.into_iter().filter_map(route));
        }
        Ok(())
    }

    fn read_neighbours(&mut self, host: &mut Socket, of: Option<u32>) -> Result<(), NetlinkError> {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = NeighbourMessage::default();
            message.header.family = family;
            message.attributes.extend(of.map(NeighbourAttribute::IfIndex));
            let neighbours = host.dump("list the neighbours", RouteNetlinkMessage::GetNeighbour(message))?;
            self.neighbours.extend(neighbours.into_iter().filter_map(neighbour));
        }
        Ok(())
    }

    fn read_filters(&mut self, host: &mut Socket, ifindex: u32) -> Result<(), NetlinkError> {
        match filter::list(host, ifindex) {
            // It went meanwhile.
            Err(error) if error.is(Errno::ENODEV) => drop(self.links.remove(&ifindex)),
            listed => {
                let Listed { filters, stranger } = listed?;
                self.filters.insert(ifindex, filters);
                self.strangers.extend(stranger.map(|kind| (ifindex, kind)));
            }
        }
        Ok(())
    }
}

// === impl End ===

impl End {
    fn of(link: &LinkMessage) -> Option<Self> {
        let stamp = alias(link).and_then(Stamp::parse);
        let up = link.header.flags.contains(LinkFlags::Up);
        let forwards_ipv4 = forwards_ipv4(link);
        let (mut name, mut group, mut master, mut mac) = (None, 0, None, None);
        let (mut mtu, mut xdp) = (0, Vec::new());
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::IfName(it) => name = Some(it.clone()),
                LinkAttribute::Group(it) => group = *it,
                LinkAttribute::Controller(it) => master = Some(*it),
                LinkAttribute::Address(it) => mac = <[u8; 6]>::try_from(it.as_slice()).ok().map(Mac),
                LinkAttribute::Mtu(it) => mtu = *it,
                LinkAttribute::Xdp(it) => xdp.extend(it.iter().filter_map(|it| match it {
                    LinkXdp::ProgId(id) => Some(*id),
                    _ => None,
                })),
                _ => {}
            }
        }
        Some(Self { name: name?, stamp, group, master, up, mac, mtu, forwards_ipv4, xdp })
    }
}

fn route(answer: RouteNetlinkMessage) -> Option<(u32, IpAddr)> {
    let RouteNetlinkMessage::NewRoute(route) = answer else { return None };
    let is_ours = route.header.table == RouteHeader::RT_TABLE_MAIN
        && route.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL);
    let (mut ifindex, mut address) = (None, None);
    for attribute in route.attributes {
        match attribute {
            RouteAttribute::Oif(it) => ifindex = Some(it),
            RouteAttribute::Destination(RouteAddress::Inet(v4)) => address = Some(IpAddr::V4(v4)),
            RouteAttribute::Destination(RouteAddress::Inet6(v6)) => address = Some(IpAddr::V6(v6)),
            _ => {}
        }
    }
    let length = if address?.is_ipv4() { 32 } else { 128 };
    (is_ours && route.header.destination_prefix_length == length).then_some((ifindex?, address?))
}

fn neighbour(answer: RouteNetlinkMessage) -> Option<((u32, IpAddr), (Mac, bool))> {
    let RouteNetlinkMessage::NewNeighbour(neighbour) = answer else { return None };
    let (mut address, mut mac) = (None, None);
    for attribute in neighbour.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some(IpAddr::V4(v4)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address = Some(IpAddr::V6(v6)),
            NeighbourAttribute::LinkLayerAddress(it) => mac = <[u8; 6]>::try_from(it.as_slice()).ok(),
            _ => {}
        }
    }
    let is_permanent = neighbour.header.state == NeighbourState::Permanent;
    Some(((neighbour.header.ifindex, address?), (Mac(mac?), is_permanent)))
}
