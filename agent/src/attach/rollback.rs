//! The rollback of an ADD that failed, timed out, or lost its caller.

use super::{
    engine::Engine,
    phases::{Phase, Phases},
};
use crate::registry::Attachment;

impl Engine {
    /// Detaches what a failed or abandoned ADD made. A failure is logged: recovery at the next start, or a
    /// DEL, retries.
    pub(super) fn roll_back(&self, attachments: &[Attachment], phases: &Phases) {
        phases.enter(Phase::Undo);
        if let Err(error) = self.detach_all(attachments, &Phases::untracked()) {
            tracing::error!(%error, "cannot roll back a failed or abandoned ADD; the next start or a DEL retries");
        }
    }
}
