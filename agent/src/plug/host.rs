//! Node-wide settings and facts: forwarding, the node's own addresses, a liveness probe of netlink.

use std::{fs, net::IpAddr};

use ipnet::IpNet;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
};

use super::{
    link,
    netlink::{NetlinkError, Socket},
    sysctl::{self, SysctlError},
};

/// Node-wide forwarding, below `net/`. A write to the IPv4 setting also changes that of every interface.
pub const IPV4: &str = "ipv4/ip_forward";
const IPV6: &str = "ipv6/conf/all/forwarding";
/// While this is on, every interface sends redirects, whatever its own setting. Others keep their own.
pub const REDIRECTS: &str = "ipv4/conf/all/send_redirects";
/// The index of the loopback interface: `LOOPBACK_IFINDEX` in `net/flow.h` of the kernel.
pub const LOOPBACK: u32 = 1;

/// Enables forwarding for the address families of the pods' ranges, and turns off the node-wide permission of
/// IPv4 redirects: pods' interfaces send none.
///
/// A host that forwards IPv6 ignores router advertisements, which may carry its own default route. So
/// interfaces that accept them get `accept_ra` 2 first, which accepts them in spite of forwarding; uplinks
/// that come later get it from [`super::nodes::advertisements`].
///
/// # Errors
/// If a setting has another value and cannot be written.
pub fn forward(ranges: &[IpNet]) -> Result<(), SysctlError> {
    let has = |family: fn(&IpAddr) -> bool| ranges.iter().any(|range| family(&range.network()));
    forward_families((has(IpAddr::is_ipv4), has(IpAddr::is_ipv6)))
}

/// [`forward`] by family: IPv4, IPv6.
///
/// # Errors
/// If a setting has another value and cannot be written.
pub fn forward_families((v4, v6): (bool, bool)) -> Result<(), SysctlError> {
    if v4 && sysctl::get(IPV4).as_deref() != Some("1") {
        change(IPV4, "1")?;
    }
    if sends_redirects((v4, v6)) {
        change(REDIRECTS, "0")?;
    }
    if v6 && sysctl::get(IPV6).as_deref() == Some("0") {
        for interface in ipv6_interfaces() {
            let setting = format!("ipv6/conf/{interface}/accept_ra");
            if sysctl::get(&setting).as_deref() == Some("1") {
                change(&setting, "2")?;
            }
        }
        change(IPV6, "1")?;
    }
    Ok(())
}

/// Changes a setting of the node, which outlives the agent, and says so in the log.
pub(super) fn change(setting: &str, to: &'static str) -> Result<(), SysctlError> {
    let from = sysctl::get(setting).unwrap_or_default();
    sysctl::set(setting, to)?;
    tracing::info!(
        setting = format!("net.{}", setting.replace('/', ".")),
        from,
        to,
        "changed a setting of the node"
    );
    Ok(())
}

/// The settings by which the node does not forward a required family: IPv4, IPv6.
pub fn not_forwarded((v4, v6): (bool, bool)) -> Vec<&'static str> {
    let settings = [(v4, IPV4), (v6, IPV6)].into_iter().filter_map(|(required, it)| required.then_some(it));
    settings.filter(|setting| sysctl::get(setting).as_deref() == Some("0")).collect()
}

/// Whether a node with IPv4 pods sends redirects on all interfaces.
pub fn sends_redirects((v4, _): (bool, bool)) -> bool {
    v4 && sysctl::get(REDIRECTS).as_deref() == Some("1")
}

/// A liveness probe of netlink: reads the loopback interface, which every network namespace has.
///
/// # Errors
/// If the kernel refuses the request or the socket.
pub fn probe() -> Result<(), NetlinkError> {
    link::by_index(&mut Socket::open()?, LOOPBACK).map(drop)
}

/// The node's own addresses, which no pod may get.
///
/// # Errors
/// If the kernel refuses the dump.
pub fn addresses() -> Result<Vec<IpAddr>, NetlinkError> {
    Ok(addresses_by_interface()?.into_iter().map(|(_, address)| address).collect())
}

/// As [`addresses`], each with the index of its interface.
///
/// # Errors
/// If the kernel refuses the dump.
pub fn addresses_by_interface() -> Result<Vec<(u32, IpAddr)>, NetlinkError> {
    let all = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let answers = Socket::open()?.dump("list the node's addresses", all)?;
    let address = |answer| {
        let RouteNetlinkMessage::NewAddress(message) = answer else { return None };
        let (mut local, mut peer) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Local(address) => local = Some(*address),
                AddressAttribute::Address(address) => peer = Some(*address),
                _ => {}
            }
        }
        // Both are the same without a peer, and IPv6 then has only the second (`IFA_LOCAL` in
        // `linux/if_addr.h`).
        Some((message.header.index, local.or(peer)?))
    };
    Ok(answers.into_iter().filter_map(address).collect())
}

fn ipv6_interfaces() -> Vec<String> {
    let entries = fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !matches!(name.as_str(), "all" | "default" | "lo")).collect()
}
