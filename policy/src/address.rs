//! Addresses and prefixes in their one canonical form.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

use ferrule_proto::quoted::Quoted;
use serde::{Serialize, Serializer};

/// An address: IPv6, or IPv4 as IPv4-mapped IPv6 (RFC 4291, 2.5.5.2), as in the maps. Two words are compared
/// faster than bytes, and need less alignment than one `u128`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr {
    high: u64,
    low: u64,
}

/// A prefix without host bits. The families never mix: `::/0` contains no IPv4 address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    pub(crate) addr: Addr,
    /// Bits of the address in its own family: at most 32 for IPv4.
    pub(crate) len: u8,
}

/// The first half of `low`, below a `high` of zero, in a mapped address.
const MAPPED: u64 = 0xffff;

// === impl Addr ===

impl Addr {
    /// Whether the address is of IPv4.
    pub fn is_v4(self) -> bool {
        self.high == 0 && self.low >> 32 == MAPPED
    }

    /// The bytes in network order.
    pub fn octets(self) -> [u8; 16] {
        self.bits().to_be_bytes()
    }

    /// The address with these bytes in network order.
    #[cfg(feature = "maps")]
    pub(crate) fn from_octets(octets: [u8; 16]) -> Self {
        Self::of_bits(u128::from_be_bytes(octets))
    }

    /// The number of bits in the address's family.
    pub(crate) fn family_bits(self) -> u8 {
        if self.is_v4() { 32 } else { 128 }
    }

    /// The address without what is behind `len` bits of its family.
    fn masked(self, len: u8) -> Self {
        let len = u32::from(len) + if self.is_v4() { 96 } else { 0 };
        let mask = u128::MAX.checked_shl(128_u32.saturating_sub(len)).unwrap_or(0);
        Self::of_bits(self.bits() & mask)
    }

    fn bits(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }

    fn of_bits(bits: u128) -> Self {
        let [high, low] =
            [bits >> 64, bits & u128::from(u64::MAX)].map(|it| u64::try_from(it).unwrap_or_default());
        Self { high, low }
    }
}

impl From<IpAddr> for Addr {
    fn from(address: IpAddr) -> Self {
        Self::of_bits(match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        })
    }
}

impl From<Addr> for IpAddr {
    fn from(addr: Addr) -> Self {
        Self::V6(Ipv6Addr::from_bits(addr.bits())).to_canonical()
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        IpAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl Prefix ===

impl Prefix {
    /// The prefix of `len` bits that contains an address; longer ones than the address are cut.
    pub fn new(address: impl Into<Addr>, len: u8) -> Self {
        let addr = address.into();
        let len = len.min(addr.family_bits());
        Self { addr: addr.masked(len), len }
    }

    /// The first address.
    pub fn addr(self) -> Addr {
        self.addr
    }

    /// Bits of the address in its own family: at most 32 for IPv4.
    pub fn bits(self) -> u8 {
        self.len
    }

    /// Whether the prefix is of IPv4.
    pub fn is_v4(self) -> bool {
        self.addr.is_v4()
    }

    /// Whether an address is in the prefix.
    pub fn contains(self, addr: Addr) -> bool {
        addr.is_v4() == self.is_v4() && addr.masked(self.len) == self.addr
    }

    /// Whether all addresses of another prefix are in this one.
    pub fn covers(self, other: Self) -> bool {
        other.len >= self.len && self.contains(other.addr)
    }

    /// The last address.
    pub(crate) fn last(self) -> Addr {
        let len = u32::from(self.len) + if self.is_v4() { 96 } else { 0 };
        let host = u128::MAX.checked_shr(len).unwrap_or(0);
        Addr::of_bits(self.addr.bits() | host)
    }
}

/// As the API server reads stored objects: host bits and leading zeros are accepted, IPv4-mapped is IPv4.
impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("found {}, expected a CIDR such as 10.0.0.0/8 or fd00::/8", Quoted(text));
        let (address, len) = text.split_once('/').ok_or_else(wrong)?;
        let address = parse_address(address).ok_or_else(wrong)?;
        let digits = !len.is_empty() && len.len() <= 8 && len.bytes().all(|b| b.is_ascii_digit());
        let len: u32 = if digits { len.parse().map_err(|_| wrong())? } else { return Err(wrong()) };
        let (addr, is_written_as_v6) = (Addr::from(address), address.is_ipv6());
        let len = match (addr.is_v4(), is_written_as_v6) {
            (true, true) if len < 96 => {
                return Err(format!(
                    "found {}, expected at least 96 bits of an IPv4-mapped prefix: families do not mix",
                    Quoted(text)
                ));
            }
            (true, true) => len - 96,
            _ => len,
        };
        match u8::try_from(len) {
            Ok(len) if len <= addr.family_bits() => Ok(Self::new(addr, len)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Prefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Parses an address; IPv4 with leading zeros is decimal, as in Go's "sloppy" parser.
pub(crate) fn parse_address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse().ok();
    }
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let digits = !part.is_empty() && part.len() <= 16 && part.bytes().all(|b| b.is_ascii_digit());
        *octet = if digits { part.parse::<u64>().ok()?.try_into().ok()? } else { return None };
    }
    parts.next().is_none().then(|| IpAddr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        text.parse::<Prefix>().map_or_else(|e| e, |prefix| prefix.to_string())
    }

    #[test]
    fn host_bits_leading_zeros_and_mapped_addresses_are_canonical() {
        for (text, expected) in [
            ("10.161.2.3/8", "10.0.0.0/8"),
            ("010.000.1.02/24", "10.0.1.0/24"),
            ("10.0.0.0/08", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
            ("::ffff:0a01:0203/128", "10.1.2.3/32"),
            ("FD00:0:0::1/8", "fd00::/8"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_cidr_is_refused_with_what_was_found() {
        for text in
            ["", "/", "10.0.0.0", "10.0.0/8", "10.0.0.256/8", "10.0.0.0/33", "10.0.0.0/+8", "::/129", "x/8"]
        {
            assert!(canonical(text).starts_with(&format!("found {text:?}, expected a CIDR")), "{text}");
        }
        assert!(canonical("::ffff:10.0.0.0/90").contains("families do not mix"));
    }

    #[test]
    fn families_never_mix() {
        let (v4, v6): (Prefix, Prefix) = ("0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap());
        let (a4, a6) =
            (Addr::from(IpAddr::from([10, 0, 0, 1])), Addr::from("fd00::1".parse::<IpAddr>().unwrap()));
        assert!(v4.contains(a4) && !v4.contains(a6));
        assert!(v6.contains(a6) && !v6.contains(a4));
        assert!(!v6.covers(v4) && v4.covers("10.0.0.0/8".parse().unwrap()));
        assert_eq!(v4.last().to_string(), "255.255.255.255");
        assert_eq!(
            "fd00::/16".parse::<Prefix>().unwrap().last().to_string(),
            "fd00:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
        );
    }
}
