//! Creates, reads, repairs and deletes pods' interfaces through route netlink.
//!
//! The order of a plug makes ADD fast and safe; [`veth`] describes it. The ADD path never moves a device
//! between namespaces, deletes a device or starts a process. One request waits for an RCU grace period, an
//! expedited one: the first filter on a new qdisc (`mini_qdisc_pair_swap` in the kernel).

mod carrier;
pub mod connected;
pub mod default_route;
pub mod filter;
pub mod host;
pub mod host_inventory;
mod host_route;
mod link;
mod message;
pub mod monitor;
pub mod netconf;
pub mod netlink;
pub mod netns;
pub mod nft;
pub mod nodes;
mod parse;
pub mod peer_netns;
pub mod pod_end;
pub mod pod_mtu;
pub mod preflight;
pub mod range_route;
mod raw;
pub mod reaper;
pub mod repair;
mod requests;
mod route_scan;
pub mod routing;
pub mod shaping;
pub mod stamp;
pub mod sysctl;
pub mod uplink;
mod usable;
pub mod veth;

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use agent_common::{GATEWAY_IPV4, GATEWAY_IPV6};
use ferrule_proto::names::IfName;
use nix::errno::Errno;

use netlink::NetlinkError;
use netns::NetnsError;
use sysctl::SysctlError;

/// The gateway of every pod, IPv4 and IPv6.
pub const GATEWAY: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::from_octets(GATEWAY_IPV4), Ipv6Addr::from_octets(GATEWAY_IPV6));

/// A failed plug or unplug. Everything that the operation had changed is rolled back.
#[derive(Debug, thiserror::Error)]
pub enum PlugError {
    #[error("cannot change the node's or the pod's network")]
    Netlink(#[from] NetlinkError),
    #[error("cannot use the pod's network namespace")]
    Netns(#[from] NetnsError),
    #[error("cannot change a setting of the pod's interface")]
    Sysctl(#[from] SysctlError),
    #[error("the pod already has an interface {0}, which the agent did not create and does not replace")]
    InterfaceExists(IfName),
    #[error(
        "the node already has a foreign route to an address of the pod, which the agent does not replace"
    )]
    AddressInUse(#[source] NetlinkError),
    /// Two default routes would make the pod's way out arbitrary.
    #[error("the pod already has a default route, from another network")]
    DefaultRouteExists,
    #[error("invalid MTU of {mtu} bytes: {why}")]
    Mtu { mtu: u32, why: String },
    #[error("the kernel does not deliver to the pod's address {address} {} s after adding it", waited.as_secs())]
    AddressNotUsable { address: Ipv6Addr, waited: Duration },
    #[error("the kernel's answer lacks the interface that it created")]
    NoAnswer,
}

// === impl PlugError ===

impl PlugError {
    /// Whether the interface was deleted during the operation.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Netlink(error) => error.is(Errno::ENODEV),
            Self::Sysctl(error) => error.is_missing(),
            _ => false,
        }
    }
}
