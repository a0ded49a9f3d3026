//! Settings of the interfaces that lead to other nodes.

use super::super::{host, netlink::NetlinkError, sysctl::SysctlError};

/// Settings that cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    #[error("cannot read an interface")]
    Netlink(#[from] NetlinkError),
    #[error("cannot change a setting of an interface")]
    Sysctl(#[from] SysctlError),
}

/// Gives settings, below `net/`, a value. Those of an interface that is gone by now are gone with it.
///
/// # Errors
/// If the kernel refuses.
pub fn change(settings: &[String], to: &'static str) -> Result<(), SettingError> {
    settings.iter().try_for_each(|setting| match host::change(setting, to) {
        Err(error) if error.is_missing() => Ok(()),
        changed => Ok(changed?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_of_an_interface_that_is_gone_is_no_failure() {
        assert!(change(&["ipv4/conf/gone-by-now/rp_filter".to_owned()], "2").is_ok());
    }
}
