//! Plugs an attachment again whose interface was deleted while its pod lives.

use std::path::PathBuf;

use ferrule_vif::VifKind;

use super::{engine::Engine, judge::interface};
use crate::{
    chain::chain,
    dataplane::MapFailure,
    plug::{
        PlugError,
        netns::Netns,
        stamp::Stamp,
        veth::{self, Plan},
    },
    ports::PortError,
    registry::{Attachment, HostLink, HostSide, RegistryError, State},
};

/// An interface that cannot be restored. The attempt is rolled back, and the attachment stays recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    #[error("the recorded path {0:?} leads to another network namespace than the pod's")]
    OtherNetns(PathBuf),
    #[error(transparent)]
    Plug(#[from] PlugError),
    #[error(transparent)]
    Dataplane(#[from] MapFailure),
    #[error(transparent)]
    Ports(#[from] PortError),
    #[error("cannot record the restored interface")]
    Registry(#[from] RegistryError),
}

// === impl Engine ===

impl Engine {
    /// Plugs the same VIF under the same names into the same namespace, with all of its routes. The interface
    /// index and the counters are new. Blocks; the caller holds the key's lock, or nothing is served yet.
    ///
    /// # Errors
    /// If the namespace is another one, or the kernel or the store refuses; the attempt is rolled back.
    pub(crate) fn restore(&self, attachment: &Attachment) -> Result<Attachment, RestoreError> {
        let netns = Netns::open(&attachment.netns).map_err(PlugError::from)?;
        if netns.id() != attachment.netns_id {
            return Err(RestoreError::OtherNetns(attachment.netns.clone()));
        }
        let Attachment { key, vif, wishes, host: before, .. } = attachment;
        let stamp = Stamp::of(key);
        let host_ifname = before.stamped_link().map(|link| link.ifname.as_str());
        let path_mtu = self.uplink.current_path_mtu();
        let plan =
            Plan { netns: &netns, ifname: &key.ifname, stamp: &stamp, vif, path_mtu, wishes, host_ifname };
        // Before anything is taken from the lost interface, which may come back: another program can have
        // moved the host's end away.
        let link = match vif.kind {
            VifKind::Veth => veth::create(plan, self.dataplane.filters())?,
        };
        let host = HostLink { ifname: link.ifname().to_owned(), ifindex: link.ifindex() };
        let ifindex = host.ifindex;
        let restored = Attachment { host: HostSide::Link(host), ..attachment.clone() };
        let lost = before.ifindex();
        let done = self
            .move_entries(lost, ifindex, &restored)
            .and_then(|()| Ok(link.bring_up()?))
            // Recorded last: after a crash before this line, the next start finds a stray interface, and
            // restores again.
            .and_then(|()| Ok(self.registry.advance(restored, State::Attached)?));
        if done.is_err() {
            self.move_entries_back(lost, ifindex, attachment);
            // Does nothing if the pair is gone again.
            if let Err(error) = veth::retire(ifindex, &stamp, vif.addresses) {
                tracing::error!(%key, error = chain(&error), "cannot delete the interface of a failed restore; healing retries");
            }
            self.reaper.notify();
        }
        let restored = done?;
        if let Some(lost) = lost {
            self.enforcer.forget(lost);
            if let Err(error) = self.dataplane.remove(lost, vif.addresses) {
                tracing::error!(%key, %error, "cannot forget what judged a lost interface");
            }
        }
        tracing::info!(%key, pod = %restored.pod, addresses = %restored.vif.addresses, "restored a deleted interface");
        Ok(restored)
    }

    /// Gives a new interface the entries of a lost one, and what judges that one until the policies are known
    /// again. The enforcer keeps the lost one. The maps need no room for both.
    fn move_entries(
        &self,
        lost: Option<u32>,
        ifindex: u32,
        restored: &Attachment,
    ) -> Result<(), RestoreError> {
        let mut judged = None;
        if let Some(lost) = lost {
            self.dataplane.withdraw(lost, restored.vif.addresses)?;
            judged = self.dataplane.subject(lost)?;
        }
        self.dataplane.insert(ifindex, restored)?;
        if let Some(subject) = judged {
            self.dataplane.judge(ifindex, subject)?;
        }
        self.enforcer.add(interface(ifindex, restored));
        Ok(())
    }

    /// Undoes [`Self::move_entries`], also in part: what judges the lost interface judges the one of the next
    /// attempt, and the lost one itself should it come back.
    fn move_entries_back(&self, lost: Option<u32>, ifindex: u32, attachment: &Attachment) {
        self.enforcer.forget(ifindex);
        let removed = self.dataplane.remove(ifindex, attachment.vif.addresses);
        // Nothing judges an interface that a DEL has detached: such a one gets no entries again.
        let is_judged = |lost: &u32| matches!(self.dataplane.subject(*lost), Ok(Some(_)));
        let kept = lost.filter(is_judged).map_or(Ok(()), |lost| self.dataplane.keep(lost, attachment));
        if let Err(error) = removed.and(kept) {
            let key = &attachment.key;
            tracing::error!(%key, error = chain(&error), "cannot take back the map entries of a failed restore");
        }
    }
}
