//! The rules for single values that hold whoever wrote them.

use std::net::IpAddr;

use ferrule_proto::names::IfName;
use ipnet::IpNet;

use crate::{Mac, at::At, error::Wrong};

/// The smallest MTU that the kernel accepts for a device with IPv4 (`ETH_MIN_MTU`), and the largest.
const MTU: std::ops::RangeInclusive<u64> = 68..=65535;
/// Every link with IPv6 carries this much (RFC 8200): with less, the kernel takes IPv6 off the device.
const IPV6_MTU: u32 = 1280;
/// What the kernel makes of more (`ip_metrics_convert` in `net/ipv4/metrics.c`).
const MAX_ROUTE_MTU: u32 = 65520;
/// The longest name of a kind.
const MAX_KIND: usize = 64;

/// The name of an interface: as the runtime's own.
pub(crate) fn interface_name(at: &At<'_>, name: &str) -> Result<String, Wrong> {
    IfName::new(name).map(|name| name.to_string()).map_err(|e| at.wrong(e))
}

/// The name of a kind: fit to be told.
pub(crate) fn kind_name<'v>(at: &At<'v>) -> Result<&'v str, Wrong> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let name = at.text()?;
    if name.is_empty() || name.len() > MAX_KIND || !name.bytes().all(plain) {
        return Err(at.is_not("a kind: 1 to 64 of [a-zA-Z0-9_.-]"));
    }
    Ok(name)
}

/// An address that a pod can have.
pub(crate) fn unicast(at: &At<'_>, address: IpAddr) -> Result<(), Wrong> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if link_local {
        return Err(at.wrong(format_args!("{address} is link-local: expected an address that can be routed")));
    }
    next_hop(at, address)
}

/// An address that a router can have: it may be link-local.
pub(crate) fn next_hop(at: &At<'_>, address: IpAddr) -> Result<(), Wrong> {
    let why = match address {
        IpAddr::V4(v4) if v4.octets()[0] == 0 => "of 0.0.0.0/8",
        IpAddr::V4(v4) if v4.octets()[0] >= 240 => "of 240.0.0.0/4",
        IpAddr::V6(v6) if v6.is_unspecified() => "the unspecified address",
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => "an IPv4 address mapped to IPv6",
        _ if address.is_loopback() => "a loopback address",
        _ if address.is_multicast() => "a multicast address",
        _ => return Ok(()),
    };
    Err(at.wrong(format_args!("{address} is {why}: expected a unicast address")))
}

/// The MAC of an interface.
pub(crate) fn mac(at: &At<'_>) -> Result<Mac, Wrong> {
    let mac = Mac::try_from(at.text()?.to_owned())
        .map_err(|_| at.is_not("a MAC address, such as 0a:fe:0a:01:02:03"))?;
    let Mac([first, ..]) = mac;
    if first & 1 != 0 {
        return Err(at.is_not("the MAC address of one interface: it is a group's"));
    }
    if mac == Mac([0; 6]) {
        return Err(at.is_not("the MAC address of an interface: it is zero"));
    }
    Ok(mac)
}

/// The MTU of an interface with these addresses.
pub(crate) fn mtu(at: &At<'_>, addresses: &[IpNet]) -> Result<u32, Wrong> {
    let mtu = within(at, &MTU, "a whole number of bytes")?;
    if mtu < IPV6_MTU && addresses.iter().any(|net| net.addr().is_ipv6()) {
        return Err(at.wrong(format_args!("{mtu} is less than {IPV6_MTU}, which IPv6 needs")));
    }
    Ok(mtu)
}

/// The MTU of a route: what an interface may have, and no more than its own has, if that is known.
pub(crate) fn route_mtu(at: &At<'_>, dst: IpNet, interface: Option<u32>) -> Result<u32, Wrong> {
    let mtu = mtu(at, &[dst])?;
    if mtu > MAX_ROUTE_MTU {
        return Err(at.wrong(format_args!("{mtu} is more than {MAX_ROUTE_MTU}, which a route may have")));
    }
    match interface {
        Some(own) if mtu > own => Err(at.wrong(format_args!("{mtu} is more than the interface's {own}"))),
        _ => Ok(mtu),
    }
}

/// A number of a route, within bounds.
pub(crate) fn within(at: &At<'_>, bounds: &std::ops::RangeInclusive<u64>, what: &str) -> Result<u32, Wrong> {
    let expected = format!("{what} from {} to {}", bounds.start(), bounds.end());
    let value = at.u64(&expected)?;
    u32::try_from(value).ok().filter(|_| bounds.contains(&value)).ok_or_else(|| at.is_not(&expected))
}

/// Whether two addresses are of one family.
pub(crate) fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

/// IPv4 or IPv6, for a message.
pub(crate) fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}
