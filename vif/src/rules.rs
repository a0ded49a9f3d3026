//! Rules for single values, in all formats. An error is the reason; the caller adds the path.

use std::{net::IpAddr, ops::RangeInclusive, str::FromStr};

use ferrule_proto::{names::IfName, quoted::Quoted};
use ipnet::IpNet;

use crate::Mac;

/// The kernel's limits for a device with IPv4: `ETH_MIN_MTU` and `ETH_MAX_MTU`, in bytes.
pub(crate) const MTU: RangeInclusive<u64> = 68..=65535;
/// Every link with IPv6 needs this MTU (RFC 8200): below, the kernel disables IPv6 on the device.
const MIN_IPV6_MTU: u32 = 1280;
/// The kernel clamps larger values (`ip_metrics_convert` in `net/ipv4/metrics.c`).
pub(crate) const MAX_ROUTE_MTU: u32 = 65520;
/// Bytes.
const MAX_KIND: usize = 64;

pub(crate) const BYTES: &str = "a number of bytes";

/// Parses a value; `expected` describes valid values.
pub(crate) fn parse<T: FromStr>(text: &str, expected: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("found {}, expected {expected}", Quoted(text)))
}

/// An interface name.
pub(crate) fn interface_name(name: &str) -> Result<String, String> {
    IfName::new(name).map(|name| name.to_string()).map_err(|error| error.to_string())
}

/// The name of a kind of interface, which may be unknown.
pub(crate) fn kind_name(name: &str) -> Result<&str, String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    if name.is_empty() || name.len() > MAX_KIND || !name.bytes().all(plain) {
        return Err(format!("found {}, expected a kind: 1 to {MAX_KIND} of [a-zA-Z0-9_.-]", Quoted(name)));
    }
    Ok(name)
}

/// An address of a pod: unicast and routable.
pub(crate) fn pod_address(address: IpAddr) -> Result<(), String> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if link_local {
        return Err(format!("{address} is link-local, expected a routable address"));
    }
    next_hop(address)
}

/// An address of a router: unicast, may be link-local.
pub(crate) fn next_hop(address: IpAddr) -> Result<(), String> {
    let kind = match address {
        IpAddr::V4(v4) if v4.octets()[0] == 0 => "in 0.0.0.0/8",
        IpAddr::V4(v4) if v4.octets()[0] >= 240 => "in 240.0.0.0/4",
        IpAddr::V6(v6) if v6.is_unspecified() => "the unspecified address",
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => "an IPv4-mapped address",
        _ if address.is_loopback() => "a loopback address",
        _ if address.is_multicast() => "a multicast address",
        _ => return Ok(()),
    };
    Err(format!("{address} is {kind}, expected a unicast address"))
}

/// The MAC of an interface.
pub(crate) fn mac(text: &str) -> Result<Mac, String> {
    let refuse = |expected| Err(format!("found {}, expected {expected}", Quoted(text)));
    let Ok(mac) = Mac::try_from(text.to_owned()) else {
        return refuse("a MAC address such as 0a:fe:0a:01:02:03");
    };
    let Mac([first, ..]) = mac;
    if first & 1 != 0 {
        return refuse("a unicast MAC address");
    }
    if mac == Mac([0; 6]) {
        return refuse("a MAC address other than zero");
    }
    Ok(mac)
}

/// The MTU of an interface with these addresses.
pub(crate) fn mtu(mtu: u64, addresses: &[IpNet]) -> Result<u32, String> {
    let mtu = within(mtu, &MTU, BYTES)?;
    if mtu < MIN_IPV6_MTU && addresses.iter().any(|net| net.addr().is_ipv6()) {
        return Err(format!("{mtu} is too small, expected at least {MIN_IPV6_MTU} with IPv6"));
    }
    Ok(mtu)
}

/// The MTU of a route, which must not exceed the interface's MTU, if that is known.
pub(crate) fn route_mtu(mtu: u64, dst: IpNet, interface: Option<u32>) -> Result<u32, String> {
    let mtu = self::mtu(mtu, &[dst])?;
    let max = interface.map_or(MAX_ROUTE_MTU, |interface| interface.min(MAX_ROUTE_MTU));
    if mtu > max {
        let limit = if interface == Some(max) { "the interface's MTU" } else { "the limit of a route" };
        return Err(format!("{mtu} is too large, expected at most {max}, {limit}"));
    }
    Ok(mtu)
}

/// A number within bounds.
pub(crate) fn within(value: u64, bounds: &RangeInclusive<u64>, expected: &str) -> Result<u32, String> {
    u32::try_from(value).ok().filter(|_| bounds.contains(&value)).ok_or_else(|| {
        format!("{value} is out of range, expected {expected} from {} to {}", bounds.start(), bounds.end())
    })
}

/// Whether two addresses have the same family.
pub(crate) fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

/// The name of an address's family.
pub(crate) fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}
