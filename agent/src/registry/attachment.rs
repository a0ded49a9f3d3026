//! An attachment: a VIF plugged for one container.

use std::{fmt, path::PathBuf};

use ferrule_vif::Vif;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{host_side::HostSide, key::Key, wishes::Wishes};
use crate::cluster::PodRef;

/// The identity of a network namespace, independent of paths. Unique among live namespaces; the kernel reuses
/// the inode number after the namespace is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NetnsId {
    /// `st_dev` of the namespace's file.
    pub dev: u64,
    /// `st_ino` of the namespace's file.
    pub ino: u64,
}

/// The lifecycle of an attachment.
///
/// ```text
///            ADD                    plugged                 committed
///   (none) ───────▶ Reserved ───────────────▶ Plugged ───────────────▶ Attached
///                      │                         │                         │
///                      │ failure, or found at    │ failure, or found at    │ DEL, GC
///                      │ start: rollback         │ start: rollback         ▼
///                      ▼                         ▼                     Unplugging
///                   (none) ◀─────────────────────────────────────────────  │
///                      removed from kernel and maps, address in cooldown
/// ```
///
/// Only Reserved and Attached are durable, so a crash leaves one of them. Recovery at the next start keeps an
/// attachment without drift, restores the lost interface of a live pod, and rolls back everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// ADD has allocated addresses and the intent is durable. The kernel may hold anything from nothing to
    /// the whole plug.
    Reserved,
    /// Kernel and maps hold the whole plug, but the record is not committed.
    Plugged,
    /// Committed: ADD has answered, or is about to.
    Attached,
    /// DEL or GC is removing the attachment; parts of it may be gone.
    Unplugging,
}

/// A VIF plugged for one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    pub key: Key,
    pub state: State,
    pub pod: PodRef,
    /// The path from the runtime. Empty if the attachment was rebuilt from the kernel and no path was found.
    pub netns: PathBuf,
    /// [`NetnsId::UNKNOWN`] if the attachment was rebuilt and its namespace was not found.
    pub netns_id: NetnsId,
    pub vif: Vif,
    /// For an additional interface of a pod's VIF: the key of the interface that the runtime requested. Both
    /// are attached and detached together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<Key>,
    #[serde(default, skip_serializing_if = "Wishes::is_empty")]
    pub wishes: Wishes,
    pub host: HostSide,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Nanoseconds by `CLOCK_BOOTTIME`, which is never set, so that deferred DELs can be ordered against the
    /// creation.
    #[serde(default)]
    pub created_since_boot_ns: u64,
    /// Fields that a later release has written: kept for the way back to it.
    #[serde(flatten)]
    pub later: Map<String, Value>,
}

// === impl Attachment ===

impl Attachment {
    /// The key under which the runtime attached the group: the attachment's own, or the one in `with`.
    pub fn runtime_key(&self) -> Key {
        self.with.as_ref().unwrap_or(&self.key).clone()
    }

    /// Of the interface's entry in `VIFS`: tells attachments apart that have an interface index one after
    /// another.
    pub fn generation(&self) -> u32 {
        // About a millisecond; the upper bits are cut off on purpose.
        (self.created_since_boot_ns >> 20) as u32
    }

    /// Whether a path to the namespace is recorded.
    pub fn has_path(&self) -> bool {
        !self.netns.as_os_str().is_empty()
    }
}

// === impl State ===

impl State {
    pub const ALL: [Self; 4] = [Self::Reserved, Self::Plugged, Self::Attached, Self::Unplugging];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Plugged => "plugged",
            Self::Attached => "attached",
            Self::Unplugging => "unplugging",
        }
    }
}

// === impl NetnsId ===

impl NetnsId {
    /// No namespace has this identity: inode numbers begin with 1.
    pub const UNKNOWN: Self = Self { dev: 0, ino: 0 };
}

impl fmt::Display for NetnsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.dev, self.ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::attachment;

    #[test]
    fn a_rebuilt_attachment_may_have_no_path() {
        let plugged = attachment("eth0", None, 2);
        assert!(plugged.has_path());
        assert!(!Attachment { netns: PathBuf::new(), ..plugged }.has_path());
    }

    #[test]
    fn an_additional_interface_belongs_to_the_requested_one() {
        let (requested, additional) = (attachment("eth0", None, 2), attachment("net1", Some("eth0"), 3));
        assert_eq!(
            (requested.runtime_key(), additional.runtime_key()),
            (requested.key.clone(), requested.key)
        );
    }
}
