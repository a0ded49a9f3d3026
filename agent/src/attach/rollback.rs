//! The rollback of an ADD that failed, timed out, or lost its caller.

use super::{
    engine::Engine,
    phases::{Phase, Phases},
};
use crate::registry::Attachment;

/// What an ADD has changed.
#[derive(Debug, Clone, Default)]
pub(super) struct Changes {
    /// The requested interface comes first.
    pub plugged: Vec<Attachment>,
    /// The working attachments of an earlier ADD that were detached before.
    pub replaced: Vec<Attachment>,
}

// === impl Engine ===

impl Engine {
    /// Detaches what a failed or abandoned ADD made, and puts back what it replaced. A failure is logged:
    /// recovery at the next start, or a DEL, retries.
    pub(super) fn roll_back(&self, changes: &Changes, phases: &Phases) {
        phases.enter(Phase::Undo);
        if let Err(error) = self.detach_all(&changes.plugged, &Phases::untracked()) {
            tracing::error!(%error, "cannot roll back a failed or abandoned ADD; the next start or a DEL retries");
        }
        self.put_back(&changes.replaced);
    }
}
