//! The filters on uplinks: what comes from outside with a pod's address is dropped, and packets between pods
//! of two nodes bypass the stack.

use std::collections::{BTreeMap, BTreeSet};

use nix::errno::Errno;

use super::super::{
    filter::{self, LinkFilters},
    host_inventory::HostInventory,
    link,
    netlink::{NetlinkError, Socket},
};
use crate::chain::chain;

/// Uplinks without filters, and why.
pub type Bare = BTreeMap<u32, String>;

/// Attaches the filters that uplinks lack. An interface that ceases to be an uplink keeps them: they drop
/// nothing that may pass. Returns the uplinks that cannot have them, and whether any filter was attached.
///
/// # Errors
/// If the kernel refuses to describe an interface.
pub fn keep(
    host: &mut Socket,
    uplinks: &BTreeSet<u32>,
    filters: LinkFilters<'_>,
) -> Result<(Bare, bool), NetlinkError> {
    let (mut bare, mut is_changed) = (Bare::new(), false);
    for &ifindex in uplinks {
        if !link::is_ethernet(host, ifindex)? {
            bare.insert(ifindex, "its packets have no Ethernet header".to_owned());
            continue;
        }
        match filter::keep_on_link(host, ifindex, filters) {
            Ok(attached) if attached.is_empty() => {}
            Ok(attached) => {
                is_changed = true;
                tracing::info!(ifindex, filters = attached.join(", "), "attached the uplink's filters");
            }
            Err(error) => drop(bare.insert(ifindex, chain(&error))),
        }
    }
    Ok((bare, is_changed))
}

/// Replaces the filters that an earlier agent has attached to uplinks and the tunnel: its maps may not be
/// those of this agent. Interfaces without such filters stay without.
///
/// # Errors
/// The first failure, after all interfaces were tried.
pub fn renew(
    host: &mut Socket,
    uplink: LinkFilters<'_>,
    tunnel: LinkFilters<'_>,
) -> Result<(), NetlinkError> {
    let mut done = Ok(());
    let links = HostInventory::links(host)?.links;
    // The tunnel's first: the filter of an uplink drops packets of the tunnel that have no stamp.
    for filters in [tunnel, uplink] {
        for (&ifindex, _) in links.iter().filter(|(_, link)| link.stamp.is_none()) {
            let renewed = match filter::is_on_link(host, ifindex, filters) {
                Ok(true) => filter::keep_on_link(host, ifindex, filters).map(drop),
                result => result.map(drop),
            };
            done =
                done.and(renewed.or_else(|error| if error.is(Errno::ENODEV) { Ok(()) } else { Err(error) }));
        }
    }
    done
}

/// Removes the agent's filters from all uplinks, present and former. Returns their number.
///
/// # Errors
/// The first failure, after all interfaces were tried.
pub fn remove(host: &mut Socket) -> Result<usize, NetlinkError> {
    let (mut done, mut number) = (Ok(()), 0);
    for (ifindex, _) in HostInventory::links(host)?.links.into_iter().filter(|(_, it)| it.stamp.is_none()) {
        match filter::remove_from_link(host, ifindex) {
            Ok(removed) => number += usize::from(removed),
            Err(error) if error.is(Errno::ENODEV) => {}
            Err(error) => done = done.and(Err(error)),
        }
    }
    done.map(|()| number)
}

/// The uplinks without a filter, of those that can have one.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn missing(
    host: &mut Socket,
    uplinks: &BTreeSet<u32>,
    filters: LinkFilters<'_>,
) -> Result<Vec<u32>, NetlinkError> {
    let mut missing = Vec::new();
    for &ifindex in uplinks {
        match filter::missing_on_link(host, ifindex, filters) {
            Ok(names) if names.is_empty() => {}
            Ok(_) => missing.push(ifindex),
            Err(error) if error.is(Errno::ENODEV) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(missing)
}
