//! An interface that somebody has deleted under a pod that lives, made anew.

use super::engine::Engine;
use crate::{
    dataplane::DataplaneError,
    plug::{
        PlugError,
        netns::Netns,
        stamp::Stamp,
        veth::{self, Plan},
    },
    registry::{Attachment, HostLink, RegistryError, State},
};

/// An interface that cannot be made anew. Nothing is left of the attempt, and the attachment is as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    #[error("the path of its namespace leads to another one")]
    OtherNetns,
    #[error(transparent)]
    Plug(#[from] PlugError),
    #[error(transparent)]
    Dataplane(#[from] DataplaneError),
    #[error("the new interface could not be noted")]
    Registry(#[from] RegistryError),
}

// === impl Attachment ===

impl Attachment {
    /// Whether the path of its namespace still leads to it.
    pub(crate) fn is_in_living_netns(&self) -> bool {
        Netns::open(&self.netns).is_ok_and(|netns| netns.id() == self.netns_id)
    }
}

// === impl Engine ===

impl Engine {
    /// Plugs an attachment anew that has lost its interface: the same VIF under the same names, into the same namespace, with
    /// all of its routes. What was counted for it is not kept. May block; whoever calls has the key, or nobody else works yet.
    ///
    /// # Errors
    /// If the namespace is not the one that it was, or something refuses; then nothing is left of the attempt.
    pub(crate) fn restore(&self, attachment: &Attachment) -> Result<Attachment, RestoreError> {
        let netns = Netns::open(&attachment.netns).map_err(PlugError::from)?;
        if netns.id() != attachment.netns_id {
            return Err(RestoreError::OtherNetns);
        }
        let Attachment { key, vif, host: before, .. } = attachment;
        if let Some(HostLink { ifindex, .. }) = before {
            self.dataplane.remove(*ifindex, vif.addresses)?;
        }
        let stamp = Stamp::of(key);
        let host_ifname = before.as_ref().map(|it| it.ifname.as_str());
        let plan = Plan { netns: &netns, ifname: &key.ifname, stamp: &stamp, vif, host_ifname };
        let pending = veth::create(plan, self.dataplane.filters())?;
        let host = HostLink { ifname: pending.ifname().to_owned(), ifindex: pending.ifindex() };
        let ifindex = host.ifindex;
        let restored = Attachment { host: Some(host), ..attachment.clone() };
        let undo = || {
            if let Err(error) = self.dataplane.remove(ifindex, vif.addresses) {
                tracing::error!(%key, %error, "the maps keep entries of an interface that could not be made anew");
            }
        };
        self.dataplane.insert(ifindex, &restored)?;
        pending.bring_up().inspect_err(|_| undo())?;
        // Only now: after a crash in between, the next start finds an interface of nobody, and this one missing still.
        let noted = self.registry.advance(restored, State::Attached);
        if noted.is_err() {
            undo();
            veth::retire(ifindex, &stamp, vif.addresses).map_err(PlugError::from)?;
            self.reaper.notify();
        }
        let restored = noted?;
        tracing::info!(%key, pod = %restored.pod, addresses = %restored.vif.addresses, "an interface was made anew");
        Ok(restored)
    }
}
