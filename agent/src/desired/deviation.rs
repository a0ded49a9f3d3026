//! A difference between the desired and the actual state.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

use crate::{
    dataplane::Entry,
    plug::{
        filter::Hook,
        nft::{host_ports_table, masquerade_table},
    },
    registry::Key,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deviation {
    pub of: Subject,
    pub kind: Kind,
    /// One line: found and expected.
    pub what: String,
}

/// The deviating object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    Attachment(Key),
    /// A host interface with the stamp of a key.
    Interface(u32, Key),
    Entry(Entry),
    /// A node-wide setting, below `net/`.
    Setting(&'static str),
    /// The pin of a map.
    Pin(&'static str),
    /// A range of this node.
    Range(IpNet),
    /// The nftables table.
    MasqueradeTable,
    /// The nftables table of the node's ports that lead to pods.
    HostPortsTable,
    /// Routes, rules, tunnel and map rows of other nodes.
    NodeRoutes,
    /// The rows by which pods' packets are judged.
    PolicyRows,
}

/// The kind of a deviation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The host's end does not exist, but the pod's namespace does.
    LinkGone,
    /// The host's end has a wrong alias. Without its stamp, the agent does not touch it.
    LinkStamp,
    LinkGroup,
    /// A bridge or bond receives the packets that the pod sends.
    LinkMaster,
    LinkName,
    LinkMac,
    LinkMtu,
    LinkDown,
    /// The host's end does not forward IPv4.
    LinkForwarding,
    /// The host's end sends IPv4 redirects.
    LinkRedirects,
    /// The host's end drops packets of loopback addresses, which the node's ports need.
    LinkLocalnet,
    /// The host's end has no limit of what the pod receives, or a wrong one.
    LinkRate,
    /// A foreign qdisc occupies the place of clsact, so neither filter is attached and none can be.
    Qdisc,
    /// A filter is missing, or runs another program than this agent's.
    Filter(Hook),
    /// The host has no route to an address.
    Route(IpAddr),
    /// The host's neighbour entry of an address is missing, not permanent, or has a wrong MAC.
    Neighbour(IpAddr),
    /// A map entry is missing or wrong.
    Entry(Entry),
    /// The pod's end is missing or down.
    PodLink,
    PodMac,
    PodMtu,
    /// The pod's end limits what the pod sends otherwise than asked for.
    PodRate,
    /// The pod's end lacks an address.
    PodAddress(IpAddr),
    /// The pod lacks a route to a destination.
    PodRoute(IpNet),
    /// The pod's neighbour entry of a gateway is missing or has a wrong MAC.
    PodNeighbour(IpAddr),
    /// Another attachment has the same address.
    AddressShared(IpAddr),
    /// A stamped interface belongs to no attachment.
    StrayLink,
    /// A map entry belongs to no attachment.
    StrayEntry,
    /// The node does not forward an address family of its pods.
    NodeForwarding,
    /// The node permits IPv4 redirects on every interface.
    NodeRedirects,
    /// The unreachable route of a range is missing.
    RangeRoute,
    /// The table that masquerades pods' packets is missing or changed.
    Masquerade,
    /// The table of the node's ports that lead to pods is missing or changed.
    HostPorts,
    /// A route to another node, or what belongs to it, is missing or changed.
    NodeRoutes,
    /// A row by which pods' packets are judged is missing, wrong or stray.
    PolicyRows,
    /// A map has lost its pin, so the next agent would not find the map.
    Pin,
}

/// The most deviations that a summary spells out.
const SUMMARY: usize = 3;

/// Several deviations in one line.
pub fn summary(deviations: &[Deviation]) -> String {
    let shown: Vec<_> = deviations.iter().take(SUMMARY).map(Deviation::to_string).collect();
    let more = match deviations.len().saturating_sub(SUMMARY) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    shown.join("; ") + &more
}

// === impl Deviation ===

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.what)
    }
}

// === impl Kind ===

impl Kind {
    /// The label in metrics, logs and `ferrulectl verify`.
    pub fn name(self) -> &'static str {
        match self {
            Self::LinkGone => "link-gone",
            Self::LinkStamp => "link-stamp",
            Self::LinkGroup => "link-group",
            Self::LinkMaster => "link-master",
            Self::LinkName => "link-name",
            Self::LinkMac => "link-mac",
            Self::LinkMtu => "link-mtu",
            Self::LinkDown => "link-down",
            Self::LinkForwarding => "link-forwarding",
            Self::LinkRedirects => "link-redirects",
            Self::LinkLocalnet => "link-localnet",
            Self::LinkRate => "link-rate",
            Self::Qdisc => "qdisc",
            Self::Filter(_) => "filter",
            Self::Route(_) => "route",
            Self::Neighbour(_) => "neighbour",
            Self::Entry(_) => "map-entry",
            Self::PodLink => "pod-link",
            Self::PodMac => "pod-mac",
            Self::PodMtu => "pod-mtu",
            Self::PodRate => "pod-rate",
            Self::PodAddress(_) => "pod-address",
            Self::PodRoute(_) => "pod-route",
            Self::PodNeighbour(_) => "pod-neighbour",
            Self::AddressShared(_) => "address-shared",
            Self::StrayLink => "stray-link",
            Self::StrayEntry => "stray-map-entry",
            Self::NodeForwarding => "node-forwarding",
            Self::NodeRedirects => "node-redirects",
            Self::RangeRoute => "range-route",
            Self::Masquerade => "masquerade-table",
            Self::HostPorts => "host-ports-table",
            Self::NodeRoutes => "node-routes",
            Self::PolicyRows => "policy-rows",
            Self::Pin => "pin",
        }
    }

    /// Whether the pod's packets may be lost, or pass unchecked. A repeated ADD then replaces the attachment;
    /// healing repairs the others in place, without an interruption.
    pub fn affects_packets(self) -> bool {
        match self {
            Self::LinkGroup
            | Self::LinkName
            | Self::LinkForwarding
            | Self::LinkRedirects
            | Self::LinkLocalnet
            | Self::LinkRate
            | Self::PodRate
            | Self::Entry(Entry::Counters(_))
            | Self::StrayLink
            | Self::StrayEntry
            | Self::NodeForwarding
            | Self::NodeRedirects
            | Self::RangeRoute
            | Self::Masquerade
            | Self::HostPorts
            | Self::NodeRoutes
            | Self::PolicyRows
            | Self::Pin => false,
            Self::LinkGone
            | Self::LinkStamp
            | Self::LinkMaster
            | Self::LinkMac
            | Self::LinkMtu
            | Self::LinkDown
            | Self::Qdisc
            | Self::Filter(_)
            | Self::Route(_)
            | Self::Neighbour(_)
            | Self::Entry(Entry::Vif(_) | Entry::Endpoint(_))
            | Self::PodLink
            | Self::PodMac
            | Self::PodMtu
            | Self::PodAddress(_)
            | Self::PodRoute(_)
            | Self::PodNeighbour(_)
            | Self::AddressShared(_) => true,
        }
    }
}

// === impl Subject ===

impl Subject {
    /// The key of an attachment; `None` for every other subject.
    pub fn attachment(&self) -> Option<&Key> {
        if let Self::Attachment(key) = self { Some(key) } else { None }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attachment(key) => write!(f, "{key}"),
            Self::Interface(ifindex, key) => write!(f, "interface {ifindex} of {key}"),
            Self::Entry(entry) => write!(f, "{entry}"),
            Self::Setting(setting) => write!(f, "net.{}", setting.replace('/', ".")),
            Self::Pin(map) => write!(f, "pin of {map}"),
            Self::Range(range) => write!(f, "range {range}"),
            Self::MasqueradeTable => write!(f, "table inet {}", masquerade_table::NAME),
            Self::HostPortsTable => write!(f, "table inet {}", host_ports_table::NAME),
            Self::NodeRoutes => write!(f, "routes to other nodes"),
            Self::PolicyRows => write!(f, "rows of policies"),
        }
    }
}
