//! Writes checkpoints in the background, one at a time; meanwhile, changes gather.

use std::{collections::HashMap, mem, sync::Arc};

use tokio::task::{JoinHandle, spawn_blocking};

use super::{
    checkpoint::{Checkpoint, CheckpointStore, Update},
    object::{Object, ObjectKey},
};
use crate::chain::chain;

/// The pending changes of one watch.
pub(super) struct CheckpointWriter {
    store: Arc<dyn CheckpointStore>,
    watch: &'static str,
    /// `None` until [`Self::load`].
    identity: Option<String>,
    /// The position of the last write that was started.
    written: Option<String>,
    changes: HashMap<String, Option<Vec<u8>>>,
    replaces_all: bool,
    /// Returns whether the write succeeded.
    writing: Option<(JoinHandle<bool>, Arc<Update>)>,
}

// === impl CheckpointWriter ===

impl CheckpointWriter {
    pub(super) fn new(store: Arc<dyn CheckpointStore>, watch: &'static str) -> Self {
        Self {
            store,
            watch,
            identity: None,
            written: None,
            changes: HashMap::new(),
            replaces_all: false,
            writing: None,
        }
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.identity.is_some()
    }

    /// Loads the checkpoint of an earlier agent. Later writes are for the same identity.
    pub(super) async fn load(&mut self, identity: String) -> Option<Checkpoint> {
        let (store, watch) = (Arc::clone(&self.store), self.watch);
        self.identity = Some(identity.clone());
        let checkpoint = spawn_blocking(move || store.load(watch, &identity)).await.ok().flatten()?;
        self.written = Some(checkpoint.position.clone());
        Some(checkpoint)
    }

    pub(super) fn put<T: Object>(&mut self, key: &ObjectKey, object: &T) {
        match serde_json::to_vec(object) {
            Ok(json) => {
                self.changes.insert(key.to_string(), Some(json));
            }
            // Derived serializers of our own types do not fail; the next list would correct it.
            Err(error) => tracing::error!(%key, %error, "cannot serialize an object for the checkpoint"),
        }
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) {
        self.changes.insert(key.to_string(), None);
    }

    /// A list has completed: the next write removes all objects that were not put.
    pub(super) fn replace_all(&mut self) {
        self.replaces_all = true;
    }

    /// Changes that are not durable yet.
    pub(super) fn unsaved(&self) -> usize {
        self.changes.len() + self.writing.as_ref().map_or(0, |(_, update)| update.objects.len())
    }

    /// Starts to write the changes up to a position, unless a write is in progress or the position has not
    /// moved.
    pub(super) async fn save(&mut self, position: &str) {
        if self.writing.as_ref().is_some_and(|(writing, _)| !writing.is_finished()) {
            return;
        }
        self.finish().await;
        let has_moved = self.written.as_deref() != Some(position);
        let Some(identity) = self.identity.clone().filter(|_| has_moved || self.replaces_all) else { return };
        self.written = Some(position.to_owned());
        let update = Arc::new(Update {
            position: position.to_owned(),
            replaces_all: mem::take(&mut self.replaces_all),
            objects: mem::take(&mut self.changes).into_iter().collect(),
        });
        let (store, watch, written) = (Arc::clone(&self.store), self.watch, Arc::clone(&update));
        let writing = spawn_blocking(move || match store.save(watch, &identity, &written) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(watch, error = chain(error.as_ref()), "cannot write the checkpoint; retrying");
                false
            }
        });
        self.writing = Some((writing, update));
    }

    /// Waits for the write in progress. The changes of a failed one are pending again, below later ones: a
    /// position is never durable without the changes before it.
    pub(super) async fn finish(&mut self) {
        let Some((writing, update)) = self.writing.take() else { return };
        if writing.await.unwrap_or_default() {
            return;
        }
        for (key, object) in &update.objects {
            self.changes.entry(key.clone()).or_insert_with(|| object.clone());
        }
        self.replaces_all |= update.replaces_all;
        self.written = None;
    }
}
