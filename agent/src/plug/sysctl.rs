//! Settings below `/proc/sys`, of the network namespace that the calling thread is in.

use std::{fs, io};

/// A setting that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot set net.{} to {value}", name.replace('/', "."))]
pub struct SysctlError {
    name: String,
    value: &'static str,
    #[source]
    source: io::Error,
}

/// Sets `net/<name>`. One that has the value already is not written, so that a read-only `/proc/sys` is no
/// hindrance where everything is right; one of IPv6 is nothing to set where the kernel has no IPv6.
///
/// # Errors
/// If it is missing or cannot be written.
pub fn set(name: &str, value: &'static str) -> Result<(), SysctlError> {
    let path = format!("/proc/sys/net/{name}");
    let failed = |source| SysctlError { name: name.to_owned(), value, source };
    match fs::read_to_string(&path) {
        Ok(current) if current.trim_end() == value => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && name.starts_with("ipv6/") && !has_ipv6() => {
            Ok(())
        }
        Ok(_) | Err(_) => fs::write(&path, value).map_err(failed),
    }
}

/// The value of `net/<name>`, if there is such a setting.
pub fn get(name: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/sys/net/{name}")).ok().map(|value| value.trim_end().to_owned())
}

fn has_ipv6() -> bool {
    fs::exists("/proc/sys/net/ipv6").unwrap_or(false)
}
