//! Settings below `/proc/sys/net`, of the calling thread's network namespace.

use std::{fs, io, sync::OnceLock};

use crate::crash::{self, Step};

/// A failed write of a setting.
#[derive(Debug, thiserror::Error)]
#[error("cannot set net.{} to {value}", name.replace('/', "."))]
pub struct SysctlError {
    name: String,
    value: &'static str,
    #[source]
    source: io::Error,
}

// === impl SysctlError ===

impl SysctlError {
    /// Whether the setting does not exist: the kernel removes an interface's settings with the interface.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// Writes `net/<name>`. A read-only `/proc/sys` is fine if the setting already has the value; IPv6 settings
/// are skipped on a kernel without IPv6.
///
/// # Errors
/// If the setting does not exist or cannot be written.
pub fn set(name: &str, value: &'static str) -> Result<(), SysctlError> {
    match fs::write(path(name), value) {
        Ok(()) => {
            crash::point(Step::SysctlSet);
            Ok(())
        }
        Err(_) if get(name).as_deref() == Some(value) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && name.starts_with("ipv6/") && !has_ipv6() => {
            Ok(())
        }
        Err(source) => Err(SysctlError { name: name.to_owned(), value, source }),
    }
}

/// The value of `net/<name>`; `None` if there is no such setting.
pub fn get(name: &str) -> Option<String> {
    fs::read_to_string(path(name)).ok().map(|value| value.trim_end().to_owned())
}

/// An unprivileged container has a read-only `/proc/sys` and cannot mount over a part of it, so the DaemonSet
/// in `deploy/` mounts the node's below `/host`. Both show the settings of the thread's network namespace.
fn path(name: &str) -> String {
    const OF_HOST: &str = "/host/proc/sys/net";
    static ROOT: OnceLock<&str> = OnceLock::new();
    let root =
        ROOT.get_or_init(|| if fs::exists(OF_HOST).unwrap_or(false) { OF_HOST } else { "/proc/sys/net" });
    format!("{root}/{name}")
}

/// Whether the kernel supports IPv6.
pub fn has_ipv6() -> bool {
    static HAS_IPV6: OnceLock<bool> = OnceLock::new();
    *HAS_IPV6.get_or_init(|| fs::exists("/proc/sys/net/ipv6").unwrap_or(false))
}
