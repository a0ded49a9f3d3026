//! Router advertisements on the interfaces by which the node is reached.
//!
//! A host that forwards IPv6 ignores advertisements with `accept_ra` 1 (`ipv6_accept_ra` in `net/ipv6.h` of
//! the kernel), and may lose its own default route. [`super::super::host::forward`] sees to the interfaces
//! that exist when forwarding begins; one that comes later inherits forwarding, but not the other setting.

use std::collections::BTreeSet;

use rtnetlink::packet_route::link::LinkFlags;

use super::{
    super::{
        link,
        netlink::{NetlinkError, Socket},
        sysctl,
    },
    setting::{self, SettingError},
};

/// Makes these interfaces accept advertisements in spite of forwarding. Those that accept none stay so.
///
/// # Errors
/// If the kernel refuses.
pub fn accept(host: &mut Socket, interfaces: &BTreeSet<u32>) -> Result<(), SettingError> {
    setting::change(&ignored(host, interfaces)?, "2")
}

/// The settings, below `net/`, by which advertisements are ignored because of forwarding.
///
/// # Errors
/// If the kernel refuses to describe an interface.
pub fn ignored(host: &mut Socket, interfaces: &BTreeSet<u32>) -> Result<Vec<String>, NetlinkError> {
    let mut found = Vec::new();
    for &ifindex in interfaces {
        let Some(link) = link::by_index(host, ifindex)? else { continue };
        // The loopback interface may have the node's address, and hears no router.
        if link.header.flags.contains(LinkFlags::Loopback) {
            continue;
        }
        let Some(name) = link::name(&link) else { continue };
        let is_one =
            |setting: &str| sysctl::get(&format!("ipv6/conf/{name}/{setting}")).as_deref() == Some("1");
        if is_one("forwarding") && is_one("accept_ra") {
            found.push(format!("ipv6/conf/{name}/accept_ra"));
        }
    }
    Ok(found)
}
