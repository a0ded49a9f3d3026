//! Which ranges and addresses pods can have.

use std::net::IpAddr;

use ipnet::IpNet;

/// Why no address can be allocated from a range.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RangeError {
    #[error("the pod CIDR {given} has host bits set; did you mean {meant}?")]
    HostBits { given: IpNet, meant: IpNet },
    #[error(
        "the pod CIDR {0} is too small: the network, gateway and broadcast addresses are never allocated"
    )]
    NoRoom(IpNet),
    #[error("the pod CIDR {0} contains loopback, link-local, multicast or reserved addresses")]
    NotUnicast(IpNet),
}

/// Ranges that no pod address can be in, because the dataplane does not forward them or the pods' gateways
/// are in them: this host, loopback, link-local, multicast, reserved, and IPv4 in IPv6.
const NEVER: [&str; 8] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "::/96",
    "::ffff:0:0/96",
    "fe80::/10",
    "ff00::/8",
];

/// Checks that a range has no host bits and only unicast addresses.
pub(super) fn check(net: IpNet) -> Result<(), RangeError> {
    if net != net.trunc() {
        return Err(RangeError::HostBits { given: net, meant: net.trunc() });
    }
    if never().any(|range| range.contains(&net) || net.contains(&range)) {
        return Err(RangeError::NotUnicast(net));
    }
    Ok(())
}

/// Whether a pod can have an address, in whatever range.
pub fn is_unicast(address: IpAddr) -> bool {
    !never().any(|range| range.contains(&address))
}

fn never() -> impl Iterator<Item = IpNet> {
    NEVER.iter().filter_map(|range| range.parse().ok())
}
