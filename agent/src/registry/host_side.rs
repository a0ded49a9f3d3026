//! What the host's network namespace holds of an attachment.

use serde::{Deserialize, Serialize};

/// The host side of an attachment: durable, and different for each kind of VIF.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostSide {
    /// The attachment is Reserved: no plug has completed yet.
    Unplugged,
    /// The host end of a pair that the agent created. The link carries the ownership stamp, and the agent
    /// deletes it.
    Link(HostLink),
    /// The kind leaves no device in the host's network namespace.
    None,
    /// The port of a hardware function. The driver owns the device, so the agent neither creates nor deletes
    /// it, and no stamp marks it.
    Representor(HostLink),
}

/// A device in the host's network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLink {
    pub ifname: String,
    pub ifindex: u32,
}

// === impl HostSide ===

impl HostSide {
    /// The device that carries the pod's packets on the host: the filters are attached to it, and its index
    /// is the key of the attachment's map entries.
    pub fn device(&self) -> Option<&HostLink> {
        match self {
            Self::Link(device) | Self::Representor(device) => Some(device),
            Self::Unplugged | Self::None => None,
        }
    }

    /// The index of [`Self::device`].
    pub fn ifindex(&self) -> Option<u32> {
        self.device().map(|device| device.ifindex)
    }

    /// The link that the ownership stamp marks: the only device that the agent may delete.
    pub fn stamped_link(&self) -> Option<&HostLink> {
        match self {
            Self::Link(link) => Some(link),
            Self::Unplugged | Self::None | Self::Representor(_) => None,
        }
    }
}
