//! The settings of masquerading.

use std::{fmt, path::PathBuf, str::FromStr};

use clap::ValueEnum;
use ipnet::IpNet;
use serde::Deserialize;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    pub mode: Mode,
    /// Further destinations that see pods' own addresses.
    pub kept: Vec<IpNet>,
    /// A configuration file of ip-masq-agent.
    pub file: Option<PathBuf>,
    pub ports: Ports,
    /// UDP port of the tunnel between nodes; `None` if there is never one.
    pub tunnel_port: Option<u16>,
}

/// Whether pods' packets to the world get an address of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Those from IPv4 addresses and unique local IPv6 addresses.
    #[default]
    Auto,
    /// Also those from global IPv6 addresses.
    On,
    Off,
}

/// The ports of the node's address that pods' flows get: the first, and the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports(u16, u16);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no range of ports: write the first and the last one, such as 32768-65535; from 1024 on, and at least 4096"
)]
pub struct InvalidPorts(String);

/// Below are the ports of services.
const FIRST: u16 = 1024;
/// With fewer, the pods of a busy node could not reach one server often enough.
const FEWEST: u16 = 4096;

// === impl Ports ===

impl Ports {
    pub fn edges(self) -> (u16, u16) {
        (self.0, self.1)
    }

    pub fn contain(self, port: u16) -> bool {
        (self.0..=self.1).contains(&port)
    }
}

impl Default for Ports {
    /// Without NodePorts (30000 to 32767 by default), most hostPorts, and the ports of tunnels: a reply to a
    /// masqueraded flow must not be taken for a request to one of these, nor the other way round. The node's
    /// own flows may have the same ports: conntrack gives no two flows the same addresses and ports.
    fn default() -> Self {
        Self(32768, 65535)
    }
}

impl FromStr for Ports {
    type Err = InvalidPorts;

    fn from_str(text: &str) -> Result<Self, InvalidPorts> {
        let edges = text.split_once('-').and_then(|(first, last)| {
            Some((first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?))
        });
        let is_valid =
            |(first, last): &(u16, u16)| *first >= FIRST && last.saturating_sub(*first) >= FEWEST - 1;
        let (first, last) = edges.filter(is_valid).ok_or_else(|| InvalidPorts(text.to_owned()))?;
        Ok(Self(first, last))
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ports_are_parsed_and_bounded() {
        assert_eq!("32768-65535".parse(), Ok(Ports::default()));
        assert_eq!("1024 - 5119".parse(), Ok(Ports(1024, 5119)));
        for text in ["", "40000", "1023-60000", "1024-5118", "60000-40000", "40000-65536", "a-b"] {
            assert!(text.parse::<Ports>().unwrap_err().to_string().contains(text), "{text}");
        }
    }
}
