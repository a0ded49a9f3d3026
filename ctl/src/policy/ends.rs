//! What a trace is about, as written on the command line.

use std::{fmt, net::IpAddr, str::FromStr};

use ferrule_policy::Party;
use ferrule_proto::{agent::PolicyEnd, quoted::Quoted};

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodName {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// An end of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Pod(PodName),
    Address(IpAddr),
    /// The node of the other end.
    Node,
}

/// Protocol and destination port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// As in the IP header.
    pub(super) protocol: u8,
    /// 0 for a protocol without ports.
    pub(super) port: u16,
}

/// The names of protocols, their numbers (IANA), and whether they have ports.
const PROTOCOLS: [(&str, u8, bool); 5] =
    [("tcp", 6, true), ("udp", 17, true), ("sctp", 132, true), ("icmp", 1, false), ("icmpv6", 58, false)];

// === impl PodName ===

impl FromStr for PodName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(format!("found {}, expected NAMESPACE/POD", Quoted(text))),
        }
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl End ===

impl End {
    pub(super) fn party(&self) -> Party {
        match self.clone() {
            Self::Pod(PodName { namespace, name }) => Party::Pod { namespace, name },
            Self::Address(address) => Party::Address(address),
            Self::Node => Party::OwnNode,
        }
    }

    pub(super) fn shown(&self) -> PolicyEnd {
        match self.clone() {
            Self::Pod(PodName { namespace, name }) => PolicyEnd { namespace, name, ..PolicyEnd::default() },
            Self::Address(address) => PolicyEnd { address: address.to_string(), ..PolicyEnd::default() },
            Self::Node => PolicyEnd { own_node: true, ..PolicyEnd::default() },
        }
    }
}

impl FromStr for End {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "node" {
            return Ok(Self::Node);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let pod = text.parse().map(Self::Pod);
        pod.map_err(|_| format!("found {}, expected NAMESPACE/POD, an address, or node", Quoted(text)))
    }
}

// === impl Traffic ===

impl FromStr for Traffic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "found {}, expected for instance 80, tcp/80, udp/53, sctp/9, icmp or icmpv6",
                Quoted(text)
            )
        };
        let lower = text.to_ascii_lowercase();
        let known = |name: &str| PROTOCOLS.into_iter().find(|(it, ..)| *it == name).ok_or_else(wrong);
        if let Some((_, protocol, false)) = PROTOCOLS.into_iter().find(|(it, ..)| *it == lower) {
            return Ok(Self { protocol, port: 0 });
        }
        let (name, port) = lower.split_once('/').unwrap_or(("tcp", &lower));
        let (_, protocol, has_ports) = known(name)?;
        match port.parse() {
            Ok(port) if port > 0 && has_ports => Ok(Self { protocol, port }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = PROTOCOLS.into_iter().find(|(_, number, _)| *number == self.protocol);
        let name = known.map_or("?", |(name, ..)| name).to_ascii_uppercase();
        match known {
            Some((.., true)) => write!(f, "{name} {}", self.port),
            _ => f.write_str(&name),
        }
    }
}
