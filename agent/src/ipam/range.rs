//! Which ranges and addresses pods can have.

use std::{fmt, net::IpAddr, ops::RangeInclusive, sync::LazyLock};

use ipnet::IpNet;

/// The ranges that addresses are allocated from: valid, and without overlap. Their order is that of the
/// configuration or of the Node object, and the family of the first is the primary one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCidrs(Vec<IpNet>);

/// Why no address can be allocated from a range.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RangeError {
    #[error("{given:?} is not a CIDR: {why}")]
    Syntax { given: String, why: String },
    #[error("the CIDR {given} has host bits set; did you mean {meant}?")]
    HostBits { given: IpNet, meant: IpNet },
    #[error(
        "the pod CIDR {0} is too small: the network, gateway and broadcast addresses are never allocated"
    )]
    NoRoom(IpNet),
    #[error("the pod CIDR {0} contains loopback, link-local, multicast or reserved addresses")]
    NotUnicast(IpNet),
    #[error("the pod CIDRs {0} and {1} overlap")]
    Overlap(IpNet, IpNet),
}

/// Ranges that no pod address can be in, because the dataplane does not forward them or the pods' gateways
/// are in them: this host, loopback, link-local, multicast, reserved, and IPv4 in IPv6.
static NEVER: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
    let ranges = [
        "0.0.0.0/8",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/3",
        "::/96",
        "::ffff:0:0/96",
        "fe80::/10",
        "ff00::/8",
    ];
    ranges.iter().filter_map(|range| range.parse().ok()).collect()
});

// === impl PodCidrs ===

impl PodCidrs {
    /// # Errors
    /// If addresses cannot be allocated from a range, or two ranges overlap.
    pub fn new(ranges: Vec<IpNet>) -> Result<Self, RangeError> {
        for (index, range) in ranges.iter().enumerate() {
            check(*range)?;
            let mut earlier = ranges.iter().take(index);
            if let Some(other) = earlier.find(|other| overlap(other, range)) {
                return Err(RangeError::Overlap(*other, *range));
            }
        }
        Ok(Self(ranges))
    }

    pub fn nets(&self) -> &[IpNet] {
        &self.0
    }
}

impl fmt::Display for PodCidrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&listed(&self.0))
    }
}

/// Reads a CIDR without host bits.
///
/// # Errors
/// If the text is no CIDR, or has host bits set.
pub fn parse(text: &str) -> Result<IpNet, RangeError> {
    let refuse = |why: String| RangeError::Syntax { given: text.to_owned(), why };
    let Some((address, length)) = text.split_once('/') else {
        return Err(refuse("expected an address and a prefix length, such as 10.244.0.0/24".to_owned()));
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return Err(refuse(format!("{address:?} is not an IP address")));
    };
    let (family, most) = if address.is_ipv4() { ("IPv4", 32) } else { ("IPv6", 128) };
    let net = length.parse().ok().and_then(|length| IpNet::new(address, length).ok());
    let net = net.ok_or_else(|| {
        refuse(format!("the prefix length {length:?} must be a number from 0 to {most} for {family}"))
    })?;
    if net == net.trunc() { Ok(net) } else { Err(RangeError::HostBits { given: net, meant: net.trunc() }) }
}

/// Whether a pod can have an address, in whatever range.
pub fn is_unicast(address: IpAddr) -> bool {
    !NEVER.iter().any(|range| range.contains(&address))
}

/// Whether each address of a range is one that a pod can have.
pub fn is_unicast_range(range: &IpNet) -> bool {
    !NEVER.iter().any(|never| overlap(never, range))
}

/// Whether two ranges have an address in common.
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

pub(super) fn listed(ranges: &[IpNet]) -> String {
    ranges.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", ")
}

/// The numbers of the addresses that can be allocated from a range; empty for a range that is too small.
///
/// The first address is the network's (IPv4) or the subnet-router anycast address (IPv6, RFC 4291 2.6.1), the
/// second by convention the gateway's, IPv4's last the broadcast address.
pub(super) fn allocatable(net: IpNet) -> RangeInclusive<u128> {
    let last = match net.broadcast() {
        IpAddr::V4(broadcast) => number(broadcast.into()).saturating_sub(1),
        IpAddr::V6(last) => number(last.into()),
    };
    number(net.network()).saturating_add(2)..=last
}

/// The address as a number, whose order is that of the addresses of its family.
pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn check(net: IpNet) -> Result<(), RangeError> {
    if net != net.trunc() {
        return Err(RangeError::HostBits { given: net, meant: net.trunc() });
    }
    if !is_unicast_range(&net) {
        return Err(RangeError::NotUnicast(net));
    }
    if allocatable(net).is_empty() { Err(RangeError::NoRoom(net)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidrs(ranges: &[&str]) -> Result<PodCidrs, RangeError> {
        PodCidrs::new(ranges.iter().map(|range| range.parse().unwrap()).collect())
    }

    #[test]
    fn an_unreadable_cidr_is_refused_with_the_part_that_is_wrong() {
        for (text, named) in [
            ("10.0.0.0/33", "the prefix length \"33\" must be a number from 0 to 32 for IPv4"),
            ("fd00::/129", "the prefix length \"129\" must be a number from 0 to 128 for IPv6"),
            ("10.0.0.0/-1", "the prefix length \"-1\""),
            ("10.0.0.0/", "the prefix length \"\""),
            ("10.0.0/24", "\"10.0.0\" is not an IP address"),
            ("10.0.0.0", "expected an address and a prefix length"),
            ("10.0.0.7/24", "did you mean 10.0.0.0/24?"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
        assert_eq!(parse("fd00:1::/64").unwrap().to_string(), "fd00:1::/64");
        assert_eq!(parse("10.0.0.7/32").unwrap().to_string(), "10.0.0.7/32");
    }

    #[test]
    fn overlapping_ranges_are_refused() {
        let overlap = |ranges: &[&str]| matches!(cidrs(ranges), Err(RangeError::Overlap(..)));
        assert!(overlap(&["10.0.0.0/16", "10.0.3.0/24"]));
        assert!(overlap(&["10.0.3.0/24", "10.0.0.0/16"]));
        assert!(overlap(&["10.0.3.0/24", "fd00::/64", "10.0.3.0/24"]));
        assert_eq!(cidrs(&["fd00::/64", "10.0.3.0/24"]).unwrap().to_string(), "fd00::/64, 10.0.3.0/24");
    }

    #[test]
    fn ranges_that_are_too_small_or_not_unicast_are_refused() {
        for net in ["10.0.0.0/31", "10.0.0.0/32", "fd00::/127", "fd00::/128"] {
            assert_eq!(cidrs(&[net]), Err(RangeError::NoRoom(net.parse().unwrap())));
        }
        for net in ["10.0.0.0/30", "fd00::/126"] {
            assert!(cidrs(&[net]).is_ok(), "{net} has room for a pod");
        }
        for net in [
            "224.0.0.0/8",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "fe80::/64",
            "ff00::/8",
            "0.0.0.0/0",
            "::/0",
            "0.1.0.0/16",
            "240.0.0.0/8",
            "128.0.0.0/1",
            "169.0.0.0/8",
            "::10.0.0.0/120",
        ] {
            assert_eq!(cidrs(&[net]), Err(RangeError::NotUnicast(net.parse().unwrap())), "{net}");
        }
        let error = cidrs(&["10.0.0.7/24"]).unwrap_err().to_string();
        assert!(error.contains("did you mean 10.0.0.0/24"), "{error}");
    }
}
