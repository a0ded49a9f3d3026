//! Completes attachments that were rebuilt from the kernel without a path to their namespace, once a caller
//! names it.

use super::{engine::Engine, error::AttachError};
use crate::{
    plug::{PlugError, netlink::Socket, netns::Netns, peer_netns},
    registry::{Attachment, NetnsId, State},
};

impl Engine {
    /// Records the caller's namespace in each attachment of `group` that lacks a path, if the interface is in
    /// it.
    ///
    /// # Errors
    /// If the kernel or the store refuses.
    pub(super) fn with_netns(
        &self,
        group: Vec<Attachment>,
        netns: &Netns,
    ) -> Result<Vec<Attachment>, AttachError> {
        group.into_iter().map(|it| self.adopt_netns(it, netns)).collect()
    }

    fn adopt_netns(&self, it: Attachment, netns: &Netns) -> Result<Attachment, AttachError> {
        let is_in_netns = match it.host.stamped_link() {
            _ if it.has_path() || it.state != State::Attached => false,
            Some(link) if it.netns_id == NetnsId::UNKNOWN => {
                let has_peer = || peer_netns::has_peer_of(&mut Socket::open()?, link.ifindex, netns);
                has_peer().map_err(PlugError::from)?
            }
            _ => it.netns_id == netns.id(),
        };
        if !is_in_netns {
            return Ok(it);
        }
        let netns_id = netns.id();
        Ok(self.registry.update(Attachment { netns: netns.path().to_owned(), netns_id, ..it })?)
    }
}
