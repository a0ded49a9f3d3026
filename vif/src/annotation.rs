//! The annotation of ours, `vif.ferrule.dev/v1`: see `docs/vif.md` for the schema and its rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;

use crate::{
    Format, InterfaceRequest, Kind, Route, Source, VifError, VifRequest,
    at::{At, Object},
    error::Wrong,
    json::Json,
    rules,
};

/// The longest text, in bytes.
const MAX_TEXT: usize = 64 * 1024;
/// The most interfaces of a pod.
const MAX_INTERFACES: usize = 16;
/// The most routes of an interface.
const MAX_ROUTES: usize = 64;
/// The default interface's name, if it has none: runtimes ask for this one.
const DEFAULT_NAME: &str = "eth0";
const INTERFACE_FIELDS: [&str; 7] = ["name", "kind", "addresses", "gateways", "routes", "mac", "mtu"];
const ROUTE_FIELDS: [&str; 5] = ["dst", "gw", "mtu", "advmss", "priority"];
/// The least that Linux takes for another's (`TCP_MIN_MSS` in `net/tcp.h`), and the most that a route can say
/// (`ip_metrics_convert`).
const ADVMSS: std::ops::RangeInclusive<u64> = 88..=65495;
/// A route netlink request cannot tell 0 from none for IPv6 (`IP6_RT_PRIO_USER` in `linux/ipv6_route.h`).
const PRIORITY: std::ops::RangeInclusive<u64> = 1..=4_294_967_295;

/// Decodes the value of the annotation [`crate::ANNOTATION`].
///
/// # Errors
/// If it breaks any rule of `docs/vif.md`: the first that it breaks.
pub fn from_annotation(text: &str) -> Result<VifRequest, VifError> {
    decode(text).map_err(|wrong| wrong.of(Source::Annotation))
}

/// What must not be there twice in a pod.
#[derive(Default)]
struct Seen {
    addresses: BTreeSet<IpAddr>,
    names: BTreeSet<String>,
    destinations: BTreeSet<IpNet>,
}

fn decode(text: &str) -> Result<VifRequest, Wrong> {
    let json = Json::parse(text, MAX_TEXT, "")?;
    let root = At::root(&json, "").object()?;
    root.only(&["interfaces"])?;
    let listed = root.need("interfaces")?;
    let items = listed.array()?;
    if items.is_empty() || items.len() > MAX_INTERFACES {
        return Err(listed.wrong(format_args!("has {}: expected 1 to {MAX_INTERFACES}", items.len())));
    }

    let mut seen = Seen::default();
    let objects = items.iter().map(At::object).collect::<Result<Vec<_>, _>>()?;
    // All addresses first: no gateway may be an address of the pod's, on whichever interface.
    let addresses =
        objects.iter().map(|object| addresses(object, &mut seen)).collect::<Result<Vec<_>, _>>()?;
    let interfaces = objects.iter().zip(addresses).map(|(object, addresses)| {
        let name = name(object, &mut seen)?;
        interface(object, name, addresses, &mut seen)
    });
    Ok(VifRequest { format: Format::Annotation, interfaces: interfaces.collect::<Result<_, _>>()? })
}

fn addresses(object: &Object<'_>, seen: &mut Seen) -> Result<Vec<IpNet>, Wrong> {
    object.only(&INTERFACE_FIELDS)?;
    let listed = object.need("addresses")?;
    let mut taken: Vec<IpNet> = Vec::new();
    for at in listed.array()? {
        let net = address(&at)?;
        rules::unicast(&at, net.addr())?;
        if !seen.addresses.insert(net.addr()) {
            return Err(at.wrong(format_args!("{} is there twice", net.addr())));
        }
        if has_family(&taken, net.addr()) {
            return Err(at.wrong(format_args!("{} is the second of its family: expected one", net.addr())));
        }
        taken.push(net);
    }
    if taken.is_empty() {
        return Err(listed.wrong("is empty: expected an IPv4 address, an IPv6 address or one of each"));
    }
    Ok(taken)
}

/// An address, with the length of its prefix or without.
fn address(at: &At<'_>) -> Result<IpNet, Wrong> {
    const EXPECTED: &str = "an IP address, such as 10.1.2.3 or fd00::3/64";
    if at.text()?.contains('/') { at.parse(EXPECTED) } else { at.parse::<IpAddr>(EXPECTED).map(IpNet::from) }
}

fn name(object: &Object<'_>, seen: &mut Seen) -> Result<String, Wrong> {
    let default = seen.names.is_empty();
    let at = match object.get("name") {
        None if default => {
            seen.names.insert(DEFAULT_NAME.to_owned());
            return Ok(DEFAULT_NAME.to_owned());
        }
        _ => object.need("name")?,
    };
    let name = rules::interface_name(&at, at.text()?)?;
    if !seen.names.insert(name.clone()) {
        return Err(at.wrong(format_args!("{name:?} is the name of an interface before it")));
    }
    Ok(name)
}

fn interface(
    object: &Object<'_>,
    name: String,
    addresses: Vec<IpNet>,
    seen: &mut Seen,
) -> Result<InterfaceRequest, Wrong> {
    let kind = match object.get("kind").map(|at| rules::kind_name(&at)).transpose()? {
        None | Some("veth") => Kind::Veth,
        Some(other) => Kind::Other(other.to_owned()),
    };
    let mtu = object.get("mtu").map(|at| rules::mtu(&at, &addresses)).transpose()?;
    Ok(InterfaceRequest {
        name,
        kind,
        active: true,
        mac: object.get("mac").map(|at| rules::mac(&at)).transpose()?,
        mtu,
        gateways: gateways(object, &addresses, seen)?,
        routes: routes(object, &addresses, mtu, seen)?,
        addresses,
        details: BTreeMap::new(),
    })
}

fn gateways(object: &Object<'_>, addresses: &[IpNet], seen: &Seen) -> Result<Vec<IpAddr>, Wrong> {
    let mut taken: Vec<IpAddr> = Vec::new();
    for at in object.items("gateways")? {
        let gateway = gateway(&at, seen)?;
        check_family(&at, addresses, gateway)?;
        if taken.iter().any(|other| rules::same_family(*other, gateway)) {
            return Err(at.wrong(format_args!("{gateway} is the second of its family: expected one")));
        }
        taken.push(gateway);
    }
    Ok(taken)
}

fn routes(
    object: &Object<'_>,
    addresses: &[IpNet],
    mtu: Option<u32>,
    seen: &mut Seen,
) -> Result<Vec<Route>, Wrong> {
    let items = object.items("routes")?;
    if items.len() > MAX_ROUTES {
        return Err(object
            .need("routes")?
            .wrong(format_args!("has {}: {MAX_ROUTES} are the most", items.len())));
    }
    items.iter().map(|at| route(&at.object()?, addresses, mtu, seen)).collect()
}

fn route(
    object: &Object<'_>,
    addresses: &[IpNet],
    mtu: Option<u32>,
    seen: &mut Seen,
) -> Result<Route, Wrong> {
    object.only(&ROUTE_FIELDS)?;
    let at = object.need("dst")?;
    let dst: IpNet = at.parse("a network, such as 192.168.0.0/16")?;
    if dst.prefix_len() == 0 {
        return Err(at.wrong(format_args!("{dst} is the default route: expected it in \"gateways\"")));
    }
    if dst != dst.trunc() {
        return Err(at.wrong(format_args!("{dst} has host bits: expected {}", dst.trunc())));
    }
    check_family(&at, addresses, dst.addr())?;
    if !seen.destinations.insert(dst) {
        return Err(at.wrong(format_args!("{dst} is there twice")));
    }
    let gw = match object.get("gw") {
        None => None,
        Some(at) => {
            let gw = gateway(&at, seen)?;
            if !rules::same_family(gw, dst.addr()) {
                let expected = rules::family(dst.addr());
                return Err(at.wrong(format_args!("{gw} cannot lead to {dst}: expected {expected}")));
            }
            Some(gw)
        }
    };
    let within =
        |key, bounds, what: &str| object.get(key).map(|at| rules::within(&at, bounds, what)).transpose();
    Ok(Route {
        dst,
        gw,
        mtu: object.get("mtu").map(|at| rules::route_mtu(&at, dst, mtu)).transpose()?,
        advmss: within("advmss", &ADVMSS, "a whole number of bytes")?,
        priority: within("priority", &PRIORITY, "a whole number")?,
    })
}

fn gateway(at: &At<'_>, seen: &Seen) -> Result<IpAddr, Wrong> {
    let gateway = at.parse("an IP address without a prefix length, such as 10.1.2.1")?;
    rules::next_hop(at, gateway)?;
    if seen.addresses.contains(&gateway) {
        return Err(at.wrong(format_args!("{gateway} is an address of the pod itself: expected a router's")));
    }
    Ok(gateway)
}

fn check_family(at: &At<'_>, addresses: &[IpNet], address: IpAddr) -> Result<(), Wrong> {
    if has_family(addresses, address) {
        return Ok(());
    }
    let family = rules::family(address);
    Err(at.wrong(format_args!("{address} is {family}, and the interface has no {family} address")))
}

fn has_family(addresses: &[IpNet], address: IpAddr) -> bool {
    addresses.iter().any(|net| rules::same_family(net.addr(), address))
}

#[cfg(test)]
mod tests;
