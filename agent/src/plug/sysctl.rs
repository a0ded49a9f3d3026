//! Settings below `/proc/sys`, of the network namespace that the calling thread is in.

use std::{fs, io, sync::OnceLock};

use crate::crash::{self, Step};

/// A setting that could not be written.
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
    /// Whether there is no such setting: it goes with its interface.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// Sets `net/<name>`. A read-only `/proc/sys` is no hindrance where the value is right already, and there is nothing of
/// IPv6 to set where the kernel has none.
///
/// # Errors
/// If it is missing or cannot be written.
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

/// The value of `net/<name>`, if there is such a setting.
pub fn get(name: &str) -> Option<String> {
    fs::read_to_string(path(name)).ok().map(|value| value.trim_end().to_owned())
}

/// In a container without privileges `/proc/sys` is read-only, and nothing can be mounted over a part of it; there, the
/// DaemonSet in `deploy/` mounts the node's at another place. Whose settings it shows is up to the namespace that the
/// thread is in, as below `/proc`.
fn path(name: &str) -> String {
    const OF_HOST: &str = "/host/proc/sys/net";
    static ROOT: OnceLock<&str> = OnceLock::new();
    let root =
        ROOT.get_or_init(|| if fs::exists(OF_HOST).unwrap_or(false) { OF_HOST } else { "/proc/sys/net" });
    format!("{root}/{name}")
}

/// Whether the kernel has IPv6 at all.
pub fn has_ipv6() -> bool {
    static HAS_IPV6: OnceLock<bool> = OnceLock::new();
    *HAS_IPV6.get_or_init(|| fs::exists("/proc/sys/net/ipv6").unwrap_or(false))
}
