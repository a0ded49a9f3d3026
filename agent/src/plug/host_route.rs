//! The host's routes to pods, and the protocol number that marks them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rtnetlink::{
    RouteMessageBuilder,
    packet_route::route::{RouteMessage, RouteProtocol, RouteScope},
};

/// The protocol number (`rtm_protocol`) that marks the agent's routes; `linux/rtnetlink.h` assigns the number
/// to no other program.
pub(super) const ROUTE_PROTOCOL: u8 = 70;

/// The host's route to an address of a pod, with the agent's protocol number.
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
