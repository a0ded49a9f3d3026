//! The identity of an attachment, as in the CNI specification: network, container ID, interface name.

use std::fmt;

use ferrule_proto::names::{ContainerId, IfName, InvalidName, NetworkName};
use serde::{Deserialize, Serialize};

/// The key of an attachment. Its text form is `network/container/interface`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Key {
    pub network: NetworkName,
    pub container_id: ContainerId,
    pub ifname: IfName,
}

/// A text that does not parse as a [`Key`].
#[derive(Debug, thiserror::Error)]
pub enum InvalidKey {
    #[error("invalid attachment key {0:?}, expected network/container/interface")]
    Parts(String),
    #[error(transparent)]
    Name(#[from] InvalidName),
}

// === impl Key ===

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for Key {
    type Error = InvalidKey;

    /// Parses the output of [`fmt::Display`]. None of the three names can contain a slash.
    fn try_from(text: String) -> Result<Self, InvalidKey> {
        let mut parts = text.split('/');
        let (Some(network), Some(container_id), Some(ifname), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(InvalidKey::Parts(text));
        };
        Ok(Self {
            network: NetworkName::new(network)?,
            container_id: ContainerId::new(container_id)?,
            ifname: IfName::new(ifname)?,
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container_id, self.ifname)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_round_trips_through_text() {
        let key = Key::try_from("net/0123/eth0".to_owned()).unwrap();
        assert_eq!(Key::try_from(key.to_string()).unwrap(), key);
        for text in ["", "a/b", "a/b/c/d", "a/../c", "a/b/lo"] {
            assert!(Key::try_from(text.to_owned()).is_err(), "{text:?}");
        }
    }
}
