//! Facts from netlink messages that more than one inventory needs.

use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourState},
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric},
};

use ferrule_vif::{Mac, PodRoute};

/// A neighbour entry that has a MAC.
pub(super) struct Neighbour {
    pub ifindex: u32,
    pub address: IpAddr,
    pub mac: Mac,
    pub state: NeighbourState,
}

/// `None` unless the bytes are an Ethernet MAC.
pub(super) fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}

pub(super) fn neighbour(answer: RouteNetlinkMessage) -> Option<Neighbour> {
    let RouteNetlinkMessage::NewNeighbour(message) = answer else { return None };
    let (mut address, mut found) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some((*v4).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address = Some((*v6).into()),
            NeighbourAttribute::LinkLayerAddress(bytes) => found = mac(bytes),
            _ => {}
        }
    }
    let (ifindex, state) = (message.header.ifindex, message.header.state);
    Some(Neighbour { ifindex, address: address?, mac: found?, state })
}

/// The destination of a route. The kernel sends a default route without `RTA_DST`.
pub(super) fn destination(route: &RouteMessage) -> Option<IpNet> {
    let found = route.attributes.iter().find_map(|it| match it {
        RouteAttribute::Destination(address) => ip(address),
        _ => None,
    });
    let any = || match route.header.address_family {
        AddressFamily::Inet6 => IpAddr::from([0_u8; 16]),
        _ => IpAddr::from([0_u8; 4]),
    };
    IpNet::new(found.unwrap_or_else(any), route.header.destination_prefix_length).ok()
}

/// The interface of a route with one next hop.
pub(super) fn output_interface(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|it| if let RouteAttribute::Oif(it) = it { Some(*it) } else { None })
}

/// A route through a gateway of its own family, with what it carries.
pub(super) fn route_through_gateway(route: &RouteMessage) -> Option<PodRoute> {
    let dst = destination(route)?;
    let (mut gateway, mut priority, mut mtu, mut advmss) = (None, None, None, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::Priority(it) => priority = Some(*it),
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    match metric {
                        RouteMetric::Mtu(it) => mtu = Some(*it),
                        RouteMetric::Advmss(it) => advmss = Some(*it),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let gateway = gateway.filter(|it| it.is_ipv4() == dst.addr().is_ipv4())?;
    Some(PodRoute { dst, gateway, mtu, advmss, priority })
}

pub(super) fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}
