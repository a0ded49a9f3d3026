//! The boot and the network namespace to which a record belongs. Each file names them.
//!
//! Another namespace of the same boot: the host interfaces of the pods are not visible, and an agent would
//! take all pods for gone. The store is refused before anything is changed.
//!
//! Another boot: the kernel holds none of the recorded attachments, and the recorded paths, inode numbers and
//! times may belong to others. The records are removed. Relevant only for a state directory on a disk.

use std::{fs, io, os::unix::fs::MetadataExt as _};

use serde::{Deserialize, Serialize};

use crate::registry::NetnsId;

/// A boot and a network namespace. A namespace's inode number can be reused, but the host's namespace lives
/// as long as the boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub boot: String,
    pub netns: String,
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const OWN_NETNS: &str = "/proc/thread-self/ns/net";

// === impl Identity ===

impl Identity {
    /// The identity of the calling thread.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn own() -> io::Result<Self> {
        let netns = fs::metadata(OWN_NETNS)?;
        let netns = NetnsId { dev: netns.dev(), ino: netns.ino() }.to_string();
        Ok(Self { boot: fs::read_to_string(BOOT_ID)?.trim_end().to_owned(), netns })
    }
}
