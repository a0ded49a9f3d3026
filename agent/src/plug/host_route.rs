//! The agent's routes, to pods and to networks, and the protocol number that marks them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope},
};

/// The protocol number (`rtm_protocol`) that marks the agent's routes; `linux/rtnetlink.h` assigns the number
/// to no other program.
pub(super) const ROUTE_PROTOCOL: u8 = 70;

/// A route to a network, with the agent's protocol number and without a way.
pub(super) fn route_to(net: IpNet) -> RouteMessage {
    let protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    match net {
        IpNet::V4(net) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .protocol(protocol)
            .build(),
        IpNet::V6(net) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .protocol(protocol)
            .build(),
    }
}

/// The host's route to an address of a pod, with the agent's protocol number.
pub(super) fn host_route(ifindex: u32, address: IpAddr) -> RouteMessage {
    let mut message = route_to(address.into());
    message.attributes.push(RouteAttribute::Oif(ifindex));
    if address.is_ipv4() {
        message.header.scope = RouteScope::Link;
    }
    message
}
