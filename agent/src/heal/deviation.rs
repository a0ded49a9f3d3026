//! What is not as it should be. The one definition of it, for who repairs and for who only asks.

use std::{fmt, net::IpAddr};

use crate::{
    dataplane::Entry,
    plug::filter::Hook,
    registry::{Attachment, HostLink, Key},
};

/// Something of an attachment or of the node that differs, or something of ours that belongs to none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deviation {
    pub of: Subject,
    pub kind: Kind,
    /// One line.
    pub what: String,
}

/// What deviates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    Attachment(Key),
    /// An interface of the host that carries the stamp of a key.
    Interface(u32, Key),
    Entry(Entry),
    /// A setting of the node, below `net/`.
    Setting(&'static str),
    /// The pin of a map.
    Pin(&'static str),
}

/// How it deviates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The host's end is not there, and the pod's namespace is.
    LinkGone,
    /// The host's end carries another alias: by that, it is not ours to touch.
    LinkStamp,
    /// It is in a link group.
    LinkGroup,
    /// A bridge, or something like it, has what comes in by it.
    LinkMaster,
    LinkName,
    LinkMac,
    LinkMtu,
    LinkDown,
    /// It does not forward IPv4, and the node does.
    LinkForwarding,
    /// Somebody else's qdisc is where that of our filters has to be: none of them is there, and none can be.
    Qdisc,
    /// Our filter is missing, or is another program than this agent's.
    Filter(Hook),
    /// The host's route to an address is missing.
    Route(IpAddr),
    /// The neighbour entry of an address is missing, not permanent, or has another MAC.
    Neighbour(IpAddr),
    /// An entry of a map is missing or says something else.
    Entry(Entry),
    /// Another attachment has the same address.
    AddressShared(IpAddr),
    /// An interface with our stamp belongs to no attachment.
    StrayLink,
    /// An entry of a map belongs to no attachment.
    StrayEntry,
    /// The node does not forward a family that pods have.
    NodeForwarding,
    /// The next agent would not find a map.
    Pin,
}

/// Something of others on a pod's interface: no deviation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    pub key: Key,
    pub host: HostLink,
    /// One line.
    pub what: String,
}

// === impl Deviation ===

impl Deviation {
    /// Of an attachment.
    pub(super) fn of(attachment: &Attachment, kind: Kind, what: impl Into<String>) -> Self {
        Self { of: Subject::Attachment(attachment.key.clone()), kind, what: what.into() }
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.what)
    }
}

// === impl Kind ===

impl Kind {
    /// As it is counted and shown.
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
            Self::Qdisc => "qdisc",
            Self::Filter(_) => "filter",
            Self::Route(_) => "route",
            Self::Neighbour(_) => "neighbour",
            Self::Entry(_) => "map-entry",
            Self::AddressShared(_) => "address-shared",
            Self::StrayLink => "stray-link",
            Self::StrayEntry => "stray-map-entry",
            Self::NodeForwarding => "node-forwarding",
            Self::Pin => "pin",
        }
    }

    /// Whether there is anything that the agent may do about it.
    pub(super) fn is_repairable(self) -> bool {
        !matches!(self, Self::LinkStamp | Self::Qdisc | Self::AddressShared(_))
    }
}

// === impl Subject ===

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attachment(key) => write!(f, "{key}"),
            Self::Interface(ifindex, key) => write!(f, "interface {ifindex} of {key}"),
            Self::Entry(entry) => write!(f, "{entry}"),
            Self::Setting(setting) => write!(f, "net.{}", setting.replace('/', ".")),
            Self::Pin(map) => write!(f, "pin of {map}"),
        }
    }
}
