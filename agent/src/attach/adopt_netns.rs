//! The namespace of an attachment that was made anew from what the kernel has, when a caller names it.

use super::{engine::Engine, error::AttachError};
use crate::{
    plug::{PlugError, netlink::Socket, netns::Netns, survey},
    registry::{Attachment, NetnsId},
};

impl Engine {
    /// The same attachments, with the caller's namespace where theirs, or the path to it, was not found, if it is theirs.
    ///
    /// # Errors
    /// If kernel or store refuses.
    pub(super) fn with_netns(
        &self,
        group: Vec<Attachment>,
        netns: &Netns,
    ) -> Result<Vec<Attachment>, AttachError> {
        group.into_iter().map(|it| self.with_its_netns(it, netns)).collect()
    }

    fn with_its_netns(&self, it: Attachment, netns: &Netns) -> Result<Attachment, AttachError> {
        let is_its = match &it.host {
            _ if it.has_path() => false,
            Some(host) if it.netns_id == NetnsId::UNKNOWN => {
                let look = || survey::is_end_in(&mut Socket::open()?, host.ifindex, netns);
                look().map_err(PlugError::from)?
            }
            _ => it.netns_id == netns.id(),
        };
        if !is_its {
            return Ok(it);
        }
        let netns_id = netns.id();
        Ok(self.registry.complete(Attachment { netns: netns.path().to_owned(), netns_id, ..it })?)
    }
}
