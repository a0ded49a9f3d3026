//! An ADD between plug and commit.

use std::sync::Arc;

use super::{engine::Engine, error::AttachError, phases::Phases, rollback::Changes};
use crate::registry::{Attachment, Key};

/// A plugged but uncommitted ADD, waiting for its VIF to become active. Rolled back on drop: the caller went
/// away, or the deadline passed.
pub(super) struct Uncommitted<'a> {
    engine: &'a Arc<Engine>,
    changes: Option<Changes>,
}

// === impl Uncommitted ===

impl<'a> Uncommitted<'a> {
    pub(super) fn new(engine: &'a Arc<Engine>, changes: Changes) -> Self {
        Self { engine, changes: Some(changes) }
    }

    /// Commits the ADD. The caller may still go away while the commit queues for the key's lock; the
    /// attachments stay subject to rollback until then.
    ///
    /// # Errors
    /// If a DEL removed the attachments meanwhile, they drifted, or the store fails; they are rolled back.
    pub(super) async fn commit(mut self, key: &Key, phases: &Phases) -> Result<Vec<Attachment>, AttachError> {
        let changes = self.changes.clone().ok_or(AttachError::Lost)?;
        let commit = move |engine: &Engine, phases: &Phases| {
            if changes.plugged.iter().any(|it| engine.registry.get(&it.key).as_ref() != Some(it)) {
                return Err(AttachError::Overtaken);
            }
            // Healing repairs committed attachments only, so that drift since the plug is unrepaired.
            if let Err(error) = engine.verify_plugged(&changes.plugged) {
                engine.roll_back(&changes, phases);
                return Err(error);
            }
            engine.commit(changes, phases)
        };
        let roll_back = |engine: &Engine, committed: Result<Changes, AttachError>| {
            if let Ok(changes) = committed {
                engine.roll_back(&changes, &Phases::untracked());
            }
        };
        let committed = self.engine.run_locked(key, phases, commit, roll_back).await;
        // The commit has rolled back its own failure, unless its thread ended without a result.
        if !matches!(committed, Err(AttachError::Lost)) {
            self.changes = None;
        }
        committed.map(|changes| changes.plugged)
    }
}

impl Drop for Uncommitted<'_> {
    fn drop(&mut self) {
        let Some(changes) = self.changes.take() else { return };
        let Some(key) = changes.plugged.first().map(Attachment::runtime_key) else { return };
        let engine = Arc::clone(self.engine);
        // Taken before the call's own slot is freed, so that shutdown waits for the rollback too.
        let admission = engine.admit_attach();
        tokio::spawn(async move {
            let _admission = admission;
            let roll_back = move |engine: &Engine, phases: &Phases| {
                let mut ours = changes;
                let all = ours.plugged.len();
                ours.plugged.retain(|it| engine.registry.get(&it.key).as_ref() == Some(it));
                if ours.plugged.len() < all {
                    // A DEL has overtaken the ADD.
                    ours.replaced.clear();
                }
                engine.roll_back(&ours, phases);
                Ok(())
            };
            // The rollback logs its own failures.
            let _ = engine.run_locked(&key, &Phases::untracked(), roll_back, |_, _| {}).await;
        });
    }
}
