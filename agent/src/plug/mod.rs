//! Making and removing a pod's interface in the kernel, by route netlink.
//!
//! The order of ADD is what makes it cheap and safe; [`veth`] tells it. Nothing on that path moves a device between
//! namespaces, deletes one, or starts a process; and one request waits for an RCU grace period, a short (expedited) one:
//! the first filter on a new qdisc (`mini_qdisc_pair_swap` in the kernel).

pub mod check;
pub mod default_route;
pub mod ends;
pub mod filter;
pub mod host;
pub mod mend;
pub mod monitor;
mod netconf;
pub mod netlink;
pub mod netns;
pub mod reaper;
mod requests;
pub mod stamp;
pub mod survey;
pub mod sysctl;
pub mod uplink;
pub mod veth;

use std::{
    collections::{HashMap, HashSet},
    net::{Ipv4Addr, Ipv6Addr},
};

use agent_common::{GATEWAY_IPV4, GATEWAY_IPV6, GATEWAY_MAC};
use ferrule_proto::names::IfName;
use nix::errno::Errno;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::{AfSpecInet, AfSpecUnspec, LinkAttribute, LinkExtentMask, LinkMessage},
};

use netlink::{NetlinkError, Socket};
use netns::NetnsError;
use stamp::Stamp;
use sysctl::SysctlError;

/// The gateway of every pod as addresses.
pub const GATEWAY: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::from_octets(GATEWAY_IPV4), Ipv6Addr::from_octets(GATEWAY_IPV6));

/// The number by which our routes can be told from others' (`rtm_protocol`); not among those that
/// `linux/rtnetlink.h` gives to others.
pub const ROUTE_PROTOCOL: u8 = 70;

/// A plug or unplug that failed. Whatever it had done is undone.
#[derive(Debug, thiserror::Error)]
pub enum PlugError {
    /// The kernel refused a request.
    #[error("the kernel refused to change the network")]
    Netlink(#[from] NetlinkError),
    /// The path leads to no pod's namespace.
    #[error("the pod's network namespace cannot be used")]
    Netns(#[from] NetnsError),
    /// A setting could not be made.
    #[error("a setting of the interface could not be made")]
    Sysctl(#[from] SysctlError),
    /// The pod has an interface of that name, and it is not ours.
    #[error("the pod already has an interface {0}, which is not ours to replace")]
    InterfaceExists(IfName),
    /// Two interfaces cannot have the same address.
    #[error("an address of the pod has a route on the node already, which is not ours to replace")]
    AddressInUse(#[source] NetlinkError),
    /// Two defaults would make it chance which way a packet takes.
    #[error("the pod has a default route already, from another network")]
    DefaultRouteExists,
    /// The MTU does not fit.
    #[error("the interface would have an MTU of {mtu} bytes, but {why}")]
    Mtu {
        /// Bytes.
        mtu: u32,
        /// The rule that it breaks.
        why: String,
    },
    /// The kernel answered with something else than it was asked for.
    #[error("the kernel did not tell about the interface that it had just made")]
    NoAnswer,
}

// === impl PlugError ===

impl PlugError {
    /// Whether the interface went away while it was worked on.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Netlink(error) => error.is(Errno::ENODEV),
            Self::Sysctl(error) => error.is_missing(),
            _ => false,
        }
    }
}

/// A request for one interface, without the statistics, which are most of an answer.
fn get_link() -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    message
}

/// The host's ends of pods, by index.
#[derive(Debug, Default)]
pub struct HostEnds {
    /// In service, with our stamp.
    pub stamped: HashMap<u32, Stamp>,
    /// Out of service: a DEL got that far.
    pub dead: HashMap<u32, Stamp>,
    /// Made as ours are, but somebody has changed the alias.
    pub disguised: HashSet<u32>,
}

/// Lists the host's ends of pods.
///
/// # Errors
/// If the kernel refuses to tell.
pub fn host_ends(host: &mut Socket) -> Result<HostEnds, NetlinkError> {
    let mut ends = HostEnds::default();
    for message in host.dump("list the interfaces", RouteNetlinkMessage::GetLink(get_link()))? {
        let RouteNetlinkMessage::NewLink(link) = message else { continue };
        let has = |attribute| link.attributes.contains(&attribute);
        let index = link.header.index;
        match alias(&link).and_then(Stamp::parse) {
            Some(stamp) if has(LinkAttribute::Group(reaper::DEAD)) => drop(ends.dead.insert(index, stamp)),
            Some(stamp) => drop(ends.stamped.insert(index, stamp)),
            None if has(LinkAttribute::Group(0)) && has(LinkAttribute::Address(GATEWAY_MAC.to_vec())) => {
                ends.disguised.insert(index);
            }
            None => {}
        }
    }
    Ok(ends)
}

/// Whether an interface forwards what comes in over IPv4. One of which that is not told is no IPv4 interface.
fn forwards_ipv4(link: &LinkMessage) -> bool {
    let families = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::AfSpecUnspec(families) => Some(families),
        _ => None,
    });
    let settings = families.flatten().filter_map(|family| match family {
        AfSpecUnspec::Inet(settings) => Some(settings),
        _ => None,
    });
    settings.flatten().all(|setting| match setting {
        AfSpecInet::DevConf(setting) => setting.forwarding != 0,
        _ => true,
    })
}

fn alias(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfAlias(alias) => Some(alias.as_str()),
        _ => None,
    })
}
