//! MAC addresses.

use std::{fmt, net::Ipv6Addr};

use serde::{Deserialize, Serialize};

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Mac(pub [u8; 6]);

// === impl Mac ===

impl Mac {
    /// The EUI-64 link-local address that the kernel derives (RFC 4291, appendix A).
    pub const fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
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
        // `from_str_radix` alone would accept a sign.
        let digits = |byte: &&str| byte.len() == 2 && byte.bytes().all(|b| b.is_ascii_hexdigit());
        let byte = |byte| Some(byte).filter(digits).and_then(|byte| u8::from_str_radix(byte, 16).ok());
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| format!("invalid MAC address {text:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_round_trips() {
        let mac = Mac([0x0a, 0xfe, 0, 1, 2, 255]);
        assert_eq!(Mac::try_from(mac.to_string()), Ok(mac));
        for text in
            ["0a:fe", "0a:fe:00:01:02:zz", "+a:fe:00:01:02:03", "a:fe:00:01:02:03", "0a:fe:00:01:02:03:04"]
        {
            assert!(Mac::try_from(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn the_link_local_address_has_the_universal_bit_flipped() {
        let mac = Mac([0x0a, 0xfe, 0x0a, 1, 2, 3]);
        assert_eq!(mac.link_local().to_string(), "fe80::8fe:aff:fe01:203");
        assert_eq!(
            Mac([0, 0x11, 0x22, 0x33, 0x44, 0x55]).link_local().to_string(),
            "fe80::211:22ff:fe33:4455"
        );
        assert_eq!(format!("{mac:?}"), "0a:fe:0a:01:02:03");
    }
}
