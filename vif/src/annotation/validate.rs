//! Rules of the annotation that its types do not express.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    net::IpAddr,
    ops::RangeInclusive,
};

use ipnet::IpNet;

use super::format;
use crate::{Format, InterfaceRequest, Kind, Route, VifRequest, error::FieldError, rules};

pub(super) const MAX_INTERFACES: usize = 16;
/// Per interface.
pub(super) const MAX_ROUTES: usize = 64;
/// Linux' minimum (`TCP_MIN_MSS` in `net/tcp.h`), and the maximum of a route (`ip_metrics_convert`), in
/// bytes.
pub(super) const ADVMSS: RangeInclusive<u64> = 88..=65495;
/// For IPv6, rtnetlink takes 0 for the default (`IP6_RT_PRIO_USER` in `linux/ipv6_route.h`).
pub(super) const PRIORITY: RangeInclusive<u64> = 1..=4_294_967_295;
/// The first interface's default name: the one that runtimes request.
const DEFAULT_NAME: &str = "eth0";

/// Values that must be unique in the pod.
#[derive(Default)]
struct Unique {
    addresses: BTreeSet<IpAddr>,
    names: BTreeSet<String>,
    destinations: BTreeSet<IpNet>,
}

/// Validates an annotation.
pub(super) fn validate(annotation: format::Annotation) -> Result<VifRequest, FieldError> {
    let interfaces: Vec<_> = annotation.interfaces.into_iter().map(|format::Object(it)| it).collect();
    if interfaces.is_empty() || interfaces.len() > MAX_INTERFACES {
        let reason = format!("found {}, expected 1 to {MAX_INTERFACES} interfaces", interfaces.len());
        return Err(FieldError::new("interfaces", reason));
    }
    let path = |i: usize| format!("interfaces[{i}]");
    let mut unique = Unique::default();
    // All addresses first: a gateway must not be an address of the pod, on any interface.
    let addresses = interfaces.iter().enumerate().map(|(i, it)| addresses(&path(i), it, &mut unique));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    let interfaces = interfaces.into_iter().zip(addresses).enumerate();
    let interfaces = interfaces.map(|(i, (it, addresses))| interface(&path(i), it, addresses, &mut unique));
    Ok(VifRequest { format: Format::Annotation, interfaces: interfaces.collect::<Result<_, _>>()? })
}

fn addresses(
    path: &str,
    interface: &format::Interface,
    unique: &mut Unique,
) -> Result<Vec<IpNet>, FieldError> {
    let mut nets: Vec<IpNet> = Vec::new();
    for (i, text) in interface.addresses.iter().enumerate() {
        let at = || format!("{path}.addresses[{i}]");
        let net = address(text).map_err(error(at()))?;
        rules::pod_address(net.addr()).map_err(error(at()))?;
        if !unique.addresses.insert(net.addr()) {
            return Err(FieldError::new(at(), format_args!("duplicate address {} in the pod", net.addr())));
        }
        if has_family(&nets, net.addr()) {
            return Err(second_of_family(at(), net.addr()));
        }
        nets.push(net);
    }
    if nets.is_empty() {
        let reason = "empty, expected an IPv4 address, an IPv6 address or one of each";
        return Err(FieldError::new(format_args!("{path}.addresses"), reason));
    }
    Ok(nets)
}

/// An address with or without prefix length.
fn address(text: &str) -> Result<IpNet, String> {
    const EXPECTED: &str = "an IP address such as 10.1.2.3 or fd00::3/64";
    if text.contains('/') {
        rules::parse(text, EXPECTED)
    } else {
        rules::parse::<IpAddr>(text, EXPECTED).map(IpNet::from)
    }
}

fn interface(
    path: &str,
    interface: format::Interface,
    addresses: Vec<IpNet>,
    unique: &mut Unique,
) -> Result<InterfaceRequest, FieldError> {
    let name = name(&format!("{path}.name"), interface.name, unique)?;
    let kind = interface.kind.as_deref().map(rules::kind_name).transpose();
    let kind = match kind.map_err(error(format_args!("{path}.kind")))? {
        None | Some("veth") => Kind::Veth,
        Some(other) => Kind::Other(other.to_owned()),
    };
    let mtu = interface.mtu.map(|mtu| rules::mtu(mtu, &addresses)).transpose();
    let mtu = mtu.map_err(error(format_args!("{path}.mtu")))?;
    let mac = interface.mac.as_deref().map(rules::mac).transpose();
    Ok(InterfaceRequest {
        name,
        kind,
        active: true,
        mac: mac.map_err(error(format_args!("{path}.mac")))?,
        mtu,
        gateways: gateways(path, &interface.gateways.unwrap_or_default(), &addresses, unique)?,
        routes: routes(path, interface.routes.unwrap_or_default(), &addresses, mtu, unique)?,
        addresses,
        details: BTreeMap::new(),
    })
}

fn name(path: &str, name: Option<String>, unique: &mut Unique) -> Result<String, FieldError> {
    let name = match name {
        None if unique.names.is_empty() => DEFAULT_NAME.to_owned(),
        None => return Err(FieldError::new(path, "missing; only the first interface has a default name")),
        Some(name) => rules::interface_name(&name).map_err(error(path))?,
    };
    if !unique.names.insert(name.clone()) {
        return Err(FieldError::new(path, format_args!("duplicate interface name {name:?} in the pod")));
    }
    Ok(name)
}

fn gateways(
    path: &str,
    gateways: &[String],
    addresses: &[IpNet],
    unique: &Unique,
) -> Result<Vec<IpAddr>, FieldError> {
    let mut valid: Vec<IpAddr> = Vec::new();
    for (i, text) in gateways.iter().enumerate() {
        let at = || format!("{path}.gateways[{i}]");
        let gateway = gateway(text, unique).map_err(error(at()))?;
        check_family(addresses, gateway).map_err(error(at()))?;
        if valid.iter().any(|other| rules::same_family(*other, gateway)) {
            return Err(second_of_family(at(), gateway));
        }
        valid.push(gateway);
    }
    Ok(valid)
}

fn routes(
    path: &str,
    routes: Vec<format::Object<format::Route>>,
    addresses: &[IpNet],
    mtu: Option<u32>,
    unique: &mut Unique,
) -> Result<Vec<Route>, FieldError> {
    if routes.len() > MAX_ROUTES {
        let reason = format!("found {} routes, expected at most {MAX_ROUTES}", routes.len());
        return Err(FieldError::new(format_args!("{path}.routes"), reason));
    }
    let routes = routes.into_iter().enumerate();
    let valid = routes
        .map(|(i, format::Object(it))| route(&format!("{path}.routes[{i}]"), &it, addresses, mtu, unique));
    valid.collect()
}

fn route(
    path: &str,
    route: &format::Route,
    addresses: &[IpNet],
    interface_mtu: Option<u32>,
    unique: &mut Unique,
) -> Result<Route, FieldError> {
    let dst = destination(&route.dst, addresses, unique).map_err(error(format_args!("{path}.dst")))?;
    let gw = route.gw.as_deref().map(|text| {
        let gw = gateway(text, unique)?;
        if rules::same_family(gw, dst.addr()) {
            return Ok(gw);
        }
        Err(format!("{gw} cannot lead to {dst}, expected an {} address", rules::family(dst.addr())))
    });
    let gw = gw.transpose().map_err(error(format_args!("{path}.gw")))?;
    let mtu = route.mtu.map(|mtu| rules::route_mtu(mtu, dst, interface_mtu)).transpose();
    let advmss = route.advmss.map(|advmss| rules::within(advmss, &ADVMSS, rules::BYTES)).transpose();
    let priority = route.priority.map(|priority| rules::within(priority, &PRIORITY, "a number")).transpose();
    Ok(Route {
        dst,
        gw,
        mtu: mtu.map_err(error(format_args!("{path}.mtu")))?,
        advmss: advmss.map_err(error(format_args!("{path}.advmss")))?,
        priority: priority.map_err(error(format_args!("{path}.priority")))?,
    })
}

fn destination(text: &str, addresses: &[IpNet], unique: &mut Unique) -> Result<IpNet, String> {
    let dst: IpNet = rules::parse(text, "a network such as 192.168.0.0/16")?;
    if dst.prefix_len() == 0 {
        return Err(format!("{dst} is the default route, expected in \"gateways\""));
    }
    if dst != dst.trunc() {
        return Err(format!("{dst} has host bits, expected {}", dst.trunc()));
    }
    check_family(addresses, dst.addr())?;
    if !unique.destinations.insert(dst) {
        return Err(format!("duplicate destination {dst} in the pod"));
    }
    Ok(dst)
}

fn gateway(text: &str, unique: &Unique) -> Result<IpAddr, String> {
    let gateway = rules::parse(text, "an IP address without prefix length, such as 10.1.2.1")?;
    rules::next_hop(gateway)?;
    if unique.addresses.contains(&gateway) {
        return Err(format!("{gateway} is the pod's own address, expected a router's address"));
    }
    Ok(gateway)
}

fn check_family(addresses: &[IpNet], address: IpAddr) -> Result<(), String> {
    if has_family(addresses, address) {
        return Ok(());
    }
    let family = rules::family(address);
    Err(format!("{address} is {family}, but the interface has no {family} address"))
}

fn has_family(addresses: &[IpNet], address: IpAddr) -> bool {
    addresses.iter().any(|net| rules::same_family(net.addr(), address))
}

fn second_of_family(path: String, address: IpAddr) -> FieldError {
    let family = rules::family(address);
    FieldError::new(path, format_args!("{address} is the second {family} address, expected at most one"))
}

/// Adds a path to a reason.
fn error(path: impl Display) -> impl FnOnce(String) -> FieldError {
    move |reason| FieldError::new(path, reason)
}
