//! Unreachable routes of the node's ranges: an address that no pod has is answered at once. Without the
//! route, such a packet follows the default route, and an upstream router that sends the range to this node
//! returns the packet until its hop limit ends.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use nix::errno::Errno;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        route::{RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteType},
    },
};

use super::{
    host,
    host_route::{ROUTE_PROTOCOL, route_to},
    netlink::{NetlinkError, Request, Socket},
    parse,
};

/// Any other route to the range comes before this one; pods' own routes do because they are longer.
const METRIC: u32 = u32::MAX - 1;

/// A range without an unreachable route, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub range: IpNet,
    pub why: String,
}

/// Adds the routes that ranges lack, and deletes those of other ranges, which another node may get. Returns
/// the ranges that get none.
///
/// # Errors
/// The first request that the kernel refuses, after all others were tried.
pub fn keep(ranges: &[IpNet]) -> Result<Vec<Skipped>, NetlinkError> {
    let mut host = Socket::open()?;
    let present = list(&mut host)?;
    let (missing, skipped) = missing_of(&mut host, ranges, &present)?;
    let no_longer =
        present.iter().filter(|range| !ranges.contains(range)).chain(skipped.iter().map(|it| &it.range));
    let mut done = Ok(());
    for range in no_longer.filter(|range| present.contains(range)) {
        done = done.and(remove(&mut host, *range));
    }
    for range in missing {
        done = done.and(add(&mut host, range));
    }
    done.map(|()| skipped)
}

/// The ranges whose routes are missing, and those that get none.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn missing(host: &mut Socket, ranges: &[IpNet]) -> Result<(Vec<IpNet>, Vec<Skipped>), NetlinkError> {
    let present = list(host)?;
    missing_of(host, ranges, &present)
}

/// Adds the route of a range.
///
/// # Errors
/// If the kernel refuses.
pub fn add(host: &mut Socket, range: IpNet) -> Result<(), NetlinkError> {
    let what = format!("add the unreachable route of {range}");
    match host.batch(vec![Request::create(what, RouteNetlinkMessage::NewRoute(message(range)))]) {
        Err(error) if error.is(Errno::EEXIST) => Ok(()),
        result => result.map(drop),
    }
}

fn remove(host: &mut Socket, range: IpNet) -> Result<(), NetlinkError> {
    let what = format!("delete the unreachable route of {range}");
    match host.batch(vec![Request::change(what, RouteNetlinkMessage::DelRoute(message(range)))]) {
        Err(error) if error.is(Errno::ESRCH) => Ok(()),
        result => result.map(drop),
    }
}

fn missing_of(
    host: &mut Socket,
    ranges: &[IpNet],
    present: &BTreeSet<IpNet>,
) -> Result<(Vec<IpNet>, Vec<Skipped>), NetlinkError> {
    let (mut missing, mut skipped) = (Vec::new(), Vec::new());
    let own = host::addresses()?;
    for &range in ranges {
        if let Some(address) = own.iter().find(|it| range.contains(*it)) {
            skipped.push(Skipped { range, why: format!("the node's own address {address} is in it") });
        } else if !present.contains(&range) {
            match foreign(host, range) {
                Some(why) => skipped.push(Skipped { range, why }),
                None => missing.push(range),
            }
        }
    }
    Ok((missing, skipped))
}

/// The agent's unreachable routes.
fn list(host: &mut Socket) -> Result<BTreeSet<IpNet>, NetlinkError> {
    let mut found = BTreeSet::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        // The kernel filters the dump by protocol and kind.
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
        message.header.kind = RouteType::Unreachable;
        let routes =
            host.dump("list the agent's unreachable routes", RouteNetlinkMessage::GetRoute(message))?;
        found.extend(routes.into_iter().filter_map(|answer| {
            let RouteNetlinkMessage::NewRoute(route) = answer else { return None };
            let is_ours = is_ours(&route) && route.header.table == RouteHeader::RT_TABLE_MAIN;
            is_ours.then(|| parse::destination(&route)).flatten()
        }));
    }
    Ok(found)
}

/// A route of others to exactly this range, which packets to unused addresses follow.
fn foreign(host: &mut Socket, range: IpNet) -> Option<String> {
    let address = range.network();
    let mut message = match address {
        IpAddr::V4(v4) => RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(v4, 32).build(),
        IpAddr::V6(v6) => RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(v6, 128).build(),
    };
    // As a request: the kernel demands zeros.
    let header = RouteHeader {
        address_family: message.header.address_family,
        destination_prefix_length: message.header.destination_prefix_length,
        flags: RouteFlags::FibMatch,
        ..RouteHeader::default()
    };
    message.header = header;
    let request = Request::change("look up a route", RouteNetlinkMessage::GetRoute(message));
    // An error means that there is no route, or an unreachable one.
    let found = host.batch(vec![request]).ok()?.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    })?;
    let is_exact = parse::destination(&found) == Some(range);
    let protocol = u8::from(found.header.protocol);
    // The agent's own route to a node that had the range before goes soon.
    (is_exact && protocol != ROUTE_PROTOCOL)
        .then(|| format!("another program has a route to exactly this range (protocol {protocol})"))
}

fn is_ours(route: &RouteMessage) -> bool {
    route.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL)
        && route.header.kind == RouteType::Unreachable
}

fn message(range: IpNet) -> RouteMessage {
    let mut message = route_to(range);
    message.header.kind = RouteType::Unreachable;
    message.attributes.push(RouteAttribute::Priority(METRIC));
    message
}
