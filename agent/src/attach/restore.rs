//! Plugs an attachment again whose interface was deleted while its pod lives.

use std::path::PathBuf;

use super::{engine::Engine, judge::interface};
use crate::{
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
use ferrule_vif::VifKind;

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
        let mut judged = None;
        if let Some(ifindex) = before.ifindex() {
            judged = self.dataplane.subject(ifindex)?;
            self.enforcer.forget(ifindex);
            self.dataplane.remove(ifindex, vif.addresses)?;
        }
        let stamp = Stamp::of(key);
        let host_ifname = before.stamped_link().map(|link| link.ifname.as_str());
        let path_mtu = self.uplink.current_path_mtu();
        let (ifname, stamp) = (&key.ifname, &stamp);
        let plan = Plan { netns: &netns, ifname, stamp, vif, path_mtu, wishes, host_ifname };
        let link = match vif.kind {
            VifKind::Veth => veth::create(plan, self.dataplane.filters())?,
        };
        let host = HostLink { ifname: link.ifname().to_owned(), ifindex: link.ifindex() };
        let ifindex = host.ifindex;
        let restored = Attachment { host: HostSide::Link(host), ..attachment.clone() };
        let remove_entries = || {
            self.enforcer.forget(ifindex);
            if let Err(error) = self.dataplane.remove(ifindex, vif.addresses) {
                tracing::error!(%key, %error, "cannot remove the map entries of a failed restore");
            }
        };
        self.dataplane.insert(ifindex, &restored)?;
        if let Some(subject) = judged {
            // Until the policies are known again.
            self.dataplane.judge(ifindex, subject).inspect_err(|_| remove_entries())?;
        }
        self.enforcer.add(interface(ifindex, &restored));
        link.bring_up().inspect_err(|_| remove_entries())?;
        // Recorded last: after a crash before this line, the next start finds a stray interface, and restores
        // again.
        let recorded = self.registry.advance(restored, State::Attached);
        if recorded.is_err() {
            remove_entries();
            veth::retire(ifindex, stamp, vif.addresses).map_err(PlugError::from)?;
            self.reaper.notify();
        }
        let restored = recorded?;
        tracing::info!(%key, pod = %restored.pod, addresses = %restored.vif.addresses, "restored a deleted interface");
        Ok(restored)
    }
}
