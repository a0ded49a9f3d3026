//! The validated identity of an attachment.

use ferrule_proto::{
    cni::AttachmentKey,
    names::{ContainerId, IfName, InvalidName, NetworkName},
};

/// The validated identity of an attachment.
pub(crate) struct Key {
    pub(super) network: NetworkName,
    pub(super) container_id: ContainerId,
    pub(super) ifname: IfName,
}

// === impl Key ===

impl Key {
    /// Validates a request's key.
    ///
    /// # Errors
    /// If a name is invalid.
    pub(crate) fn new(key: &AttachmentKey) -> Result<Self, InvalidName> {
        Ok(Self {
            network: NetworkName::new(&key.network)?,
            container_id: ContainerId::new(&key.container_id)?,
            ifname: IfName::new(&key.ifname)?,
        })
    }

    /// The ownership stamp, which the agent sets as the alias of the host interface.
    pub(super) fn stamp(&self) -> String {
        format!("ferrule:{}:{}:{}", self.network, self.container_id, self.ifname)
    }
}
