//! All objects under one monotonic version, and the history of changes: the role of etcd.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    object::{Change, Key, Object},
    resource::Resource,
};

/// The effect of a restart on the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// Watches can resume.
    Kept,
    /// Only the current state is known; all older versions are compacted.
    Compacted,
    /// Restored from a backup: versions restart below those that clients have seen, with the same objects.
    New,
    /// A new cluster: versions restart low, without objects.
    Emptied,
}

/// Objects and history.
#[derive(Debug)]
pub(super) struct Store {
    objects: BTreeMap<Key, Arc<Object>>,
    version: u64,
    history: VecDeque<Arc<Change>>,
    history_limit: usize,
    /// Lists and new watches below this version are refused.
    compacted: u64,
    /// First version with complete history. Watches that were open during a compaction may still read it.
    known: u64,
}

/// The first version of a server, high enough that a new history can start below it.
const FIRST_VERSION: u64 = 1000;

// === impl Store ===

impl Store {
    pub const fn new(history_limit: usize) -> Self {
        Self {
            objects: BTreeMap::new(),
            version: FIRST_VERSION,
            history: VecDeque::new(),
            history_limit,
            compacted: 0,
            known: 0,
        }
    }

    pub const fn version(&self) -> u64 {
        self.version
    }

    pub const fn compacted(&self) -> u64 {
        self.compacted
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    /// Stores a state as the newest version; returns it with its resourceVersion.
    pub fn put(&mut self, key: Key, mut value: Value) -> Value {
        self.version += 1;
        let object = Arc::new(Object::new(key.clone(), self.version, &mut value));
        let old = self.objects.insert(key, Arc::clone(&object));
        self.record(old, Some(object));
        value
    }

    /// Removes an object and returns its last state.
    pub fn remove(&mut self, key: &Key) -> Option<Arc<Object>> {
        let old = self.objects.remove(key)?;
        self.version += 1;
        self.record(Some(Arc::clone(&old)), None);
        Some(old)
    }

    /// The objects of a resource after a key, in order, at a version that is not compacted.
    pub fn at(&self, version: u64, resource: Resource, behind: Option<&Key>) -> Vec<Arc<Object>> {
        let first = Key::new(resource, "", "");
        let from = behind.map_or(Bound::Included(&first), Bound::Excluded);
        let now = self.objects.range((from, Bound::Unbounded));
        let mut state: BTreeMap<&Key, &Arc<Object>> =
            now.take_while(|(key, _)| key.resource == resource).collect();
        // Undoes the changes since that version, newest first.
        for change in self.history.iter().rev().take_while(|change| change.version > version) {
            let Some(object) = change.old.as_ref().or(change.new.as_ref()) else { continue };
            if object.key.resource != resource || behind.is_some_and(|behind| object.key <= *behind) {
                continue;
            }
            match &change.old {
                Some(old) => state.insert(&old.key, old),
                None => state.remove(&object.key),
            };
        }
        state.into_values().map(Arc::clone).collect()
    }

    /// At most `limit` changes after a version; None if the history no longer has them.
    pub fn behind(&self, version: u64, limit: usize) -> Option<Vec<Arc<Change>>> {
        if version < self.known {
            return None;
        }
        let from = self.history.partition_point(|change| change.version <= version);
        Some(self.history.range(from..).take(limit).map(Arc::clone).collect())
    }

    /// Compacts the history up to the current version.
    pub const fn compact(&mut self) {
        self.compacted = self.version;
    }

    /// Applies a restart's effect.
    pub fn restart(&mut self, history: History) {
        match history {
            History::Kept => return,
            History::Compacted => {}
            History::New | History::Emptied => {
                let objects = std::mem::take(&mut self.objects);
                self.version = 1;
                if history == History::New {
                    for (key, object) in objects {
                        self.put(key, object.value());
                    }
                }
            }
        }
        self.compact();
        // No watch survives a restart.
        self.history.clear();
        self.known = self.compacted;
    }

    fn record(&mut self, old: Option<Arc<Object>>, new: Option<Arc<Object>>) {
        self.history.push_back(Arc::new(Change::new(self.version, old, new)));
        if self.history.len() > self.history_limit
            && let Some(dropped) = self.history.pop_front()
        {
            self.known = dropped.version;
            self.compacted = self.compacted.max(dropped.version);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(store: &Store, version: u64) -> Vec<String> {
        let objects = store.at(version, Resource::Pods, None);
        let version =
            |object: &Object| object.value()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        objects.iter().map(|object| format!("{}@{}", object.key.name, version(object))).collect()
    }

    #[test]
    fn any_version_in_the_history_can_be_read() {
        let mut store = Store::new(100);
        let key = |name: &str| Key::new(Resource::Pods, "default", name);
        store.put(key("a"), json!({}));
        store.put(key("b"), json!({}));
        store.put(Key::new(Resource::Nodes, "", "n"), json!({}));
        store.put(key("a"), json!({ "spec": {} }));
        store.remove(&key("b"));
        store.put(key("c"), json!({}));
        assert_eq!(names(&store, 1001), ["a@1001"]);
        assert_eq!(names(&store, 1003), ["a@1001", "b@1002"]);
        assert_eq!(names(&store, 1004), ["a@1004", "b@1002"]);
        assert_eq!(names(&store, 1006), ["a@1004", "c@1006"]);
        assert_eq!(store.at(1004, Resource::Pods, Some(&key("a"))).len(), 1);
    }

    #[test]
    fn the_history_is_bounded() {
        let mut store = Store::new(2);
        for _ in 0..4 {
            store.put(Key::new(Resource::Nodes, "", "n"), json!({}));
        }
        assert_eq!((store.version(), store.compacted()), (1004, 1002));
        assert!(store.behind(1001, 10).is_none());
        assert_eq!(store.behind(1002, 10).unwrap().len(), 2);
    }

    #[test]
    fn an_open_watch_survives_a_compaction() {
        let mut store = Store::new(10);
        store.put(Key::new(Resource::Nodes, "", "n"), json!({}));
        store.compact();
        assert_eq!(store.behind(1000, 10).unwrap().len(), 1);
        store.restart(History::Compacted);
        assert!(store.behind(1000, 10).is_none());
        assert_eq!(store.behind(1001, 10).unwrap().len(), 0);
    }
}
