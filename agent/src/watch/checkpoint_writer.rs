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
    /// The changes were too many to keep. The stored checkpoint stays as it is until the next list.
    is_abandoned: bool,
    /// Returns whether the write succeeded.
    writing: Option<(JoinHandle<bool>, Arc<Update>)>,
}

/// Removals that are kept while the checkpoint cannot be written. Other changes are as many as the objects.
const MAX_REMOVALS: usize = 4096;

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
            is_abandoned: false,
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
        if self.replaces_all || self.is_abandoned {
            // The next update replaces all objects.
            self.changes.remove(&key.to_string());
        } else {
            self.changes.insert(key.to_string(), None);
        }
    }

    /// A list has completed: the next write removes all objects that were not put.
    pub(super) fn replace_all(&mut self) {
        self.replaces_all = true;
        self.is_abandoned = false;
    }

    /// Changes that are not durable yet.
    pub(super) fn unsaved(&self) -> usize {
        self.changes.len() + self.writing.as_ref().map_or(0, |(_, update)| update.objects.len())
    }

    /// Starts to write the changes up to a position, unless a write is in progress or the position has not
    /// moved.
    pub(super) async fn save(&mut self, position: &str) {
        let is_writing = self.writing.as_ref().is_some_and(|(writing, _)| !writing.is_finished());
        if !is_writing {
            self.finish().await;
        }
        self.abandon_if_too_many();
        if is_writing || self.is_abandoned {
            return;
        }
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
        self.written = None;
        // Since a list has completed, the changes have every object; the failed ones may be gone.
        if self.replaces_all || self.is_abandoned {
            return;
        }
        for (key, object) in &update.objects {
            self.changes.entry(key.clone()).or_insert_with(|| object.clone());
        }
        if update.replaces_all {
            self.replaces_all = true;
            self.changes.retain(|_, object| object.is_some());
        }
    }

    /// Bounds the memory while the checkpoint cannot be written. The stored one remains a valid, older one.
    fn abandon_if_too_many(&mut self) {
        let removals = self.changes.values().filter(|object| object.is_none()).count();
        if removals > MAX_REMOVALS {
            tracing::warn!(watch = self.watch, removals, "giving up the checkpoint until the next list");
            self.changes.retain(|_, object| object.is_some());
            self.is_abandoned = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        error::Error,
        sync::{
            Mutex,
            atomic::{AtomicBool, Ordering},
        },
    };

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, Clone, Deserialize, Serialize)]
    struct Number(u64);

    impl Object for Number {
        fn key(&self) -> ObjectKey {
            key(self.0)
        }

        fn uid(&self) -> &str {
            "u"
        }

        fn take_version(&mut self) -> String {
            String::new()
        }
    }

    /// Position and objects that are stored; writes fail on demand.
    #[derive(Default)]
    struct Memory {
        stored: Mutex<(String, BTreeMap<String, String>)>,
        fails: AtomicBool,
    }

    impl CheckpointStore for Memory {
        fn load(&self, _: &str, _: &str) -> Option<Checkpoint> {
            None
        }

        fn save(&self, _: &str, _: &str, update: &Update) -> Result<(), Box<dyn Error + Send + Sync>> {
            if self.fails.load(Ordering::SeqCst) {
                return Err("the disk is full".into());
            }
            let mut stored = self.stored.lock().unwrap();
            if update.replaces_all {
                stored.1.clear();
            }
            stored.0.clone_from(&update.position);
            for (key, json) in &update.objects {
                match json {
                    Some(json) => {
                        stored.1.insert(key.clone(), String::from_utf8(json.clone()).unwrap());
                    }
                    None => drop(stored.1.remove(key)),
                }
            }
            Ok(())
        }
    }

    fn key(number: u64) -> ObjectKey {
        ObjectKey::new("n", &number.to_string())
    }

    async fn writer() -> (Arc<Memory>, CheckpointWriter) {
        let store = Arc::new(Memory::default());
        let mut writer = CheckpointWriter::new(Arc::clone(&store) as Arc<dyn CheckpointStore>, "pods");
        assert!(writer.load("cluster".to_owned()).await.is_none());
        (store, writer)
    }

    /// Puts an object under a key, with a number that tells its versions apart.
    fn put(writer: &mut CheckpointWriter, at: u64, version: u64) {
        writer.put(&key(at), &Number(version));
    }

    fn stored(store: &Memory) -> (String, Vec<(String, String)>) {
        let (position, objects) = store.stored.lock().unwrap().clone();
        (position, objects.into_iter().collect())
    }

    fn expected(position: &str, objects: &[(u64, u64)]) -> (String, Vec<(String, String)>) {
        let objects = objects.iter().map(|(at, version)| (key(*at).to_string(), version.to_string()));
        (position.to_owned(), objects.collect())
    }

    /// Starts a write that fails.
    async fn fail(store: &Memory, writer: &mut CheckpointWriter, position: &str) {
        store.fails.store(true, Ordering::SeqCst);
        writer.save(position).await;
        while writer.writing.as_ref().is_some_and(|(writing, _)| !writing.is_finished()) {
            tokio::task::yield_now().await;
        }
        store.fails.store(false, Ordering::SeqCst);
    }

    async fn save(writer: &mut CheckpointWriter, position: &str) {
        writer.save(position).await;
        writer.finish().await;
    }

    #[tokio::test]
    async fn a_failed_write_is_repeated_without_undoing_later_changes() {
        let (store, mut writer) = writer().await;
        (1..=3).for_each(|at| put(&mut writer, at, 10));
        fail(&store, &mut writer, "1").await;
        put(&mut writer, 1, 11);
        writer.remove(&key(2));
        save(&mut writer, "2").await;
        assert_eq!(stored(&store), expected("2", &[(1, 11), (3, 10)]));
    }

    #[tokio::test]
    async fn a_failed_write_before_a_list_does_not_bring_objects_back() {
        let (store, mut writer) = writer().await;
        (1..=2).for_each(|at| put(&mut writer, at, 10));
        writer.replace_all();
        save(&mut writer, "1").await;
        put(&mut writer, 3, 10);
        fail(&store, &mut writer, "2").await;
        // The list lacks 1 and 3.
        put(&mut writer, 2, 11);
        writer.remove(&key(1));
        writer.remove(&key(3));
        writer.replace_all();
        writer.remove(&key(4));
        save(&mut writer, "3").await;
        assert_eq!(stored(&store), expected("3", &[(2, 11)]));
    }

    #[tokio::test]
    async fn a_failed_list_still_replaces_everything_later() {
        let (store, mut writer) = writer().await;
        put(&mut writer, 1, 10);
        save(&mut writer, "1").await;
        (2..=3).for_each(|at| put(&mut writer, at, 10));
        writer.replace_all();
        fail(&store, &mut writer, "2").await;
        writer.remove(&key(3));
        put(&mut writer, 4, 10);
        save(&mut writer, "3").await;
        assert_eq!(stored(&store), expected("3", &[(2, 10), (4, 10)]));
    }

    #[tokio::test]
    async fn changes_stay_bounded_while_nothing_can_be_written() {
        let (store, mut writer) = writer().await;
        put(&mut writer, 1, 10);
        writer.replace_all();
        save(&mut writer, "1").await;
        for round in 1..200_u64 {
            for at in round * 1000..(round + 1) * 1000 {
                put(&mut writer, at, at);
                writer.remove(&key(at));
            }
            if !writer.is_abandoned {
                fail(&store, &mut writer, &round.to_string()).await;
            }
            assert_eq!(writer.is_abandoned, round > 4, "more than 4096 removals, in round {round}");
            assert!(writer.unsaved() <= 4096, "{} in round {round}", writer.unsaved());
        }
        assert_eq!(stored(&store), expected("1", &[(1, 10)]));
        writer.remove(&key(1));
        put(&mut writer, 2, 10);
        save(&mut writer, "777").await;
        assert_eq!(stored(&store), expected("1", &[(1, 10)]), "the older checkpoint stays as it is");
        put(&mut writer, 3, 10);
        writer.replace_all();
        save(&mut writer, "888").await;
        assert_eq!(stored(&store), expected("888", &[(2, 10), (3, 10)]));
    }
}
