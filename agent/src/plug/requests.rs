//! Messages and requests that a plug sends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::{
    AddressMessageBuilder, RouteMessageBuilder,
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        address::{AddressAttribute, AddressFlags, AddressMessage},
        link::LinkMessage,
        neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
        route::{RouteAttribute, RouteFlags, RouteMessage, RouteMetric},
    },
};

use super::netlink::Request;
use ferrule_vif::{Mac, PodRoute, Vif};

/// The least that a link with IPv6 may have, in bytes (RFC 8200, 5).
pub(super) const LEAST_IPV6: u32 = 1280;

/// The MTU in bytes of a pod's route to which the VIF gives none: that of the path to other nodes, if it is
/// smaller than the interface's.
pub(super) fn route_mtu(vif: &Vif, path_mtu: Option<u32>, is_ipv4: bool) -> Option<u32> {
    let mtu = path_mtu.filter(|mtu| *mtu < vif.mtu)?;
    Some(if is_ipv4 { mtu } else { mtu.max(LEAST_IPV6) })
}

/// A route in the pod. It needs the `onlink` flag: no prefix of the interface covers the gateway.
pub(super) fn pod_route(ifindex: u32, route: &PodRoute) -> RouteMessage {
    let mut message = match (route.dst, route.gateway) {
        (IpNet::V4(dst), IpAddr::V4(gateway)) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(dst.addr(), dst.prefix_len())
            .gateway(gateway)
            .output_interface(ifindex)
            .build(),
        (IpNet::V6(dst), IpAddr::V6(gateway)) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(dst.addr(), dst.prefix_len())
            .gateway(gateway)
            .output_interface(ifindex)
            .build(),
        // Never a VIF's: its decoder rejects a gateway of the other family. The kernel refuses this message.
        _ => RouteMessage::default(),
    };
    message.header.flags |= RouteFlags::Onlink;
    message.attributes.extend(route.priority.map(RouteAttribute::Priority));
    let metrics = metrics(route);
    if !metrics.is_empty() {
        message.attributes.push(RouteAttribute::Metrics(metrics));
    }
    message
}

fn metrics(route: &PodRoute) -> Vec<RouteMetric> {
    let mtu = route.mtu.map(RouteMetric::Mtu);
    mtu.into_iter().chain(route.advmss.map(RouteMetric::Advmss)).collect()
}

pub(super) fn set_link(what: &str, message: LinkMessage) -> Request {
    Request::change(what, RouteNetlinkMessage::SetLink(message))
}

/// Adds an address without duplicate address detection (RFC 4862, 5.4): the address is usable at once.
pub(super) fn add_address(ifindex: u32, address: IpAddr, prefix: u8) -> Request {
    let mut message: AddressMessage = match address {
        IpAddr::V4(v4) => AddressMessageBuilder::<Ipv4Addr>::new().index(ifindex).address(v4, prefix).build(),
        IpAddr::V6(v6) => AddressMessageBuilder::<Ipv6Addr>::new().index(ifindex).address(v6, prefix).build(),
    };
    if address.is_ipv6() {
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    Request::create(format!("add the address {address}"), RouteNetlinkMessage::NewAddress(message))
}

pub(super) fn add_route(which: &str, message: RouteMessage) -> Request {
    Request::create(format!("add the route {which}"), RouteNetlinkMessage::NewRoute(message))
}

/// Adds a permanent neighbour entry, which the kernel never resolves by itself, or replaces the one that
/// exists.
pub(super) fn add_neighbour(ifindex: u32, address: IpAddr, mac: Mac) -> Request {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = ifindex;
    message.header.state = NeighbourState::Permanent;
    let destination = match address {
        IpAddr::V4(v4) => {
            message.header.family = AddressFamily::Inet;
            NeighbourAddress::Inet(v4)
        }
        IpAddr::V6(v6) => {
            message.header.family = AddressFamily::Inet6;
            NeighbourAddress::Inet6(v6)
        }
    };
    message.attributes.push(NeighbourAttribute::Destination(destination));
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
    Request::replace(format!("add the neighbour {address}"), RouteNetlinkMessage::NewNeighbour(message))
}

pub(super) fn link_of(message: RouteNetlinkMessage) -> Option<LinkMessage> {
    if let RouteNetlinkMessage::NewLink(link) = message { Some(link) } else { None }
}
