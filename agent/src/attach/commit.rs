//! The last step of an ADD: the attachments become durable.

use super::{
    engine::Engine,
    error::AttachError,
    phases::{Phase, Phases},
};
use crate::{
    crash::{self, Step},
    registry::{Attachment, State},
};

impl Engine {
    /// Makes plugged attachments durable, the requested interface last: after a crash in between, recovery
    /// finds the requested one uncommitted, and rolls back all of them.
    ///
    /// # Errors
    /// If the store fails; all of them are rolled back.
    pub(super) fn commit(
        &self,
        plugged: Vec<Attachment>,
        phases: &Phases,
    ) -> Result<Vec<Attachment>, AttachError> {
        phases.enter(Phase::Commit);
        for attachment in plugged.iter().rev() {
            if let Err(error) = self.registry.advance(attachment.clone(), State::Attached) {
                self.roll_back(&plugged, phases);
                return Err(error.into());
            }
        }
        crash::point(Step::AddCommitted);
        let attached: Vec<_> =
            plugged.into_iter().map(|it| Attachment { state: State::Attached, ..it }).collect();
        for Attachment { key, pod, vif, .. } in &attached {
            tracing::info!(%key, %pod, addresses = %vif.addresses, "attached");
        }
        Ok(attached)
    }
}
