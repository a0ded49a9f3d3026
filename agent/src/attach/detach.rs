//! DEL and GC: map entries first, so that nothing new is delivered; then the interface; then the record.

use std::sync::Arc;

use ferrule_proto::names::NetworkName;

use super::{
    engine::Engine,
    error::AttachError,
    phases::{Phase, Phases},
};
use crate::{
    crash::{self, Step},
    plug::{stamp::Stamp, veth},
    registry::{Attachment, HostSide, Key, State},
};

impl Engine {
    /// Detaches a container; succeeds for one that is not attached. Cancels ADDs of the same key that still
    /// wait.
    ///
    /// # Errors
    /// If the kernel or the store refuses; a repeated DEL continues from there.
    pub(crate) async fn detach(self: &Arc<Self>, key: Key, phases: &Phases) -> Result<(), AttachError> {
        phases.enter(Phase::Queue);
        let _admission = self.admit_other()?;
        self.in_flight.cancel(&key);
        self.detach_if(&key, phases, |_| true).await.map(drop)
    }

    /// Detaches the container if `condition` holds once the key is locked, and returns whether it held. The
    /// condition gets all attachments of the container, and may block.
    ///
    /// # Errors
    /// As for [`Self::detach`].
    pub(crate) async fn detach_if(
        self: &Arc<Self>,
        key: &Key,
        phases: &Phases,
        condition: impl FnOnce(&[Attachment]) -> bool + Send + 'static,
    ) -> Result<bool, AttachError> {
        let of = key.clone();
        let detach = move |engine: &Self, phases: &Phases| {
            let group = engine.registry.group(&of);
            if !condition(&group) {
                return Ok(false);
            }
            engine.detach_all(&group, phases)?;
            Ok(true)
        };
        self.run_locked(key, phases, detach, |_, _| {}).await
    }

    /// GC: detaches all containers of a network that are not in `valid`.
    ///
    /// # Errors
    /// The first failure; the remaining containers are still attempted.
    pub(crate) async fn retain(
        self: &Arc<Self>,
        network: &NetworkName,
        valid: &[Key],
        phases: &Phases,
    ) -> Result<(), AttachError> {
        let mut outcome = Ok(());
        for attachment in self.registry.list() {
            let key = attachment.runtime_key();
            if key.network == *network && !valid.contains(&key) {
                tracing::info!(%key, "GC: the runtime no longer lists this attachment; detaching it");
                outcome = outcome.and(self.detach(key, phases).await);
                crash::point(Step::GcRemoved);
            }
        }
        outcome
    }

    /// Detaches all attachments of a container, the requested interface last: as long as it is recorded, a
    /// repeated DEL finds the group. The caller holds the key's lock.
    pub(super) fn detach_all(&self, attachments: &[Attachment], phases: &Phases) -> Result<(), AttachError> {
        attachments.iter().rev().try_for_each(|attachment| self.detach_one(attachment, phases))
    }

    /// Detaches one attachment. The caller holds the key's lock, or nothing is served yet.
    ///
    /// # Errors
    /// If the kernel or the store refuses; a repeated call continues from there.
    pub(crate) fn detach_one(&self, attachment: &Attachment, phases: &Phases) -> Result<(), AttachError> {
        phases.enter(Phase::Dataplane);
        crash::point(Step::DelBegun);
        let going = self.registry.advance(attachment.clone(), State::Unplugging)?;
        self.ports.remove(&going)?;
        crash::point(Step::DelPortsRemoved);
        if let Some(ifindex) = going.host.ifindex() {
            self.enforcer.forget(ifindex);
            self.dataplane.remove(ifindex, going.vif.addresses)?;
            crash::point(Step::DelEntriesRemoved);
        }
        match &going.host {
            HostSide::Link(link) => {
                phases.enter(Phase::Plug);
                veth::retire(link.ifindex, &Stamp::of(&going.key), going.vif.addresses)?;
                self.reaper.notify();
                crash::point(Step::DelRetired);
            }
            // The agent owns no device on the host that it could delete.
            HostSide::Unplugged | HostSide::None | HostSide::Representor(_) => {}
        }
        phases.enter(Phase::Commit);
        self.registry.release(&going)?;
        crash::point(Step::DelReleased);
        self.journal.detached(&going.key);
        tracing::info!(key = %going.key, "detached");
        Ok(())
    }
}
