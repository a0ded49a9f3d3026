//! What an ADD has plugged and cannot answer yet: its VIF has to become active first.

use std::sync::Arc;

use super::{
    engine::{Added, Engine},
    error::AttachError,
    phases::Phases,
};
use crate::registry::{Attachment, Key};

/// What is plugged and waits to become active. Dropped, it is undone: the caller has gone, or waited in vain.
pub(super) struct Uncommitted<'a> {
    engine: &'a Arc<Engine>,
    plugged: Option<Vec<Attachment>>,
}

// === impl Uncommitted ===

impl<'a> Uncommitted<'a> {
    pub(super) fn new(engine: &'a Arc<Engine>, plugged: Vec<Attachment>) -> Self {
        Self { engine, plugged: Some(plugged) }
    }

    /// Makes it durable: the ADD has succeeded. What is plugged stays ours to undo until then, as the caller may go while we
    /// wait for our turn.
    ///
    /// # Errors
    /// If a DEL came meanwhile, somebody changed what was plugged, or the store fails; then it is undone.
    pub(super) async fn commit(mut self, key: &Key, phases: &Phases) -> Result<Vec<Attachment>, AttachError> {
        let plugged = self.plugged.clone().ok_or(AttachError::Lost)?;
        let commit = move |engine: &Engine, phases: &Phases| {
            // A DEL may have come meanwhile.
            let is_there = plugged.iter().all(|it| engine.registry.get(&it.key).as_ref() == Some(it));
            if !is_there {
                return Err(AttachError::Overtaken);
            }
            // The healer looks at what is attached, and this was not: nobody has looked at it since it was plugged.
            if let Err(error) = engine.is_as_plugged(&plugged) {
                engine.undo(&plugged, phases);
                return Err(error);
            }
            engine.commit(plugged, phases).map(Added::Now)
        };
        let committed = self.engine.work(key, phases, commit, Engine::undo_add).await;
        self.plugged = None;
        match committed? {
            Added::Now(attachments) | Added::Before(attachments) => Ok(attachments),
        }
    }
}

impl Drop for Uncommitted<'_> {
    fn drop(&mut self) {
        let Some(plugged) = self.plugged.take() else { return };
        let Some(key) = plugged.first().map(Attachment::runtime_key) else { return };
        let engine = Arc::clone(self.engine);
        // The call's own is given back only after this; so the agent does not stop before it is done.
        let admitted = engine.admit();
        tokio::spawn(async move {
            let _admitted = admitted;
            let undo = move |engine: &Engine, phases: &Phases| {
                let still: Vec<_> = plugged
                    .into_iter()
                    .filter(|it| engine.registry.get(&it.key).as_ref() == Some(it))
                    .collect();
                engine.undo(&still, phases);
                Ok(())
            };
            // What it cannot do, it has said.
            let _ = engine.work(&key, &Phases::untracked(), undo, |_, _| {}).await;
        });
    }
}
