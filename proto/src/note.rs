//! What a shim leaves for an agent that is away: that a container was deleted meanwhile.
//!
//! A note is a file in a directory beside the agent's socket, named after the attachment. The agent applies all of them
//! when it starts, before it serves anyone. Shims leave theirs with [`LOCK`] held shared, after they have found once
//! more that nobody serves; the agent holds it exclusively from before it reads until it serves. So no note can be left
//! behind the agent's back. Both go through [`TURNSTILE`], which is held only to get [`LOCK`]: an agent that waits in it
//! waits for the shims before it, and for none that come after.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::names::{ContainerId, IfName, NetworkName};

/// A DEL that was answered by the shim alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub network: String,
    pub container_id: String,
    pub ifname: String,
    /// The kernel's, so that a note does not outlive a reboot.
    pub boot_id: String,
    /// When it was left, by the clock that nobody sets (`CLOCK_BOOTTIME`). It is about what was attached before: a
    /// container that is attached again under the same ID is another one.
    pub since_boot_ns: u64,
}

/// The lock file beside the socket.
pub const LOCK: &str = "deferred.lock";
/// The lock file that is taken before it.
pub const TURNSTILE: &str = "deferred.turn";
/// The directory beside the socket.
pub const DIRECTORY: &str = "deferred";
/// The most notes that are left; more than a node has pods. What is beyond, the agent finds by its namespace, when that has
/// gone.
pub const MAX_NOTES: usize = 1024;
/// The longest note in bytes.
pub const MAX_BYTES: usize = 4096;
/// Where the kernel tells which boot it is.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The directory of a socket.
pub fn beside(socket: &Path) -> &Path {
    socket.parent().unwrap_or(Path::new("/"))
}

/// Where the note about an attachment lies. None of the names can have a colon or a slash, and together they are shorter than
/// a file's name may be.
pub fn path(socket: &Path, network: &NetworkName, container_id: &ContainerId, ifname: &IfName) -> PathBuf {
    beside(socket).join(DIRECTORY).join(format!("{network}:{container_id}:{ifname}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_names_make_a_name_that_a_file_may_have() {
        let path = path(
            Path::new("/run/ferrule/agent.sock"),
            &NetworkName::new(&"n".repeat(100)).unwrap(),
            &ContainerId::new(&"c".repeat(128)).unwrap(),
            &IfName::new(&"i".repeat(15)).unwrap(),
        );
        assert!(path.starts_with("/run/ferrule/deferred"));
        // `NAME_MAX` in `linux/limits.h`; the shim writes it under a name with a dot before.
        assert!(path.file_name().unwrap().len() < 255);
    }
}
