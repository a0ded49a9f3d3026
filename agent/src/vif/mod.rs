//! What a VIF is: the interface that a pod should get.

mod ipam;
mod pool;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde::{Deserialize, Serialize};

pub use ipam::{Exhausted, Ipam, IpamError};
pub use pool::COOLDOWN;

/// The interface that a pod should get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vif {
    /// Of the pod's end.
    pub mac: Mac,
    /// Of both ends, in bytes.
    pub mtu: u32,
    /// What the pod is reached by.
    pub addresses: Addresses,
}

/// At most one address of each family, and at least one in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Addresses {
    /// IPv4.
    pub v4: Option<Ipv4Addr>,
    /// IPv6.
    pub v6: Option<Ipv6Addr>,
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Mac(pub [u8; 6]);

// === impl Addresses ===

impl Addresses {
    /// IPv4 first.
    pub fn iter(self) -> impl Iterator<Item = IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.iter().map(|address| address.to_string()).collect();
        f.write_str(&all.join(" "))
    }
}

// === impl Mac ===

impl Mac {
    /// A MAC made of an address, so that a pod's neighbours never see an address change its MAC while it is in
    /// use: locally administered and unicast.
    pub fn of(addresses: Addresses) -> Self {
        let [a, b, c, d] = match addresses {
            Addresses { v4: Some(v4), .. } => v4.octets(),
            Addresses { v6: Some(v6), .. } => {
                let [.., a, b, c, d] = v6.octets();
                [a, b, c, d]
            }
            Addresses { v4: None, v6: None } => [0; 4],
        };
        Self([0x0a, 0xfe, a, b, c, d])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bytes: Option<Vec<u8>> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| format!("{text:?} is no MAC address"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_is_unicast_locally_administered_and_the_addresss_own() {
        let mac = |v4: Option<&str>, v6: Option<&str>| {
            Mac::of(Addresses { v4: v4.map(|a| a.parse().unwrap()), v6: v6.map(|a| a.parse().unwrap()) })
        };
        assert_eq!(mac(Some("10.1.2.3"), Some("fd00::9")).to_string(), "0a:fe:0a:01:02:03");
        assert_eq!(mac(None, Some("fd00::9")).to_string(), "0a:fe:00:00:00:09");
        let Mac([first, ..]) = mac(Some("10.1.2.3"), None);
        assert_eq!(first & 0b11, 0b10);
    }

    #[test]
    fn a_mac_reads_back_what_it_prints() {
        let mac = Mac([0x0a, 0xfe, 0, 1, 2, 255]);
        assert_eq!(Mac::try_from(mac.to_string()), Ok(mac));
        assert!(Mac::try_from("0a:fe".to_owned()).is_err());
        assert!(Mac::try_from("0a:fe:00:01:02:zz".to_owned()).is_err());
    }
}
