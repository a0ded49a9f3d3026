//! Completes attachments that were rebuilt from the kernel without a path to their namespace, once a caller names it.

use super::{engine::Engine, error::AttachError};
use crate::{
    plug::{PlugError, netlink::Socket, netns::Netns, survey},
    registry::{Attachment, NetnsId},
};

impl Engine {
    /// Records the caller's namespace in each attachment of `group` that lacks a path, if the interface is in it.
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

<<<<<<< HEAD
    fn adopt_netns(&self, it: Attachment, netns: &Netns) -> Result<Attachment, AttachError> {
        let is_in_netns = match &it.host {
=======
    fn with_its_netns(&self, it: Attachment, netns: &Netns) -> Result<Attachment, AttachError> {
        let is_its = match it.host.device() {
>>>>>>> dd51d8a (A VIF records its kind and an attachment its host side, durably)
            _ if it.has_path() => false,
            Some(host) if it.netns_id == NetnsId::UNKNOWN => {
                let is_end_in = || survey::is_end_in(&mut Socket::open()?, host.ifindex, netns);
                is_end_in().map_err(PlugError::from)?
            }
            _ => it.netns_id == netns.id(),
        };
        if !is_in_netns {
            return Ok(it);
        }
        let netns_id = netns.id();
        Ok(self.registry.complete(Attachment { netns: netns.path().to_owned(), netns_id, ..it })?)
    }
}
