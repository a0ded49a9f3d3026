//! The requests that a plug is made of.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::{
    AddressMessageBuilder, RouteMessageBuilder,
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        address::{AddressAttribute, AddressFlags, AddressMessage},
        link::LinkMessage,
        neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
        route::{RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteProtocol, RouteScope},
    },
};

use super::{ROUTE_PROTOCOL, netlink::Request};
use ferrule_vif::PodRoute;

/// A route of the pod. On link: the gateway is in no range of the interface.
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
        // Whoever decodes a VIF sees to it that the families are the same; the kernel refuses this one.
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

/// What a route says of the path, as the kernel has it.
pub(super) fn metrics(route: &PodRoute) -> Vec<RouteMetric> {
    let mtu = route.mtu.map(RouteMetric::Mtu);
    mtu.into_iter().chain(route.advmss.map(RouteMetric::Advmss)).collect()
}

/// The host's route to an address of a pod, marked as ours.
pub(super) fn host_route(ifindex: u32, address: IpAddr) -> RouteMessage {
    let protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    match address {
        IpAddr::V4(v4) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(v4, 32)
            .output_interface(ifindex)
            .scope(RouteScope::Link)
            .protocol(protocol)
            .build(),
        IpAddr::V6(v6) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(v6, 128)
            .output_interface(ifindex)
            .protocol(protocol)
            .build(),
    }
}

/// Changes a link.
pub(super) fn set_link(what: &str, message: LinkMessage) -> Request {
    Request::change(what, RouteNetlinkMessage::SetLink(message))
}

/// Adds an address, which need not wait for duplicates to be looked for.
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

/// Adds a route.
pub(super) fn add_route(which: &str, message: RouteMessage) -> Request {
    Request::create(format!("add the route {which}"), RouteNetlinkMessage::NewRoute(message))
}

/// Adds a neighbour that is never asked for.
pub(super) fn add_neighbour(ifindex: u32, address: IpAddr, mac: [u8; 6]) -> Request {
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
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
    Request::replace(format!("add the neighbour {address}"), RouteNetlinkMessage::NewNeighbour(message))
}

/// The link in an answer.
pub(super) fn link_of(message: RouteNetlinkMessage) -> Option<LinkMessage> {
    if let RouteNetlinkMessage::NewLink(link) = message { Some(link) } else { None }
}
