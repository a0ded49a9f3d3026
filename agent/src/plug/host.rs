//! What the node itself needs so that its pods' packets can leave it.

use std::{fs, net::IpAddr};

use ipnet::IpNet;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
};

use super::{
    get_link,
    netlink::{NetlinkError, Request, Socket},
    sysctl::{self, SysctlError},
};

/// The settings of the whole node, below `net/`. By IPv4's, the kernel sets each interface's, too.
pub const IPV4: &str = "ipv4/ip_forward";
const IPV6: &str = "ipv6/conf/all/forwarding";
/// `LOOPBACK_IFINDEX` in `net/flow.h` of the kernel.
const LOOPBACK: u32 = 1;

/// Makes the node forward the families that its pods have.
///
/// A host that forwards IPv6 stops listening to router advertisements, by which it may have got its own default
/// route. So interfaces that listen are told to go on listening (`accept_ra` 2) first.
///
/// # Errors
/// If a setting is not as it should be and cannot be written.
pub fn forward(ranges: &[IpNet]) -> Result<(), SysctlError> {
    let has = |family: fn(&IpAddr) -> bool| ranges.iter().any(|range| family(&range.network()));
    forward_families((has(IpAddr::is_ipv4), has(IpAddr::is_ipv6)))
}

/// The same for IPv4 and for IPv6.
///
/// # Errors
/// If a setting is not as it should be and cannot be written.
pub fn forward_families((v4, v6): (bool, bool)) -> Result<(), SysctlError> {
    if v4 && sysctl::get(IPV4).as_deref() != Some("1") {
        sysctl::set(IPV4, "1")?;
    }
    if v6 && sysctl::get(IPV6).as_deref() == Some("0") {
        for interface in ipv6_interfaces() {
            let setting = format!("ipv6/conf/{interface}/accept_ra");
            if sysctl::get(&setting).as_deref() == Some("1") {
                sysctl::set(&setting, "2")?;
            }
        }
        sysctl::set(IPV6, "1")?;
    }
    Ok(())
}

/// Which of IPv4 and IPv6 the node does not forward, of those that are asked for: their settings.
pub fn not_forwarded((v4, v6): (bool, bool)) -> Vec<&'static str> {
    let settings = [(v4, IPV4), (v6, IPV6)].into_iter().filter_map(|(matters, it)| matters.then_some(it));
    settings.filter(|setting| sysctl::get(setting).as_deref() == Some("0")).collect()
}

/// Asks the kernel for the loopback interface, which every network namespace has: to see that it answers.
///
/// # Errors
/// If it refuses, or gives no socket.
pub fn ask() -> Result<(), NetlinkError> {
    let mut message = get_link();
    message.header.index = LOOPBACK;
    let request = Request::change("ask for the loopback interface", RouteNetlinkMessage::GetLink(message));
    Socket::open()?.batch(vec![request]).map(drop)
}

/// The addresses that the node itself has, which no pod may get.
///
/// # Errors
/// If the kernel refuses to tell.
pub fn addresses() -> Result<Vec<IpAddr>, NetlinkError> {
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
        // Where there is no peer they are the same, and IPv6 says only the second (`IFA_LOCAL` in `linux/if_addr.h`).
        local.or(peer)
    };
    Ok(answers.into_iter().filter_map(address).collect())
}

fn ipv6_interfaces() -> Vec<String> {
    let entries = fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !matches!(name.as_str(), "all" | "default" | "lo")).collect()
}
