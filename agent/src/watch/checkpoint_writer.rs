//! Writes checkpoints in the background, one at a time; meanwhile, changes gather.

use std::{collections::HashSet, mem, sync::Arc, time::Duration};

use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::Instant,
};

use super::{
    checkpoint::{Checkpoint, CheckpointStore, Entry, Json, SaveError, Update},
    inventory::Inventory,
    object::{Object, ObjectKey},
};
use crate::{
    backoff::{Backoff, Policy},
    chain::chain,
};

/// The pending changes of one watch.
pub(super) struct CheckpointWriter {
    store: Arc<dyn CheckpointStore>,
    watch: &'static str,
    /// `None` until [`Self::load`].
    identity: Option<String>,
    /// The position of the last write that was started.
    written: Option<String>,
    /// The objects that were changed or removed since then.
    changed: HashSet<ObjectKey>,
    /// The next write has all objects: after a list, a failed write, or too many changes.
    replaces_all: bool,
    /// With the number of its changes.
    writing: Option<(JoinHandle<Written>, usize)>,
    has_lost_objects: bool,
    backoff: Backoff,
    /// No write begins before, because the last one has failed.
    not_before: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Written {
    Durably,
    #[default]
    Failed,
    /// See [`SaveError::Lost`].
    Lost,
}

/// A write after a failed one has all objects, and a full disk stays full for a while.
const BACKOFF: Policy =
    Policy::new(Duration::from_secs(1), Duration::from_secs(60)).reset_after(Duration::from_secs(120));
/// Removals that are kept while a write is in progress. Other changes are as many as the objects.
const MAX_REMOVALS: usize = 4096;

// === impl CheckpointWriter ===

impl CheckpointWriter {
    pub(super) fn new(store: Arc<dyn CheckpointStore>, watch: &'static str) -> Self {
        Self {
            store,
            watch,
            identity: None,
            written: None,
            changed: HashSet::new(),
            replaces_all: false,
            writing: None,
            has_lost_objects: false,
            backoff: Backoff::new(BACKOFF),
            not_before: None,
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

    /// Notes that an object was added, modified or removed.
    pub(super) fn changed(&mut self, key: &ObjectKey) {
        if !self.replaces_all && !self.changed.contains(key) {
            self.changed.insert(key.clone());
        }
    }

    /// The next write has all objects, and removes the others.
    pub(super) fn replace_all(&mut self) {
        self.replaces_all = true;
        self.changed = HashSet::new();
    }

    /// Whether objects have to be listed once more, because the last write missed some. True once.
    pub(super) fn take_lost_objects(&mut self) -> bool {
        mem::take(&mut self.has_lost_objects)
    }

    /// Changes that are not durable yet, of a number of known objects.
    pub(super) fn unsaved(&self, known: usize) -> usize {
        let pending = if self.replaces_all { known } else { self.changed.len() };
        pending + self.writing.as_ref().map_or(0, |(_, changes)| *changes)
    }

    /// The next write does not wait, although the last one may have failed: the watch ends.
    pub(super) fn retry_at_once(&mut self) {
        self.not_before = None;
    }

    /// Starts to write the changes up to a position, unless a write is in progress, the last one has failed a
    /// moment ago, or the position has not moved. `inventory` has the objects as they are at the position.
    pub(super) async fn save<T: Object>(&mut self, position: &str, inventory: &Inventory<T>) {
        // Bounds the memory while a write hangs.
        if self.changed.len() > inventory.len() + MAX_REMOVALS {
            self.replace_all();
        }
        if self.writing.as_ref().is_some_and(|(writing, _)| !writing.is_finished()) {
            return;
        }
        self.finish().await;
        if self.not_before.is_some_and(|at| Instant::now() < at) {
            return;
        }
        let has_moved = self.written.as_deref() != Some(position);
        let Some(identity) = self.identity.clone().filter(|_| has_moved || self.replaces_all) else { return };
        self.written = Some(position.to_owned());
        let replaces_all = mem::take(&mut self.replaces_all);
        let entry = |object: &Arc<T>| match object.is_writable() {
            true => Entry::Written(Arc::clone(object) as Arc<dyn Json>),
            false => Entry::Kept,
        };
        let objects: Vec<_> = if replaces_all {
            inventory.objects().map(|(key, object)| (key.clone(), entry(object))).collect()
        } else {
            let changed = mem::take(&mut self.changed).into_iter();
            changed.map(|key| (key.clone(), inventory.get(&key).map_or(Entry::Removed, entry))).collect()
        };
        let changes = objects.len();
        let update = Update { position: position.to_owned(), replaces_all, objects };
        let (store, watch) = (Arc::clone(&self.store), self.watch);
        let writing = spawn_blocking(move || match store.save(watch, &identity, &update) {
            Ok(()) => {
                update.objects.iter().for_each(|(_, entry)| entry.saved());
                Written::Durably
            }
            Err(error) => {
                tracing::warn!(watch, error = chain(&error), "cannot write the checkpoint; retrying");
                if matches!(error, SaveError::Lost) { Written::Lost } else { Written::Failed }
            }
        });
        self.writing = Some((writing, changes));
    }

    /// Waits for the write in progress. After a failed one, the next is later and has all objects: a position
    /// is never durable without the changes before it.
    pub(super) async fn finish(&mut self) {
        let Some((writing, _)) = self.writing.take() else { return };
        let written = writing.await.unwrap_or_default();
        self.not_before = None;
        if written != Written::Durably {
            let now = Instant::now();
            self.not_before = Some(now + self.backoff.next(now));
            self.written = None;
            self.replace_all();
            self.has_lost_objects |= written == Written::Lost;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        io,
        sync::{
            Mutex,
            atomic::{AtomicBool, Ordering},
        },
    };

    use serde::{Deserialize, Serialize};

    use super::*;

    /// An object with a number that tells its versions apart, and that can be written until it is saved.
    #[derive(Debug, Deserialize, Serialize)]
    #[serde(transparent)]
    struct Number(u64, #[serde(skip)] AtomicBool);

    impl Object for Number {
        fn key(&self) -> ObjectKey {
            unreachable!("the inventory gets keys")
        }

        fn uid(&self) -> &str {
            "u"
        }

        fn take_version(&mut self) -> String {
            unreachable!("the inventory gets versions")
        }

        fn is_writable(&self) -> bool {
            !self.1.load(Ordering::SeqCst)
        }

        fn saved(&self) {
            self.1.store(true, Ordering::SeqCst);
        }
    }

    /// Position and objects that are stored; writes fail on demand.
    #[derive(Default)]
    struct Memory {
        stored: Mutex<(String, BTreeMap<String, String>)>,
        fails: AtomicBool,
        attempts: Mutex<usize>,
        /// The changes of the last update.
        changes: Mutex<usize>,
    }

    impl CheckpointStore for Memory {
        fn load(&self, _: &str, _: &str) -> Option<Checkpoint> {
            None
        }

        fn has(&self, _: &str) -> bool {
            false
        }

        fn save(&self, _: &str, _: &str, update: &Update) -> Result<(), SaveError> {
            *self.attempts.lock().unwrap() += 1;
            if self.fails.load(Ordering::SeqCst) {
                return Err(SaveError::Failed("the disk is full".into()));
            }
            let mut stored = self.stored.lock().unwrap();
            let before = stored.1.clone();
            let mut written = 0;
            if update.replaces_all {
                stored.1.clear();
            }
            stored.0.clone_from(&update.position);
            for (key, entry) in &update.objects {
                let json = match entry {
                    Entry::Removed => {
                        stored.1.remove(key.as_str());
                        written += 1;
                        continue;
                    }
                    Entry::Kept => before.get(key.as_str()).ok_or(SaveError::Lost)?.clone(),
                    Entry::Written(object) => {
                        let mut json = Vec::new();
                        object.write(&mut json).unwrap();
                        written += 1;
                        String::from_utf8(json).unwrap()
                    }
                };
                stored.1.insert(key.to_string(), json);
            }
            *self.changes.lock().unwrap() = written;
            Ok(())
        }

        fn remove(&self, _: &str) -> io::Result<()> {
            unreachable!("no watch ends")
        }
    }

    fn key(number: u64) -> ObjectKey {
        ObjectKey::new("n", &number.to_string())
    }

    /// A watch: its objects, and the writer of its checkpoints.
    struct Watch {
        store: Arc<Memory>,
        writer: CheckpointWriter,
        inventory: Inventory<Number>,
    }

    impl Watch {
        async fn start() -> Self {
            let store = Arc::new(Memory::default());
            let mut writer = CheckpointWriter::new(Arc::clone(&store) as Arc<dyn CheckpointStore>, "pods");
            assert!(writer.load("cluster".to_owned()).await.is_none());
            Self { store, writer, inventory: Inventory::default() }
        }

        fn put(&mut self, at: u64, version: u64) {
            self.inventory.apply(&key(at), Arc::new(Number(version, AtomicBool::default())), String::new());
            self.writer.changed(&key(at));
        }

        fn remove(&mut self, at: u64) {
            self.inventory.delete(key(at), "u", String::new());
            self.writer.changed(&key(at));
        }

        async fn save(&mut self, position: &str) {
            self.writer.save(position, &self.inventory).await;
            self.writer.finish().await;
        }

        /// As [`Self::save`], however short ago a write has failed.
        async fn save_at_once(&mut self, position: &str) {
            self.writer.finish().await;
            self.writer.retry_at_once();
            self.save(position).await;
        }

        /// Starts a write that fails.
        async fn fail(&mut self, position: &str) {
            self.store.fails.store(true, Ordering::SeqCst);
            self.writer.save(position, &self.inventory).await;
            while self.writer.writing.as_ref().is_some_and(|(writing, _)| !writing.is_finished()) {
                tokio::task::yield_now().await;
            }
            self.store.fails.store(false, Ordering::SeqCst);
        }

        fn stored(&self) -> (String, Vec<(String, String)>) {
            let (position, objects) = self.store.stored.lock().unwrap().clone();
            (position, objects.into_iter().collect())
        }

        fn changes(&self) -> usize {
            *self.store.changes.lock().unwrap()
        }
    }

    fn expected(position: &str, objects: &[(u64, u64)]) -> (String, Vec<(String, String)>) {
        let objects = objects.iter().map(|(at, version)| (key(*at).to_string(), version.to_string()));
        (position.to_owned(), objects.collect())
    }

    #[tokio::test]
    async fn a_write_has_only_what_changed_since_the_one_before() {
        let mut watch = Watch::start().await;
        (1..=3).for_each(|at| watch.put(at, 10));
        watch.writer.replace_all();
        watch.save("1").await;
        assert_eq!((watch.stored(), watch.changes()), (expected("1", &[(1, 10), (2, 10), (3, 10)]), 3));
        watch.put(1, 11);
        watch.put(1, 12);
        watch.remove(2);
        assert_eq!(watch.writer.unsaved(2), 2);
        watch.save("2").await;
        assert_eq!((watch.stored(), watch.changes()), (expected("2", &[(1, 12), (3, 10)]), 2));
        watch.put(3, 13);
        watch.save("2").await;
        assert_eq!(watch.stored(), expected("2", &[(1, 12), (3, 10)]), "the position has not moved");
    }

    #[tokio::test]
    async fn a_write_of_all_objects_leaves_those_that_are_saved_where_they_are() {
        let mut watch = Watch::start().await;
        (1..=3).for_each(|at| watch.put(at, 10));
        watch.writer.replace_all();
        watch.save("1").await;
        watch.put(1, 11);
        watch.fail("2").await;
        watch.remove(2);
        watch.save_at_once("3").await;
        assert_eq!((watch.stored(), watch.changes()), (expected("3", &[(1, 11), (3, 10)]), 1));
        assert!(!watch.writer.take_lost_objects());
    }

    #[tokio::test]
    async fn objects_that_are_neither_here_nor_stored_are_lost_until_all_are_listed() {
        let mut watch = Watch::start().await;
        (1..=2).for_each(|at| watch.put(at, 10));
        watch.writer.replace_all();
        watch.save("1").await;
        watch.store.stored.lock().unwrap().1.clear();
        watch.fail("2").await;
        watch.save_at_once("2").await;
        assert!(watch.writer.take_lost_objects() && !watch.writer.take_lost_objects());
        (1..=2).for_each(|at| watch.put(at, 10));
        watch.save_at_once("3").await;
        assert_eq!(watch.stored(), expected("3", &[(1, 10), (2, 10)]));
        assert!(!watch.writer.take_lost_objects());
    }

    #[tokio::test]
    async fn a_failed_write_is_repeated_with_later_changes() {
        let mut watch = Watch::start().await;
        (1..=3).for_each(|at| watch.put(at, 10));
        watch.fail("1").await;
        watch.put(1, 11);
        watch.remove(2);
        watch.save_at_once("2").await;
        assert_eq!(watch.stored(), expected("2", &[(1, 11), (3, 10)]));
    }

    #[tokio::test]
    async fn a_failed_write_is_repeated_at_the_same_position() {
        let mut watch = Watch::start().await;
        watch.put(1, 10);
        watch.fail("1").await;
        watch.save_at_once("1").await;
        assert_eq!(watch.stored(), expected("1", &[(1, 10)]));
    }

    #[tokio::test(start_paused = true)]
    async fn after_failed_writes_the_next_ones_come_ever_later_up_to_a_minute() {
        let mut watch = Watch::start().await;
        watch.put(1, 10);
        watch.store.fails.store(true, Ordering::SeqCst);
        let began = Instant::now();
        let mut at = Vec::new();
        for second in 0..250 {
            let before = *watch.store.attempts.lock().unwrap();
            watch.save(&second.to_string()).await;
            if *watch.store.attempts.lock().unwrap() > before {
                at.push(began.elapsed().as_secs());
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(at, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
        watch.store.fails.store(false, Ordering::SeqCst);
        tokio::time::advance(Duration::from_secs(60)).await;
        watch.save("300").await;
        assert_eq!(watch.stored(), expected("300", &[(1, 10)]));
        watch.put(1, 11);
        watch.save("301").await;
        assert_eq!(watch.stored(), expected("301", &[(1, 11)]), "no pause after a write that succeeded");
    }

    #[tokio::test]
    async fn removals_stay_bounded_while_a_write_hangs() {
        let mut watch = Watch::start().await;
        watch.put(0, 10);
        watch.writer.replace_all();
        watch.save("1").await;
        let (done, hangs) = tokio::sync::oneshot::channel::<()>();
        let hanging = tokio::spawn(async move { hangs.await.map_or(Written::Failed, |()| Written::Durably) });
        watch.writer.writing = Some((hanging, 0));
        for at in 1..=4097 {
            watch.put(at, 10);
            watch.remove(at);
            assert_eq!(watch.writer.unsaved(1), usize::try_from(at).unwrap());
        }
        watch.writer.save("2", &watch.inventory).await;
        assert_eq!(watch.writer.unsaved(1), 4097, "as many as the object and 4096 removals");
        watch.put(4098, 10);
        watch.remove(4098);
        watch.writer.save("3", &watch.inventory).await;
        assert_eq!(watch.writer.unsaved(1), 1, "all objects instead");
        done.send(()).unwrap();
        watch.writer.finish().await;
        watch.save("4").await;
        assert_eq!((watch.stored(), watch.changes()), (expected("4", &[(0, 10)]), 0));
    }
}
