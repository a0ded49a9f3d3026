//! What a watch has told, made durable: so that a restarted agent goes on from there.

use std::{collections::HashMap, mem, sync::Arc};

use tokio::task::{JoinHandle, spawn_blocking};

use super::{
    Batch, Memory,
    object::{Object, ObjectKey},
};

/// What is not durable yet, and what is on its way to be.
#[derive(Default)]
pub(super) struct Keeper {
    changes: HashMap<String, Option<Vec<u8>>>,
    /// Whether the changes are all that there is: a list came to its end among them.
    is_all: bool,
    moved: bool,
    /// Whether it succeeds, and what to do again if it does not.
    writing: Option<(JoinHandle<bool>, Arc<Batch>)>,
}

/// Where a source is kept.
pub(super) struct Place<'a> {
    pub memory: &'a Arc<dyn Memory>,
    pub source: &'static str,
    pub identity: &'a str,
}

// === impl Keeper ===

impl Keeper {
    pub(super) fn put<T: Object>(&mut self, key: &ObjectKey, object: &T) {
        match serde_json::to_vec(object) {
            Ok(json) => {
                self.changes.insert(key.to_string(), Some(json));
            }
            // Our own types always can be written; a list would heal it.
            Err(error) => tracing::error!(%key, %error, "an object cannot be kept"),
        }
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) {
        self.changes.insert(key.to_string(), None);
    }

    /// The position has moved, with what was put and removed so far.
    pub(super) fn moved(&mut self) {
        self.moved = true;
    }

    /// A list has come to its end: what it has not named is not there.
    pub(super) fn listed(&mut self) {
        (self.is_all, self.moved) = (true, true);
    }

    /// How many changes are not durable.
    pub(super) fn unsaved(&self) -> usize {
        self.changes.len() + self.writing.as_ref().map_or(0, |(_, batch)| batch.objects.len())
    }

    /// Starts to make durable what has changed up to a position, unless that is being done still: then it gathers.
    pub(super) async fn save(&mut self, place: Place<'_>, position: &str) {
        if self.writing.as_ref().is_some_and(|(writing, _)| !writing.is_finished()) {
            return;
        }
        self.finish().await;
        if !mem::take(&mut self.moved) {
            return;
        }
        let batch = Arc::new(Batch {
            position: position.to_owned(),
            is_all: mem::take(&mut self.is_all),
            objects: mem::take(&mut self.changes).into_iter().collect(),
        });
        let (memory, source, identity) = (Arc::clone(place.memory), place.source, place.identity.to_owned());
        let write = Arc::clone(&batch);
        let writing = spawn_blocking(move || match memory.save(source, &identity, &write) {
            Ok(()) => true,
            Err(error) => {
                let error = crate::chain::chain(error.as_ref());
                tracing::warn!(source, error, "the position of the watch is not durable: trying again");
                false
            }
        });
        self.writing = Some((writing, batch));
    }

    /// Waits for what is on its way. What has not arrived is a change again, below what has changed since: a position
    /// must never be kept without all that came before it.
    pub(super) async fn finish(&mut self) {
        let Some((writing, batch)) = self.writing.take() else { return };
        if writing.await.unwrap_or_default() {
            return;
        }
        for (key, object) in &batch.objects {
            self.changes.entry(key.clone()).or_insert_with(|| object.clone());
        }
        self.is_all |= batch.is_all;
        self.moved = true;
    }
}
