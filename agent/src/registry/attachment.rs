//! An attachment: a VIF plugged for one container.

use std::{fmt, path::PathBuf};

use ferrule_proto::names::{ContainerId, IfName, InvalidName, NetworkName};
use serde::{Deserialize, Serialize};

use super::host_side::HostSide;
use ferrule_vif::Vif;

/// What identifies an attachment, as in the CNI specification.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Key {
    pub network: NetworkName,
    pub container_id: ContainerId,
    pub ifname: IfName,
}

/// The pod that a container is the sandbox of, as far as the runtime told. What is not known is empty, and then nobody can be asked
/// whether the pod is gone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// What tells two network namespaces apart, whatever paths lead to them. It is unique among those that live; the
/// kernel uses a number again once its namespace is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NetnsId {
    /// `st_dev` of the namespace's file.
    pub dev: u64,
    /// `st_ino` of the namespace's file.
    pub ino: u64,
}

/// How far an attachment has come.
///
/// ```text
///            ADD                    plugged                 durable
///   (none) ───────▶ Reserved ───────────────▶ Plugged ───────────────▶ Attached
///                      │                         │                         │
///                      │ failure, or found at    │ failure, or             │ DEL, GC
///                      │ start: undone           │ found at start: undone  ▼
///                      ▼                         ▼                     Unplugging
///                   (none) ◀─────────────────────────────────────────────  │
///                          gone from kernel and maps, address at rest
/// ```
///
/// Reserved and Attached are durable. A crash leaves one of them, and start-up takes it on from there: an attachment
/// whose interface is as it should be goes on, one of a pod that lives and has lost it gets a new one, all else is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Entered by ADD: an address is set aside and the intent is durable. The kernel may have anything from nothing
    /// to all of it.
    Reserved,
    /// Entered from Reserved: kernel and maps have all of it, but that is not durable yet.
    Plugged,
    /// Entered from Plugged: ADD has answered, or will.
    Attached,
    /// Entered from Attached by DEL and GC: going, and some of it may be gone.
    Unplugging,
}

/// A VIF plugged for one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    pub key: Key,
    pub state: State,
    pub pod: Pod,
    /// The path as the runtime gave it. Empty if the attachment was made anew from what the kernel has, and none was found.
    pub netns: PathBuf,
    /// [`NetnsId::UNKNOWN`] if the namespace was not found then.
    pub netns_id: NetnsId,
    pub vif: Vif,
    /// For a further interface that the pod's VIF has: the one that the runtime asked for, with which it comes and goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<Key>,
    pub host: HostSide,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// The same by the clock that nobody sets (`CLOCK_BOOTTIME`), which tells it from what was there before.
    #[serde(default)]
    pub created_since_boot_ns: u64,
}

/// A text that is no key.
#[derive(Debug, thiserror::Error)]
pub enum InvalidKey {
    #[error("{0:?} is not network/container/interface")]
    Parts(String),
    #[error(transparent)]
    Name(#[from] InvalidName),
}

// === impl Attachment ===

impl Attachment {
    /// The key that the runtime knows: its own, or that of the interface with which it comes and goes.
    pub fn runtime_key(&self) -> Key {
        self.with.as_ref().unwrap_or(&self.key).clone()
    }

    /// Whether a path to its namespace is known.
    pub fn has_path(&self) -> bool {
        !self.netns.as_os_str().is_empty()
    }
}

// === impl Pod ===

impl Pod {
    /// Whether it is one that an API server can know.
    pub fn is_of_kubernetes(&self) -> bool {
        !self.namespace.is_empty() && !self.name.is_empty()
    }
}

impl fmt::Display for Pod {
    /// `namespace/name`, as far as it is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, .. } = self;
        if namespace.is_empty() { f.write_str(name) } else { write!(f, "{namespace}/{name}") }
    }
}

// === impl NetnsId ===

impl NetnsId {
    /// No namespace has it: inode numbers begin with 1.
    pub const UNKNOWN: Self = Self { dev: 0, ino: 0 };
}

impl fmt::Display for NetnsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.dev, self.ino)
    }
}

// === impl Key ===

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for Key {
    type Error = InvalidKey;

    /// Reads what [`Key`] prints: none of the three names can have a slash.
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
