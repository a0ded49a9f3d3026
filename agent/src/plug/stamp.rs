//! The ownership stamp: the alias (`ifalias`) of the agent's host interfaces.

use std::fmt;

use ferrule_proto::names::{ContainerId, IfName, NetworkName};

use crate::registry::Key;

/// Names the attachment that owns a host interface. The agent never changes an interface without its stamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp(Key);

const PREFIX: &str = "ferrule";

// === impl Stamp ===

impl Stamp {
    pub fn of(key: &Key) -> Self {
        Self(key.clone())
    }

    /// Parses an alias; `None` if it is not a stamp.
    pub fn parse(alias: &str) -> Option<Self> {
        let mut parts = alias.split(':');
        let (Some(PREFIX), Some(network), Some(container_id), Some(ifname), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        Some(Self(Key {
            network: NetworkName::new(network).ok()?,
            container_id: ContainerId::new(container_id).ok()?,
            ifname: IfName::new(ifname).ok()?,
        }))
    }

    /// The key of the attachment that owns the interface.
    pub fn key(&self) -> &Key {
        &self.0
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { network, container_id, ifname } = &self.0;
        write!(f, "{PREFIX}:{network}:{container_id}:{ifname}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_round_trips_and_fits_ifalias() {
        let longest = format!("ferrule:{}:{}:{}", "n".repeat(100), "c".repeat(128), "i".repeat(15));
        assert!(longest.len() < 256, "IFALIASZ in linux/if.h");
        for text in ["ferrule:k8s:0123456789abcdef:eth0", &longest] {
            assert_eq!(Stamp::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn foreign_aliases_are_not_stamps() {
        for alias in
            ["", "uplink", "ferrule", "ferrule:a:b", "ferrule:a:b:c:d", "other:a:b:c", "ferrule:a:../b:c"]
        {
            assert_eq!(Stamp::parse(alias), None, "{alias:?}");
        }
    }
}
