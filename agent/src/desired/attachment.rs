//! From an attachment to the state that kernel and maps should hold.

use std::collections::BTreeSet;
use std::net::IpAddr;

use agent_common::GATEWAY_MAC;
use ferrule_proto::names::IfName;

use crate::{
    plug::{GATEWAY, filter::Hook, stamp::Stamp, veth::DEFAULT_GROUP},
    registry::{Attachment, HostSide, Rate},
};
use ferrule_vif::{Mac, PodRoute};

/// The desired state of one attachment.
#[derive(Debug, Clone)]
pub struct Desired<'a> {
    /// The dataplane encodes the map entries from it.
    pub attachment: &'a Attachment,
    pub host: DesiredHostEnd,
    pub pod: DesiredPodEnd,
}

#[derive(Debug, Clone)]
pub struct DesiredHostEnd {
    pub ifindex: u32,
    pub ifname: String,
    pub stamp: Stamp,
    pub group: u32,
    pub mac: Mac,
    /// Bytes.
    pub mtu: u32,
    /// Whether the pod has IPv4: its host end forwards, and sends no redirects.
    pub has_ipv4: bool,
    /// Whether the node's ports lead to the pod over IPv4, also those of 127.0.0.1.
    pub routes_localnet: bool,
    /// The limit of what the pod receives, in bytes per second.
    pub rate: Option<u64>,
    /// Each hook with the name and the kernel's ID of its program.
    pub filters: [(Hook, &'static str, u32); 2],
    /// The host has a route to each address, and a permanent neighbour entry with the pod's MAC.
    pub addresses: Vec<IpAddr>,
}

#[derive(Debug, Clone)]
pub struct DesiredPodEnd {
    pub ifname: IfName,
    pub mac: Mac,
    pub mtu: ExpectedMtu,
    pub addresses: Vec<IpAddr>,
    /// Bytes per second; `None` for no limit of what the pod sends, or any that others have set.
    pub rate: Option<u64>,
    /// Each gateway also has a neighbour entry with the MAC of the host's end.
    pub routes: Vec<PodRoute>,
}

/// Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedMtu {
    Exactly(u32),
    AtMost(u32),
}

/// The desired state of an attachment whose filters run these programs, in the order of [`Hook::ALL`]; `None`
/// while it has no host interface.
pub fn desired(attachment: &Attachment, programs: [u32; 2]) -> Option<Desired<'_>> {
    let Attachment { key, vif, host, wishes, .. } = attachment;
    let link = match host {
        HostSide::Link(link) => link,
        // No device of the agent's own, so far as the present kinds of VIF go.
        HostSide::Unplugged | HostSide::None | HostSide::Representor(_) => return None,
    };
    let addresses: Vec<IpAddr> = vif.addresses.iter().collect();
    let [(first, first_name), (second, second_name)] = Hook::ALL;
    let [first_id, second_id] = programs;
    let host = DesiredHostEnd {
        ifindex: link.ifindex,
        ifname: link.ifname.clone(),
        stamp: Stamp::of(key),
        group: DEFAULT_GROUP,
        mac: Mac(GATEWAY_MAC),
        mtu: vif.mtu,
        has_ipv4: vif.addresses.v4.is_some(),
        routes_localnet: wishes.has_host_ports() && vif.addresses.v4.is_some(),
        rate: wishes.ingress.map(Rate::bytes),
        filters: [(first, first_name, first_id), (second, second_name, second_id)],
        addresses: addresses.clone(),
    };
    let pod = DesiredPodEnd {
        ifname: key.ifname.clone(),
        mac: vif.mac,
        mtu: ExpectedMtu::Exactly(vif.mtu),
        rate: wishes.egress.map(Rate::bytes),
        addresses,
        routes: vif.all_routes(GATEWAY),
    };
    Some(Desired { attachment, host, pod })
}

// === impl Desired ===

impl Desired<'_> {
    /// Expects of the pod's end only what no later plugin of a chain may change: its state, MAC and
    /// addresses, and an upper bound of the MTU.
    pub fn without_chain(mut self) -> Self {
        self.pod.mtu = ExpectedMtu::AtMost(self.attachment.vif.mtu);
        self.pod.routes.clear();
        self
    }
}

// === impl DesiredPodEnd ===

impl DesiredPodEnd {
    /// The next hops of the routes.
    pub fn gateways(&self) -> BTreeSet<IpAddr> {
        self.routes.iter().map(|route| route.gateway).collect()
    }
}

// === impl ExpectedMtu ===

impl ExpectedMtu {
    pub fn permits(self, found: u32) -> bool {
        match self {
            Self::Exactly(mtu) => found == mtu,
            Self::AtMost(mtu) => found <= mtu,
        }
    }
}

impl std::fmt::Display for ExpectedMtu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(mtu) => write!(f, "{mtu}"),
            Self::AtMost(mtu) => write!(f, "at most {mtu}"),
        }
    }
}
