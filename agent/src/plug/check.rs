//! CHECK: whether the kernel still has an attachment as it was made.

use std::{collections::BTreeSet, net::IpAddr};

use agent_common::GATEWAY_MAC;
use ipnet::IpNet;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{LinkAttribute, LinkFlags, LinkMessage},
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage},
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric},
};

use super::{
    GATEWAY, PlugError,
    ends::{End, Ends},
    filter, get_link,
    netlink::Socket,
    netns::Netns,
    requests,
    stamp::Stamp,
};
use crate::registry::Attachment;
use ferrule_vif::{Mac, PodRoute};

/// What may be other than a plug made it, because a plugin after ours has changed it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leeway {
    pub pod_mtu: PodMtu,
    /// Destinations of routes that are not looked for.
    pub routes: BTreeSet<IpNet>,
}

/// Which MTU the pod's end should have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PodMtu {
    /// The VIF's.
    #[default]
    Ours,
    /// The VIF's, or less.
    NoLarger,
    /// Another one, in bytes.
    Is(u32),
}

/// What differs, in words.
type Differs = String;

/// Compares both ends with what a plug makes and later plugins may have changed, with the programs of these IDs in the order of [`filter::Hook::ALL`].
///
/// # Errors
/// The outer one, if the kernel refuses to tell.
pub fn attachment(
    netns: &Netns,
    ifindex: u32,
    attachment: &Attachment,
    leeway: &Leeway,
    programs: [u32; 2],
) -> Result<Result<(), Differs>, PlugError> {
    let mut host = Socket::open()?;
    let mut pod = netns.run(Socket::open)??;
    let in_host = host_end(&mut host, ifindex, attachment, programs)?;
    let in_pod = pod_end(&mut pod, attachment, leeway)?;
    Ok(in_host.and(in_pod))
}

// === impl PodMtu ===

impl PodMtu {
    fn expected(self, ours: u32, link: &LinkMessage) -> u32 {
        let found = |attribute: &_| if let LinkAttribute::Mtu(mtu) = attribute { Some(*mtu) } else { None };
        match self {
            Self::Ours => ours,
            Self::NoLarger => link.attributes.iter().find_map(found).unwrap_or(ours).min(ours),
            Self::Is(other) => other,
        }
    }
}

fn host_end(
    host: &mut Socket,
    ifindex: u32,
    attachment: &Attachment,
    programs: [u32; 2],
) -> Result<Result<(), Differs>, PlugError> {
    // The kernel sorts out what is not on it: a host may have a million routes of others.
    let ends = Ends::one(host, ifindex)?;
    Ok(match ends.links.get(&ifindex) {
        Some(end) => end_is(end, &ends, ifindex, attachment, programs),
        None => Err(format!("the host's interface {ifindex} is gone")),
    })
}

fn end_is(
    end: &End,
    ends: &Ends,
    ifindex: u32,
    attachment: &Attachment,
    programs: [u32; 2],
) -> Result<(), Differs> {
    let stamp = Stamp::of(&attachment.key);
    if end.stamp.as_ref() != Some(&stamp) {
        return Err(format!("the alias of the host's interface {ifindex} is not {stamp}"));
    }
    if !end.up {
        return Err("the host's interface is down".to_owned());
    }
    if end.mac != Some(Mac(GATEWAY_MAC)) {
        return Err(format!("the host's interface has not the MAC {}", Mac(GATEWAY_MAC)));
    }
    if end.mtu != attachment.vif.mtu {
        return Err(format!("the host's interface has the MTU {}, not {}", end.mtu, attachment.vif.mtu));
    }
    if let Some(master) = end.master {
        return Err(format!(
            "what comes in by the host's interface is given to the interface {master}, its master"
        ));
    }
    if let Some(kind) = ends.strangers.get(&ifindex) {
        return Err(filter::in_our_place(kind, &end.name));
    }
    let filters = ends.filters.get(&ifindex).map(Vec::as_slice).unwrap_or_default();
    for ((hook, name), id) in filter::Hook::ALL.into_iter().zip(programs) {
        if !filters.iter().any(|it| it.hook == hook && it.is_ours && it.program == Some(id)) {
            return Err(format!("the filter {name} is not on the host's interface {ifindex}"));
        }
    }
    for address in attachment.vif.addresses.iter() {
        if !ends.routes.contains(&(ifindex, address)) {
            return Err(format!("the host has no route to {address} through its interface {ifindex}"));
        }
        if ends.neighbours.get(&(ifindex, address)) != Some(&(attachment.vif.mac, true)) {
            return Err(format!("the host has no neighbour entry for {address} on its interface {ifindex}"));
        }
    }
    Ok(())
}

fn pod_end(
    pod: &mut Socket,
    attachment: &Attachment,
    leeway: &Leeway,
) -> Result<Result<(), Differs>, PlugError> {
    let ifname = &attachment.key.ifname;
    let links = links(pod)?;
    let is_it = |link: &&LinkMessage| link.attributes.contains(&LinkAttribute::IfName(ifname.to_string()));
    let Some(link) = links.iter().find(is_it) else {
        return Ok(Err(format!("the pod has no interface {ifname}")));
    };
    let mtu = leeway.pod_mtu.expected(attachment.vif.mtu, link);
    if let Err(differs) = link_is(link, "the pod's interface", attachment.vif.mac, mtu) {
        return Ok(Err(differs));
    }
    let ifindex = link.header.index;
    for address in attachment.vif.addresses.iter() {
        if !has_address(pod, ifindex, address)? {
            return Ok(Err(format!("the pod's interface has not the address {address}")));
        }
    }
    for route in attachment.vif.all_routes(GATEWAY) {
        if leeway.routes.contains(&route.dst) {
            continue;
        }
        let PodRoute { dst, gateway, .. } = route;
        if !has_route(pod, ifindex, &route)? {
            let which =
                if dst.prefix_len() == 0 { "default route".to_owned() } else { format!("route to {dst}") };
            return Ok(Err(format!("the pod has no {which} through {gateway}{}", numbers(&route))));
        }
        if !has_neighbour(pod, ifindex, gateway, Mac(GATEWAY_MAC))? {
            return Ok(Err(format!("the pod has no neighbour entry for its gateway {gateway}")));
        }
    }
    Ok(Ok(()))
}

fn link_is(link: &LinkMessage, what: &str, mac: Mac, mtu: u32) -> Result<(), Differs> {
    if !link.header.flags.contains(LinkFlags::Up) {
        return Err(format!("{what} is down"));
    }
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Address(found) if found.as_slice() != mac.0 => {
                return Err(format!("{what} has not the MAC {mac}"));
            }
            LinkAttribute::Mtu(found) if *found != mtu => {
                return Err(format!("{what} has the MTU {found}, not {mtu}"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn links(socket: &mut Socket) -> Result<Vec<LinkMessage>, PlugError> {
    let answers = socket.dump("list the interfaces", RouteNetlinkMessage::GetLink(get_link()))?;
    let link = |answer| if let RouteNetlinkMessage::NewLink(link) = answer { Some(link) } else { None };
    Ok(answers.into_iter().filter_map(link).collect())
}

fn has_address(socket: &mut Socket, ifindex: u32, address: IpAddr) -> Result<bool, PlugError> {
    let mut message = AddressMessage::default();
    message.header.family = family(address);
    let answers = socket.dump("list the addresses", RouteNetlinkMessage::GetAddress(message))?;
    Ok(answers.iter().any(|answer| match answer {
        RouteNetlinkMessage::NewAddress(found) => {
            found.header.index == ifindex
                && found.attributes.iter().any(|attribute| match attribute {
                    AddressAttribute::Address(found) => *found == address,
                    _ => false,
                })
        }
        _ => false,
    }))
}

/// Whether a route of the main table goes through an interface, and is as a pod's should be.
fn has_route(socket: &mut Socket, ifindex: u32, wanted: &PodRoute) -> Result<bool, PlugError> {
    let dst = wanted.dst;
    let wanted_metrics = requests::metrics(wanted);
    let mut message = RouteMessage::default();
    message.header.address_family = family(dst.addr());
    let answers = socket.dump("list the routes", RouteNetlinkMessage::GetRoute(message))?;
    Ok(answers.iter().any(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) if route.header.table == RouteHeader::RT_TABLE_MAIN => {
            let has = |attribute| route.attributes.contains(&attribute);
            // A default route is told without a destination.
            let to = dst.prefix_len() == 0 || has(RouteAttribute::Destination(route_address(dst.addr())));
            let via = has(RouteAttribute::Gateway(route_address(wanted.gateway)));
            let wins = wanted.priority.is_none_or(|it| has(RouteAttribute::Priority(it)));
            let length = route.header.destination_prefix_length == dst.prefix_len();
            let metrics = metrics(route);
            let carries = wanted_metrics.iter().all(|it| metrics.contains(it));
            to && via && wins && carries && length && has(RouteAttribute::Oif(ifindex))
        }
        _ => false,
    }))
}

fn has_neighbour(socket: &mut Socket, ifindex: u32, address: IpAddr, mac: Mac) -> Result<bool, PlugError> {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address);
    let answers = socket.dump("list the neighbours", RouteNetlinkMessage::GetNeighbour(message))?;
    let destination = match address {
        IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
        IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
    };
    Ok(answers.iter().any(|answer| match answer {
        RouteNetlinkMessage::NewNeighbour(found) => {
            found.header.ifindex == ifindex
                && found.attributes.contains(&NeighbourAttribute::Destination(destination.clone()))
                && found.attributes.contains(&NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()))
        }
        _ => false,
    }))
}

fn metrics(route: &RouteMessage) -> Vec<RouteMetric> {
    let of = |attribute: &_| match attribute {
        RouteAttribute::Metrics(metrics) => Some(metrics.clone()),
        _ => None,
    };
    route.attributes.iter().find_map(of).unwrap_or_default()
}

/// What else a route says, in words.
fn numbers(route: &PodRoute) -> String {
    let numbers = [("MTU", route.mtu), ("advertised MSS", route.advmss), ("priority", route.priority)];
    let numbers =
        numbers.into_iter().filter_map(|(what, value)| Some(format!(" with the {what} {}", value?)));
    numbers.collect::<Vec<_>>().join(" and")
}

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}
