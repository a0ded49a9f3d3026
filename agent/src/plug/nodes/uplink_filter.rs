//! The filter on uplinks, which drops what comes from outside with a pod's address.

use std::collections::BTreeSet;

use nix::errno::Errno;

use super::super::{
    filter::{self, IngressFilter},
    netlink::{NetlinkError, Socket},
};

/// Attaches the filter to the uplinks that lack it, or run another program. An interface that ceases to be an
/// uplink keeps the filter, which drops nothing that may pass.
///
/// # Errors
/// If the kernel refuses.
pub fn keep(
    host: &mut Socket,
    uplinks: &BTreeSet<u32>,
    program: IngressFilter<'_>,
) -> Result<(), NetlinkError> {
    for ifindex in missing(host, uplinks, program)? {
        match filter::reattach_ingress(host, ifindex, program) {
            Err(error) if error.is(Errno::ENODEV) => {}
            result => result?,
        }
        tracing::info!(ifindex, "attached the filter of uplinks");
    }
    Ok(())
}

/// The uplinks without the filter.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn missing(
    host: &mut Socket,
    uplinks: &BTreeSet<u32>,
    program: IngressFilter<'_>,
) -> Result<Vec<u32>, NetlinkError> {
    let mut missing = Vec::new();
    for &ifindex in uplinks {
        match filter::has_ingress(host, ifindex, program) {
            Ok(true) => {}
            Ok(false) => missing.push(ifindex),
            Err(error) if error.is(Errno::ENODEV) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(missing)
}
