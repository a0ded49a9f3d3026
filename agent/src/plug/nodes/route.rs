//! Routes to other nodes: to their ranges in the main table, and to their addresses, for pods' packets only,
//! in a table of the agent's ([`super::rule`]).

use std::{collections::BTreeMap, net::IpAddr};

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

/// The place of a route: there is at most one of the agent's in each.
pub type Place = (Table, IpNet);
/// The routes that the node should have.
pub type Routes = BTreeMap<Place, NodeRoute>;

/// The number of [`Table::OfPods`].
pub const TABLE_OF_PODS: u32 = 7070;
/// After routes with the metric 0, which IPv4 routes of administrators and other programs have: a route with
/// an own metric never replaces one of theirs. Before IPv6's default of 1024.
const METRIC: u32 = 70;
/// Requests of one batch: the kernel copies them into one buffer.
const BATCH: usize = 256;

/// A difference between the wanted and the present routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Set(Place, NodeRoute),
    /// The place may hold a route of another form.
    Delete(Place),
}

// === impl Change ===

impl Change {
    pub fn place(&self) -> Place {
        match self {
            Self::Set(place, _) | Self::Delete(place) => *place,
        }
    }
}

/// The agent's routes to other nodes, by place; `None` for one of a form that the agent does not make.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn list(host: &mut Socket) -> Result<BTreeMap<Place, Option<NodeRoute>>, NetlinkError> {
    let mut found = BTreeMap::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
        let routes = host.dump("list the agent's routes", RouteNetlinkMessage::GetRoute(message))?;
        found.extend(routes.into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(route) => place(&route).map(|place| (place, decode(&route))),
            _ => None,
        }));
    }
    Ok(found)
}

/// What has to change, additions before deletions: a range that moves is never without a route.
pub fn diff(wanted: &Routes, present: &BTreeMap<Place, Option<NodeRoute>>) -> Vec<Change> {
    let set =
        wanted.iter().filter(|(place, route)| present.get(place).and_then(Option::as_ref) != Some(route));
    let set = set.map(|(place, route)| Change::Set(*place, route.clone()));
    let delete =
        present.keys().filter(|place| !wanted.contains_key(place)).map(|place| Change::Delete(*place));
    set.chain(delete).collect()
}

/// Applies changes in their order.
///
/// # Errors
/// The first request that the kernel refuses, after all others were tried.
pub fn apply(host: &mut Socket, changes: &[Change]) -> Result<(), NetlinkError> {
    let mut done = Ok(());
    for batch in changes.chunks(BATCH) {
        // A deletion of what is gone is none.
        let result = match host.batch(batch.iter().map(request).collect()) {
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
            RouteNetlinkMessage::NewRoute(encode(*table, *to, Some(route))),
        ),
        Change::Delete((table, to)) => Request::change(
            format!("delete the route to {to}"),
            RouteNetlinkMessage::DelRoute(encode(*table, *to, None)),
        ),
    }
}

/// `route`: `None` for a deletion, which names the place only.
fn encode(table: Table, to: IpNet, route: Option<&NodeRoute>) -> RouteMessage {
    let mut message = route_to(to);
    message.attributes.push(RouteAttribute::Priority(METRIC));
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

fn decode(route: &RouteMessage) -> Option<NodeRoute> {
    let (mut priority, mut mtu, mut source, mut gateway, mut tunnel) = (None, None, None, None, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Priority(it) => priority = Some(*it),
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
    let ifindex = parse::output_interface(route)?;
    (priority == Some(METRIC)).then_some(NodeRoute { ifindex, next, mtu: mtu?, source })
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
                let message = encode(table, net(to), Some(&route));
                assert_eq!(place(&message), Some((table, net(to))));
                assert_eq!(decode(&message), Some(route.clone()), "{to}");
            }
        }
    }

    #[test]
    fn routes_to_pods_and_unreachable_ranges_are_no_routes_to_nodes() {
        assert_eq!(place(&encode(Table::Main, net("10.1.0.2/32"), Some(&direct("10.0.0.2")))), None);
        assert!(place(&encode(Table::OfPods, net("10.1.0.2/32"), None)).is_some(), "a node's address");
        let mut unreachable = encode(Table::Main, net("10.1.0.0/24"), None);
        unreachable.header.kind = RouteType::Unreachable;
        assert_eq!(place(&unreachable), None);
        let mut foreign = encode(Table::Main, net("10.1.0.0/24"), Some(&direct("10.0.0.2")));
        foreign.header.protocol = RouteProtocol::Static;
        assert_eq!(place(&foreign), None);
    }

    #[test]
    fn a_route_that_differs_in_anything_is_set_again() {
        let to = (Table::Main, net("10.1.0.0/24"));
        let wanted = Routes::from([(to, tunnelled("10.0.0.2", "10.0.0.1"))]);
        let present = |route: Option<NodeRoute>| BTreeMap::from([(to, route)]);
        assert_eq!(diff(&wanted, &present(Some(tunnelled("10.0.0.2", "10.0.0.1")))), []);
        let set = || vec![Change::Set(to, tunnelled("10.0.0.2", "10.0.0.1"))];
        let other_mtu = NodeRoute { mtu: 1400, ..tunnelled("10.0.0.2", "10.0.0.1") };
        for different in
            [None, Some(other_mtu), Some(tunnelled("10.0.0.3", "10.0.0.1")), Some(direct("10.0.0.2"))]
        {
            assert_eq!(diff(&wanted, &present(different)), set());
        }
    }

    #[test]
    fn a_range_gets_its_new_route_before_others_are_deleted() {
        let place = |text: &str| (Table::Main, net(text));
        let wanted = Routes::from([(place("10.9.0.0/24"), direct("10.0.0.2"))]);
        let present = BTreeMap::from([(place("10.1.0.0/24"), Some(direct("10.0.0.2")))]);
        let expected =
            [Change::Set(place("10.9.0.0/24"), direct("10.0.0.2")), Change::Delete(place("10.1.0.0/24"))];
        assert_eq!(diff(&wanted, &present), expected);
    }
}
