//! Reverse path filtering of the interfaces that lead to other nodes.
//!
//! Two nodes may choose different ways to each other, at least while one has not noticed a change: the
//! other's packets then come by an interface that is not the one of the route back. Strict filtering drops
//! them. Loose filtering still drops sources without a route.

use std::collections::BTreeSet;

use super::{
    super::{
        link,
        netlink::{NetlinkError, Socket},
        sysctl,
    },
    setting::{self, SettingError},
};

const ALL: &str = "ipv4/conf/all/rp_filter";
const STRICT: &str = "1";

/// Makes strict filtering of these interfaces loose. The kernel takes the larger of an interface's value and
/// the node-wide one, and loose is the largest.
///
/// # Errors
/// If the kernel refuses.
pub fn loosen(host: &mut Socket, interfaces: &BTreeSet<u32>) -> Result<(), SettingError> {
    setting::change(&strict(host, interfaces)?, "2")
}

/// The settings, below `net/`, by which filtering is strict.
///
/// # Errors
/// If the kernel refuses to describe an interface.
pub fn strict(host: &mut Socket, interfaces: &BTreeSet<u32>) -> Result<Vec<String>, NetlinkError> {
    let mut found = Vec::new();
    let is_all_strict = sysctl::get(ALL).as_deref() == Some(STRICT);
    for &ifindex in interfaces {
        let Some(link) = link::by_index(host, ifindex)? else { continue };
        let Some(name) = link::name(&link) else { continue };
        let setting = format!("ipv4/conf/{name}/rp_filter");
        let value = sysctl::get(&setting);
        if value.as_deref() == Some(STRICT) || is_all_strict && value.as_deref() == Some("0") {
            found.push(setting);
        }
    }
    Ok(found)
}
