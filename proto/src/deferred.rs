//! Deferred DELs: files in which the shim records the DELs that it completed without an agent.
//!
//! Each file lies in [`DIRECTORY`] beside the agent's socket and is named after its attachment. The agent
//! applies all deferred DELs when it starts, before it serves calls, so that it does not restore a deleted
//! attachment.
//!
//! Locking: a shim holds [`LOCK`] shared while it writes its file, after a second connection attempt has
//! confirmed that no agent serves. The agent holds [`LOCK`] exclusively from before it reads the directory
//! until it serves. So no file can appear that the agent misses. Both sides take [`TURNSTILE`] first and hold
//! it only until they have [`LOCK`]: an agent waits for the shims that came before it, and later shims cannot
//! starve it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::names::{ContainerId, IfName, NetworkName};

/// The content of a deferred DEL's file, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeferredDel {
    pub network: String,
    pub container_id: String,
    pub ifname: String,
    /// From [`BOOT_ID`]: a file of an earlier boot is stale.
    pub boot_id: String,
    /// Time of the DEL by `CLOCK_BOOTTIME`, which no user can set. The DEL concerns only attachments created
    /// before: a container ID may be reused.
    pub since_boot_ns: u64,
}

/// The lock file beside the socket.
pub const LOCK: &str = "deferred.lock";
/// The lock file that is taken before [`LOCK`].
pub const TURNSTILE: &str = "deferred.turn";
/// The directory beside the socket.
pub const DIRECTORY: &str = "deferred";
/// Most files in [`DIRECTORY`]: more than a node has pods. The agent garbage-collects an attachment whose DEL
/// was not recorded once its network namespace is gone.
pub const MAX_FILES: usize = 1024;
/// Longest file, in bytes.
pub const MAX_BYTES: usize = 4096;
/// The kernel's boot ID.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The directory that holds the socket, the lock files and [`DIRECTORY`].
pub fn socket_directory(socket: &Path) -> &Path {
    socket.parent().unwrap_or(Path::new("/"))
}

/// The file of an attachment's deferred DEL.
///
/// The three names contain neither a colon nor a slash, and together they fit into a file name.
pub fn path(socket: &Path, network: &NetworkName, container_id: &ContainerId, ifname: &IfName) -> PathBuf {
    socket_directory(socket).join(DIRECTORY).join(format!("{network}:{container_id}:{ifname}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_names_fit_into_a_file_name() {
        let path = path(
            Path::new("/run/ferrule/agent.sock"),
            &NetworkName::new(&"n".repeat(100)).unwrap(),
            &ContainerId::new(&"c".repeat(128)).unwrap(),
            &IfName::new(&"i".repeat(15)).unwrap(),
        );
        assert!(path.starts_with("/run/ferrule/deferred"));
        // `NAME_MAX` in `linux/limits.h`, less the leading dot of the shim's temporary file.
        assert!(path.file_name().unwrap().len() < 255);
    }
}
