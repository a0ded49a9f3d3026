//! Routes to other nodes: to their ranges in the main table, and to their addresses, for pods' packets only,
//! in a table of the agent's ([`super::rule`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
};

use agent_common::TUNNEL_VNI as VNI;
use ipnet::IpNet;
use nix::errno::Errno;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteIp6Tunnel, RouteIp6TunnelFlags,
        RouteIpTunnel, RouteLwEnCapType, RouteLwTunnelEncap, RouteMessage, RouteMetric, RouteProtocol,
        RouteType,
    },
};

use super::super::{
    host_route::{ROUTE_PROTOCOL, route_to},
    netlink::{NetlinkError, Request, Socket},
    parse,
};

/// A route to another node's range, or to its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRoute {
    pub ifindex: u32,
    pub next: Next,
    /// Bytes.
    pub mtu: u32,
    /// The source of the node's own packets.
    pub source: Option<IpAddr>,
}

/// How a packet leaves the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    Gateway(IpAddr),
    /// VXLAN to an address of the other node, from one of this node if that is given.
    Tunnel {
        remote: IpAddr,
        source: Option<IpAddr>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    Main,
    /// Only pods' packets look here.
    OfPods,
}

/// The place of a route: there should be at most one of the agent's in each.
pub type Place = (Table, IpNet);
/// The routes that the node should have.
pub type Routes = BTreeMap<Place, NodeRoute>;
/// The routes that the node has, by place and metric; `None` for one of a form that the agent does not make.
pub type Present = BTreeMap<(Place, u32), Option<NodeRoute>>;

/// The number of [`Table::OfPods`].
pub const TABLE_OF_PODS: u32 = 7070;
/// After routes with the metric 0, which IPv4 routes of administrators and other programs have: a route with
/// an own metric never replaces one of theirs. Before IPv6's default of 1024.
const METRIC: u32 = 70;
/// The number of metrics, from the first one on, of IPv4 routes.
const METRICS: u32 = 16;
/// Requests of one batch: the kernel copies them into one buffer.
const BATCH: usize = 256;

/// A difference between the wanted and the present routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Set(Place, NodeRoute),
    /// A route with this metric. The place may hold another one.
    Delete(Place, u32),
}

// === impl Change ===

impl Change {
    pub fn place(&self) -> Place {
        match self {
            Self::Set(place, _) | Self::Delete(place, _) => *place,
        }
    }
}

/// The agent's routes to other nodes.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn list(host: &mut Socket) -> Result<Present, NetlinkError> {
    let mut found = BTreeMap::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
        let routes = host.dump("list the agent's routes", RouteNetlinkMessage::GetRoute(message))?;
        found.extend(routes.into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(route) => {
                place(&route).map(|place| ((place, metric_of(&route)), decode(&route)))
            }
            _ => None,
        }));
    }
    Ok(found)
}

/// What has to change, additions before deletions: a range that moves is never without a route.
pub fn diff(wanted: &Routes, present: &Present) -> Vec<Change> {
    let set = wanted.iter().filter(|(place, route)| !contain(present, **place, route));
    let set = set.map(|(place, route)| Change::Set(*place, route.clone()));
    let is_wanted = |place: &Place, found: u32| {
        wanted.get(place).is_some_and(|route| metric(place.1, &route.next) == found)
    };
    let delete = present.keys().filter(|(place, found)| !is_wanted(place, *found));
    set.chain(delete.map(|(place, found)| Change::Delete(*place, *found))).collect()
}

/// Whether the node has a route as it should be.
pub fn contain(present: &Present, place: Place, route: &NodeRoute) -> bool {
    present.get(&(place, metric(place.1, &route.next))).and_then(Option::as_ref) == Some(route)
}

/// Applies changes: first what is set. If any of that is refused, then no route goes whose successor may be
/// missing.
///
/// # Errors
/// The first request that the kernel refuses, after all others were tried.
pub fn apply(host: &mut Socket, changes: &[Change]) -> Result<(), NetlinkError> {
    let set: Vec<_> = changes.iter().filter(|change| matches!(change, Change::Set(..))).collect();
    let done = send(host, &set);
    let delete = deletable(changes, done.is_ok());
    done.and(send(host, &delete))
}

/// What may be deleted once everything that is to be set is set, or only a part.
fn deletable(changes: &[Change], is_all_set: bool) -> Vec<&Change> {
    let (set, delete): (Vec<_>, Vec<_>) =
        changes.iter().partition(|change| matches!(change, Change::Set(..)));
    let successors: BTreeSet<_> = set.into_iter().map(Change::place).collect();
    delete.into_iter().filter(|it| is_all_set || !successors.contains(&it.place())).collect()
}

/// Sends requests in their order.
fn send(host: &mut Socket, changes: &[&Change]) -> Result<(), NetlinkError> {
    let mut done = Ok(());
    for batch in changes.chunks(BATCH) {
        // A deletion of what is gone is none.
        let result = match host.batch(batch.iter().map(|change| request(change)).collect()) {
            Err(error) if error.is(Errno::ESRCH) => Ok(()),
            result => result.map(drop),
        };
        done = done.and(result);
    }
    done
}

fn request(change: &Change) -> Request {
    match change {
        Change::Set((table, to), route) => Request::replace(
            format!("set the route to {to}"),
            RouteNetlinkMessage::NewRoute(encode((*table, *to), metric(*to, &route.next), Some(route))),
        ),
        Change::Delete((table, to), metric) => Request::change(
            format!("delete the route to {to}"),
            RouteNetlinkMessage::DelRoute(encode((*table, *to), *metric, None)),
        ),
    }
}

/// The metric of a route, which follows from the next hop. The kernel keeps the next hops of all IPv4 routes
/// with one metric and interface in one list, and compares a new route's with each of them (`fib_find_info`
/// in `net/ipv4/fib_semantics.c`): the routes of a thousand nodes would take three times as long.
fn metric(to: IpNet, next: &Next) -> u32 {
    // Any even spread serves.
    let spread = |bits: u32| bits.wrapping_mul(0x9e37_79b1) >> 16;
    let fold = |address: Ipv6Addr| {
        address
            .segments()
            .chunks(2)
            .fold(0, |all, two| two.iter().fold(0, |word, part| word << 16 | u32::from(*part)) ^ all)
    };
    let address = match next {
        Next::Gateway(address) | Next::Tunnel { remote: address, .. } => *address,
    };
    match (to, address) {
        (IpNet::V6(_), _) => METRIC,
        (_, IpAddr::V4(address)) => METRIC + spread(address.to_bits()) % METRICS,
        (_, IpAddr::V6(address)) => METRIC + spread(fold(address)) % METRICS,
    }
}

/// `route`: `None` for a deletion, which names place and metric only.
fn encode((table, to): Place, metric: u32, route: Option<&NodeRoute>) -> RouteMessage {
    let mut message = route_to(to);
    message.attributes.push(RouteAttribute::Priority(metric));
    if table == Table::OfPods {
        message.header.table = RouteHeader::RT_TABLE_UNSPEC;
        message.attributes.push(RouteAttribute::Table(TABLE_OF_PODS));
    }
    let Some(route) = route else { return message };
    message.attributes.push(RouteAttribute::Oif(route.ifindex));
    message.attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(route.mtu)]));
    message.attributes.extend(route.source.map(address).map(RouteAttribute::PrefSource));
    match &route.next {
        Next::Gateway(gateway) => {
            message.attributes.push(RouteAttribute::Gateway(address(*gateway)));
            // The kernel has just named gateway and interface. The node's route to the gateway may itself be
            // of this kind.
            message.header.flags = RouteFlags::Onlink;
        }
        Next::Tunnel { remote, source } => message.attributes.extend(encapsulation(*remote, *source)),
    }
    message
}

/// The attributes of VXLAN (`LWTUNNEL_IP_…` in `linux/lwtunnel.h`). Receivers refuse UDP over IPv6 without a
/// checksum (RFC 8200, 8.1); over IPv4, the inner checksums suffice.
fn encapsulation(remote: IpAddr, source: Option<IpAddr>) -> [RouteAttribute; 2] {
    let (kind, values) = match remote {
        IpAddr::V4(remote) => {
            let source = source.and_then(|it| if let IpAddr::V4(it) = it { Some(it) } else { None });
            let values = [RouteIpTunnel::Id(VNI.into()), RouteIpTunnel::Destination(remote)];
            let values = values.into_iter().chain(source.map(RouteIpTunnel::Source));
            (RouteLwEnCapType::Ip, values.map(RouteLwTunnelEncap::Ip).collect())
        }
        IpAddr::V6(remote) => {
            let source = source.and_then(|it| if let IpAddr::V6(it) = it { Some(it) } else { None });
            let values = [
                RouteIp6Tunnel::Id(VNI.into()),
                RouteIp6Tunnel::Destination(remote),
                RouteIp6Tunnel::Flags(RouteIp6TunnelFlags::Checksum),
            ];
            let values = values.into_iter().chain(source.map(RouteIp6Tunnel::Source));
            (RouteLwEnCapType::Ip6, values.map(RouteLwTunnelEncap::Ip6).collect())
        }
    };
    [RouteAttribute::EncapType(kind), RouteAttribute::Encap(values)]
}

/// The place of a route to another node; `None` for the agent's other routes: those to pods, and the
/// unreachable ones of this node's ranges.
fn place(route: &RouteMessage) -> Option<Place> {
    if route.header.protocol != RouteProtocol::Other(ROUTE_PROTOCOL)
        || route.header.kind != RouteType::Unicast
    {
        return None;
    }
    let to = parse::destination(route)?;
    let table = route.attributes.iter().find_map(|it| match it {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    match table.unwrap_or_else(|| route.header.table.into()) {
        TABLE_OF_PODS => Some((Table::OfPods, to)),
        table if table == u32::from(RouteHeader::RT_TABLE_MAIN) && to.prefix_len() < to.max_prefix_len() => {
            Some((Table::Main, to))
        }
        _ => None,
    }
}

/// 0 if the route has none.
fn metric_of(route: &RouteMessage) -> u32 {
    let metric = |it: &RouteAttribute| if let RouteAttribute::Priority(it) = it { Some(*it) } else { None };
    route.attributes.iter().find_map(metric).unwrap_or_default()
}

fn decode(route: &RouteMessage) -> Option<NodeRoute> {
    let (mut mtu, mut source, mut gateway, mut tunnel) = (None, None, None, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::PrefSource(it) => source = parse::ip(it),
            RouteAttribute::Gateway(it) if route.header.flags.contains(RouteFlags::Onlink) => {
                gateway = parse::ip(it).map(Next::Gateway);
            }
            RouteAttribute::Encap(it) => tunnel = decode_encapsulation(it),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics
                    .iter()
                    .find_map(|it| if let RouteMetric::Mtu(mtu) = it { Some(*mtu) } else { None });
            }
            // Several next hops: not of the agent.
            RouteAttribute::MultiPath(_) => return None,
            _ => {}
        }
    }
    let next = match (gateway, tunnel) {
        (Some(gateway), None) => gateway,
        (None, Some(tunnel)) => tunnel,
        _ => return None,
    };
    Some(NodeRoute { ifindex: parse::output_interface(route)?, next, mtu: mtu?, source })
}

fn decode_encapsulation(values: &[RouteLwTunnelEncap]) -> Option<Next> {
    let (mut id, mut remote, mut source, mut flags) = (None, None, None, 0);
    for value in values {
        match value {
            RouteLwTunnelEncap::Ip(RouteIpTunnel::Id(it))
            | RouteLwTunnelEncap::Ip6(RouteIp6Tunnel::Id(it)) => {
                id = Some(*it);
            }
            RouteLwTunnelEncap::Ip(RouteIpTunnel::Destination(it)) => remote = Some(IpAddr::V4(*it)),
            RouteLwTunnelEncap::Ip(RouteIpTunnel::Source(it)) => source = Some(IpAddr::V4(*it)),
            RouteLwTunnelEncap::Ip(RouteIpTunnel::Flags(it)) => flags = it.bits(),
            RouteLwTunnelEncap::Ip6(RouteIp6Tunnel::Destination(it)) => remote = Some(IpAddr::V6(*it)),
            RouteLwTunnelEncap::Ip6(RouteIp6Tunnel::Source(it)) => source = Some(IpAddr::V6(*it)),
            RouteLwTunnelEncap::Ip6(RouteIp6Tunnel::Flags(it)) => flags = it.bits(),
            _ => {}
        }
    }
    let remote = remote?;
    let checksum = RouteIp6TunnelFlags::Checksum.bits();
    let is_ours = id == Some(VNI.into()) && (flags & checksum != 0) == remote.is_ipv6();
    is_ours.then_some(Next::Tunnel { remote, source: source.filter(|it| !it.is_unspecified()) })
}

fn address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn direct(gateway: &str) -> NodeRoute {
        NodeRoute { ifindex: 2, next: Next::Gateway(ip(gateway)), mtu: 1500, source: None }
    }

    fn tunnelled(remote: &str, source: &str) -> NodeRoute {
        let next = Next::Tunnel { remote: ip(remote), source: Some(ip(source)) };
        NodeRoute { ifindex: 9, next, mtu: 1450, source: Some(ip(source)) }
    }

    #[test]
    fn every_form_of_a_route_is_recognized_again() {
        for (to, route) in [
            ("10.1.0.0/24", direct("10.0.0.2")),
            ("fd01::/64", direct("fd00::2")),
            ("10.1.0.0/24", tunnelled("10.0.0.2", "10.0.0.1")),
            ("fd01::/64", tunnelled("10.0.0.2", "10.0.0.1")),
            ("10.1.0.0/24", tunnelled("fd00::2", "fd00::1")),
        ] {
            for table in [Table::Main, Table::OfPods] {
                let message = encode((table, net(to)), 71, Some(&route));
                assert_eq!((place(&message), metric_of(&message)), (Some((table, net(to))), 71));
                assert_eq!(decode(&message), Some(route.clone()), "{to}");
            }
        }
    }

    #[test]
    fn routes_to_pods_and_unreachable_ranges_are_no_routes_to_nodes() {
        let direct = direct("10.0.0.2");
        let to = |table, to: &str| encode((table, net(to)), METRIC, Some(&direct));
        assert_eq!(place(&to(Table::Main, "10.1.0.2/32")), None);
        assert!(place(&to(Table::OfPods, "10.1.0.2/32")).is_some(), "a node's address");
        let mut unreachable = to(Table::Main, "10.1.0.0/24");
        unreachable.header.kind = RouteType::Unreachable;
        assert_eq!(place(&unreachable), None);
        let mut foreign = to(Table::Main, "10.1.0.0/24");
        foreign.header.protocol = RouteProtocol::Static;
        assert_eq!(place(&foreign), None);
    }

    /// As the kernel has a route.
    fn present(place: Place, route: Option<NodeRoute>) -> Present {
        let metric = route.as_ref().map_or(METRIC, |it| metric(place.1, &it.next));
        Present::from([((place, metric), route)])
    }

    #[test]
    fn a_route_that_differs_in_anything_is_set_again() {
        let to = (Table::Main, net("fd01::/64"));
        let wanted = Routes::from([(to, tunnelled("10.0.0.2", "10.0.0.1"))]);
        assert_eq!(diff(&wanted, &present(to, Some(tunnelled("10.0.0.2", "10.0.0.1")))), []);
        let set = || vec![Change::Set(to, tunnelled("10.0.0.2", "10.0.0.1"))];
        let other_mtu = NodeRoute { mtu: 1400, ..tunnelled("10.0.0.2", "10.0.0.1") };
        for different in
            [None, Some(other_mtu), Some(tunnelled("10.0.0.3", "10.0.0.1")), Some(direct("fd00::2"))]
        {
            assert_eq!(diff(&wanted, &present(to, different)), set());
        }
    }

    #[test]
    fn routes_to_ipv4_have_few_metrics_which_follow_from_the_next_hop_and_those_to_ipv6_have_one() {
        let of = |to: &str, last: u8| metric(net(to), &Next::Gateway([10, 0, 0, last].into()));
        let metrics: BTreeMap<u32, usize> = (0..=255).fold(BTreeMap::new(), |mut metrics, last| {
            *metrics.entry(of("10.1.0.0/24", last)).or_default() += 1;
            metrics
        });
        assert_eq!(metrics.len(), METRICS as usize);
        assert!(
            metrics.iter().all(|(metric, routes)| (70..86).contains(metric) && *routes < 32),
            "{metrics:?}"
        );
        assert_eq!(of("10.1.0.0/24", 2), of("10.9.0.0/16", 2));
        assert!((0..=255).all(|last| of("fd01::/64", last) == 70));
        let ipv6 = |part: u16| {
            metric(net("10.1.0.0/24"), &Next::Gateway([0x2001, 0xdb8, part, 0, 0, 0, 0, 1].into()))
        };
        assert_eq!((0..=255).map(ipv6).collect::<BTreeSet<_>>().len(), METRICS as usize);
    }

    #[test]
    fn a_range_gets_its_new_route_before_others_are_deleted() {
        let place = |text: &str| (Table::Main, net(text));
        let (old, new) = (place("10.1.0.0/24"), place("10.9.0.0/24"));
        let wanted = Routes::from([(new, direct("10.0.0.2"))]);
        let metric = |gateway: &str| metric(net("10.1.0.0/24"), &direct(gateway).next);
        let expected = [Change::Set(new, direct("10.0.0.2")), Change::Delete(old, metric("10.0.0.2"))];
        assert_eq!(diff(&wanted, &present(old, Some(direct("10.0.0.2")))), expected);
        assert_ne!(metric("10.0.0.2"), metric("10.0.0.3"));
        let moved = Routes::from([(old, direct("10.0.0.3"))]);
        let expected = [Change::Set(old, direct("10.0.0.3")), Change::Delete(old, metric("10.0.0.2"))];
        assert_eq!(diff(&moved, &present(old, Some(direct("10.0.0.2")))), expected);
    }

    #[test]
    fn the_old_route_of_a_range_stays_if_a_new_one_may_be_missing() {
        let (moved, left) = ((Table::Main, net("10.1.0.0/24")), (Table::Main, net("10.2.0.0/24")));
        let changes =
            [Change::Set(moved, direct("10.0.0.3")), Change::Delete(moved, 70), Change::Delete(left, 71)];
        assert_eq!(deletable(&changes, true), [&changes[1], &changes[2]]);
        assert_eq!(deletable(&changes, false), [&changes[2]]);
    }

    /// Agents before the metrics had several gave all routes the first one.
    #[test]
    fn a_route_with_another_metric_is_replaced() {
        let to = (Table::Main, net("10.1.0.0/24"));
        let route = (0..=255).map(|last| direct(&format!("10.0.0.{last}")));
        let route = route.into_iter().find(|it| metric(to.1, &it.next) != METRIC).unwrap();
        let earlier = Present::from([((to, METRIC), Some(route.clone()))]);
        let expected = [Change::Set(to, route.clone()), Change::Delete(to, METRIC)];
        assert_eq!(diff(&Routes::from([(to, route)]), &earlier), expected);
    }
}
