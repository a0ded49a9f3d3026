//! All objects, under one version that only grows, and the history of their changes: what etcd is to the real one.

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

/// What becomes of the history when the server is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// Watches go on where they were.
    Kept,
    /// Only the present is known: all older versions are gone.
    Compacted,
    /// As from a backup that is older than all clients: versions start low again, for the same objects.
    New,
    /// As of a new cluster: versions start low again, and there are no objects.
    Emptied,
}

/// The objects and their history.
#[derive(Debug)]
pub(super) struct Store {
    objects: BTreeMap<Key, Arc<Object>>,
    version: u64,
    history: VecDeque<Arc<Change>>,
    history_limit: usize,
    /// Lists and new watches from before this version are refused.
    compacted: u64,
    /// The history is whole from here. Watches that were open when it was compacted may still read it.
    known: u64,
}

/// The first version of a server, high enough that those of a new history are lower.
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

    /// Stores a state as the newest one; gives it with its version.
    pub fn put(&mut self, key: Key, mut value: Value) -> Value {
        self.version += 1;
        let object = Arc::new(Object::new(key.clone(), self.version, &mut value));
        let old = self.objects.insert(key, Arc::clone(&object));
        self.record(old, Some(object));
        value
    }

    /// Removes an object; gives its last state.
    pub fn remove(&mut self, key: &Key) -> Option<Arc<Object>> {
        let old = self.objects.remove(key)?;
        self.version += 1;
        self.record(Some(Arc::clone(&old)), None);
        Some(old)
    }

    /// The objects of a resource behind a key, in order, as they were at a version that is not compacted.
    pub fn at(&self, version: u64, resource: Resource, behind: Option<&Key>) -> Vec<Arc<Object>> {
        let first = Key::new(resource, "", "");
        let from = behind.map_or(Bound::Included(&first), Bound::Excluded);
        let now = self.objects.range((from, Bound::Unbounded));
        let mut state: BTreeMap<&Key, &Arc<Object>> =
            now.take_while(|(key, _)| key.resource == resource).collect();
        // Back in time, from change to change.
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

    /// At most `limit` changes behind a version; nothing if they are not known any more.
    pub fn behind(&self, version: u64, limit: usize) -> Option<Vec<Arc<Change>>> {
        if version < self.known {
            return None;
        }
        let from = self.history.partition_point(|change| change.version <= version);
        Some(self.history.range(from..).take(limit).map(Arc::clone).collect())
    }

    /// Forgets how it came to be as it is now.
    pub const fn compact(&mut self) {
        self.compacted = self.version;
    }

    /// What a restart does to the history.
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
        // No watch outlives a restart.
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
    fn any_known_version_can_be_looked_at_again() {
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
    fn the_history_has_a_bound() {
        let mut store = Store::new(2);
        for _ in 0..4 {
            store.put(Key::new(Resource::Nodes, "", "n"), json!({}));
        }
        assert_eq!((store.version(), store.compacted()), (1004, 1002));
        assert!(store.behind(1001, 10).is_none());
        assert_eq!(store.behind(1002, 10).unwrap().len(), 2);
    }

    #[test]
    fn an_open_watch_survives_compaction() {
        let mut store = Store::new(10);
        store.put(Key::new(Resource::Nodes, "", "n"), json!({}));
        store.compact();
        assert_eq!(store.behind(1000, 10).unwrap().len(), 1);
        store.restart(History::Compacted);
        assert!(store.behind(1000, 10).is_none());
        assert_eq!(store.behind(1001, 10).unwrap().len(), 0);
    }
}
