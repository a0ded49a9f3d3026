//! How the kernel reaches an address of another node.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkFlags, LinkMessage},
        route::{RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteType},
    },
};

use super::super::{
    link,
    netlink::{NetlinkError, Request, Socket},
    parse,
};

/// The next hop to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    pub ifindex: u32,
    /// `None` if the address is on the interface's own network; the address itself if the gateway is of the
    /// other family (RFC 8950).
    pub gateway: Option<IpAddr>,
    /// The source that the kernel chooses.
    pub source: Option<IpAddr>,
    /// Bytes: the route's, or the interface's.
    pub mtu: u32,
    /// Whether the route has several next hops, of which the kernel has chosen this one for the address.
    pub is_spread: bool,
    /// Whether a next hop means anything to the interface.
    pub has_neighbours: bool,
}

/// What decides about a way by an interface.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// Bytes.
    mtu: u32,
    has_neighbours: bool,
}

/// The interfaces that are known.
type Links = HashMap<u32, Option<Link>>;

/// `RTM_F_FIB_MATCH` in `linux/rtnetlink.h`: the answer is the route, and not what the route means for the
/// address.
const FIB_MATCH: u32 = 0x2000;

// === impl Hop ===

impl Hop {
    /// Whether packets to the address have a next hop of the other family.
    pub fn is_of_other_family(&self, address: IpAddr) -> bool {
        self.gateway == Some(address)
    }

    /// The only next hop of packets to the address that is of the same family.
    pub fn next(&self, address: IpAddr) -> Option<IpAddr> {
        let has_one = !self.is_spread && !self.is_of_other_family(address);
        has_one.then(|| self.gateway.unwrap_or(address))
    }

    /// With the route's own MTU, if that is smaller.
    fn within(self, route: Option<&RouteMessage>) -> Self {
        Self { mtu: route.and_then(mtu_of).map_or(self.mtu, |mtu| mtu.min(self.mtu)), ..self }
    }
}

// === impl Link ===

impl Link {
    /// The kernel resolves no next hop on a link with one of these flags (`arp_constructor` in
    /// `net/ipv4/arp.c`, `ndisc_constructor` in `net/ipv6/ndisc.c`). WireGuard, tun, PPP, GRE and IP-in-IP
    /// have them: there, the destination alone decides, or there is only one other end.
    fn of(link: LinkMessage) -> Option<Self> {
        let has_neighbours = !link.header.flags.intersects(LinkFlags::Noarp | LinkFlags::Pointopoint);
        let mtu = |it| if let LinkAttribute::Mtu(mtu) = it { Some(mtu) } else { None };
        Some(Self { mtu: link.attributes.into_iter().find_map(mtu)?, has_neighbours })
    }
}

/// The kernel's routes to addresses, without those that have none or are the node's own.
///
/// # Errors
/// If the kernel refuses to describe an interface.
pub fn reach(
    host: &mut Socket,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> Result<HashMap<IpAddr, Hop>, NetlinkError> {
    let (v4, v6): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_ipv4);
    let mut links = HashMap::new();
    let mut hops = reach_ipv4(host, v4, &mut links)?;
    hops.extend(reach_ipv6(host, v6, &mut links)?);
    Ok(hops)
}

/// The route first. If it has one next hop, then the kernel chooses the same source for all addresses that
/// have this route, and is asked about one of them.
fn reach_ipv4(
    host: &mut Socket,
    addresses: Vec<IpAddr>,
    links: &mut Links,
) -> Result<HashMap<IpAddr, Hop>, NetlinkError> {
    let routes = look_up(host, &addresses, FIB_MATCH)?;
    let (mut asked, mut places, mut questions) = (HashMap::new(), Vec::new(), Vec::new());
    for (address, route) in addresses.iter().zip(&routes) {
        let mut ask = || {
            questions.push(*address);
            questions.len() - 1
        };
        places.push(match route.as_ref().filter(|route| has_one_hop(route)) {
            Some(route) => *asked.entry(identity(route)).or_insert_with(ask),
            None => ask(),
        });
    }
    let answers = look_up(host, &questions, 0)?;
    let mut hops = HashMap::new();
    for ((address, route), place) in addresses.into_iter().zip(routes).zip(places) {
        let Some(answer) = answers.get(place).and_then(Option::as_ref) else { continue };
        let only = route.as_ref().filter(|route| has_one_hop(route));
        // An answer may have what a router has told about this one address (an ICMP redirect).
        if let Some(hop) = hop(host, address, only.unwrap_or(answer), links)? {
            let source = hop.source.or_else(|| source_of(answer));
            hops.insert(address, Hop { source, is_spread: only.is_none(), ..hop.within(route.as_ref()) });
        }
    }
    Ok(hops)
}

/// The kernel chooses the source by the address. An answer without an MTU means a route without one.
fn reach_ipv6(
    host: &mut Socket,
    addresses: Vec<IpAddr>,
    links: &mut Links,
) -> Result<HashMap<IpAddr, Hop>, NetlinkError> {
    let answers = look_up(host, &addresses, 0)?;
    let (mut hops, mut with_mtu) = (HashMap::new(), Vec::new());
    for (address, answer) in addresses.into_iter().zip(answers) {
        let Some(answer) = answer else { continue };
        if let Some(hop) = hop(host, address, &answer, links)? {
            hops.insert(address, hop);
            with_mtu.extend(mtu_of(&answer).map(|_| address));
        }
    }
    let routes = look_up(host, &with_mtu, FIB_MATCH)?;
    for (address, route) in with_mtu.iter().zip(routes) {
        if let Some(hop) = hops.get_mut(address) {
            *hop = hop.within(route.as_ref());
        }
    }
    Ok(hops)
}

/// The kernel's answer about each address; a refusal means that there is no route. With [`FIB_MATCH`], the
/// route, which has only the MTU of its own: in that place, the other answer has what a router has told, for
/// ten minutes (`rt_fill_info` in `net/ipv4/route.c`, `rt6_fill_node` in `net/ipv6/route.c` of the kernel).
fn look_up(
    host: &mut Socket,
    addresses: &[IpAddr],
    flags: u32,
) -> Result<Vec<Option<RouteMessage>>, NetlinkError> {
    let requests = addresses.iter().map(|address| {
        let mut message = request(*address);
        message.header.flags = RouteFlags::from_bits_retain(flags);
        let what = format!("look up the route to {address}");
        Request::change(what, RouteNetlinkMessage::GetRoute(message))
    });
    let answers = host.look_up(requests.collect())?.into_iter();
    let route = |answer| if let Some(RouteNetlinkMessage::NewRoute(it)) = answer { Some(it) } else { None };
    Ok(answers.map(route).collect())
}

/// A group of next hops is in the kernel's own table, to which the route may only refer.
fn has_one_hop(route: &RouteMessage) -> bool {
    parse::output_interface(route).is_some()
        && !route.attributes.iter().any(|it| matches!(it, RouteAttribute::MultiPath(_)))
}

fn source_of(answer: &RouteMessage) -> Option<IpAddr> {
    answer.attributes.iter().find_map(|it| match it {
        RouteAttribute::PrefSource(address) => parse::ip(address),
        _ => None,
    })
}

/// What tells a route from all others: table, destination, metric, and TOS.
fn identity(route: &RouteMessage) -> (u32, Option<IpNet>, u32, u8) {
    let (mut table, mut metric) = (route.header.table.into(), 0);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Table(it) => table = *it,
            RouteAttribute::Priority(it) => metric = *it,
            _ => {}
        }
    }
    (table, parse::destination(route), metric, route.header.tos)
}

/// The MTU that a route has by itself.
fn mtu_of(route: &RouteMessage) -> Option<u32> {
    let metrics = route.attributes.iter().filter_map(|it| match it {
        RouteAttribute::Metrics(metrics) => Some(metrics),
        _ => None,
    });
    metrics.flatten().find_map(|it| match it {
        RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
        _ => None,
    })
}

/// By the kernel's answer for the address; the route has the rest.
fn hop(
    host: &mut Socket,
    address: IpAddr,
    route: &RouteMessage,
    links: &mut Links,
) -> Result<Option<Hop>, NetlinkError> {
    if route.header.kind != RouteType::Unicast {
        return Ok(None);
    }
    let Some(ifindex) = parse::output_interface(route) else { return Ok(None) };
    let mut gateway = None;
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Gateway(address) => gateway = parse::ip(address),
            RouteAttribute::Via(_) => gateway = Some(address),
            _ => {}
        }
    }
    let link = match links.get(&ifindex) {
        Some(known) => *known,
        None => *links.entry(ifindex).or_insert(link::by_index(host, ifindex)?.and_then(Link::of)),
    };
    let Some(Link { mtu, has_neighbours }) = link else { return Ok(None) };
    let source = source_of(route);
    Ok(Some(Hop { ifindex, gateway, source, mtu, is_spread: false, has_neighbours }))
}

fn request(address: IpAddr) -> RouteMessage {
    let mut message = match address {
        IpAddr::V4(v4) => RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(v4, 32).build(),
        IpAddr::V6(v6) => RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(v6, 128).build(),
    };
    // As a request: the kernel demands zeros.
    message.header = RouteHeader {
        address_family: message.header.address_family,
        destination_prefix_length: message.header.destination_prefix_length,
        ..RouteHeader::default()
    };
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mtu_of_a_route_is_the_one_that_an_administrator_has_set() {
        let route = |metrics: &[RouteMetric]| {
            let mut route = RouteMessage::default();
            route.attributes.push(RouteAttribute::Metrics(metrics.to_vec()));
            mtu_of(&route)
        };
        assert_eq!(route(&[RouteMetric::Advmss(1000), RouteMetric::Mtu(1400)]), Some(1400));
        assert_eq!(route(&[RouteMetric::Mtu(0)]), None);
        assert_eq!(mtu_of(&RouteMessage::default()), None);
    }

    #[test]
    fn routes_that_share_an_answer_are_the_same_route_with_one_next_hop() {
        let route = |table, to: [u8; 4], metric, tos| {
            let builder = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(to.into(), 24);
            let mut route = builder.table_id(table).priority(metric).output_interface(2).build();
            route.header.tos = tos;
            route
        };
        let one = route(254, [10, 1, 0, 0], 0, 0);
        assert!(has_one_hop(&one));
        assert_eq!(identity(&one), identity(&route(254, [10, 1, 0, 0], 0, 0)));
        for other in [
            route(1000, [10, 1, 0, 0], 0, 0),
            route(254, [10, 2, 0, 0], 0, 0),
            route(254, [10, 1, 0, 0], 5, 0),
            route(254, [10, 1, 0, 0], 0, 8),
        ] {
            assert_ne!(identity(&one), identity(&other), "{other:?}");
        }
        let mut group = one.clone();
        group.attributes.push(RouteAttribute::MultiPath(Vec::new()));
        assert!(!has_one_hop(&group));
        group.attributes.retain(|it| !matches!(it, RouteAttribute::MultiPath(_) | RouteAttribute::Oif(_)));
        assert!(!has_one_hop(&group), "a group of the kernel's own table");
    }

    #[test]
    fn links_without_address_resolution_and_between_two_points_have_no_neighbours() {
        let link = |flags| {
            let mut link = LinkMessage::default();
            link.header.flags = LinkFlags::Up | flags;
            link.attributes.push(LinkAttribute::Mtu(1420));
            Link::of(link).map(|it| (it.mtu, it.has_neighbours))
        };
        assert_eq!(link(LinkFlags::Broadcast | LinkFlags::Multicast), Some((1420, true)));
        assert_eq!(link(LinkFlags::Noarp), Some((1420, false)));
        assert_eq!(link(LinkFlags::Pointopoint | LinkFlags::Multicast), Some((1420, false)));
        assert_eq!(link(LinkFlags::Pointopoint | LinkFlags::Noarp), Some((1420, false)), "WireGuard");
        assert!(Link::of(LinkMessage::default()).is_none());
    }
}
