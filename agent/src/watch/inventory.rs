//! The objects that a watch has reported, and the position up to which they are current. Pure.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::object::{Object, ObjectKey};

/// The known objects and the position. While a list is in progress, the position stands still: the objects of
/// a list come in no order, so that none of their versions is a position to resume from.
#[derive(Debug)]
pub(super) struct Inventory<T> {
    position: Option<String>,
    /// The last position before it expired: no list should be older.
    expired: Option<String>,
    known: HashMap<ObjectKey, Arc<T>>,
    /// The list in progress.
    list: Option<List>,
    has_synced: bool,
    /// A list has to follow: an event that could not be identified may have been a change of any object, or
    /// an object is incomplete.
    is_in_doubt: bool,
    /// Some objects are not whole any more, and will not be by an event that says nothing new.
    is_incomplete: bool,
}

#[derive(Debug, Default)]
struct List {
    named: HashSet<ObjectKey>,
    /// Whether the list has an object that could not be identified.
    is_garbled: bool,
}

/// An object that a change removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Removed {
    pub key: ObjectKey,
    pub uid: String,
}

// === impl Inventory ===

impl<T> Default for Inventory<T> {
    fn default() -> Self {
        Self {
            position: None,
            expired: None,
            known: HashMap::new(),
            list: None,
            has_synced: false,
            is_in_doubt: false,
            is_incomplete: false,
        }
    }
}

impl<T: Object> Inventory<T> {
    /// `None` before the first list and after the position has expired.
    pub(super) fn position(&self) -> Option<&str> {
        self.position.as_deref()
    }

    /// The position, current or expired.
    pub(super) fn last_position(&self) -> Option<&str> {
        self.position.as_deref().or(self.expired.as_deref())
    }

    /// The position up to which no change is missing: none in doubt, nor during a list.
    pub(super) fn certain_position(&self) -> Option<&str> {
        self.position().filter(|_| !self.is_in_doubt && self.list.is_none())
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether a list is in progress.
    pub(super) fn is_listing(&self) -> bool {
        self.list.is_some()
    }

    /// Whether the objects were complete at some time.
    pub(super) fn has_synced(&self) -> bool {
        self.has_synced
    }

    /// Marks the objects as complete. Returns whether they were not before.
    pub(super) fn set_synced(&mut self) -> bool {
        !std::mem::replace(&mut self.has_synced, true)
    }

    /// Takes over an object from a checkpoint.
    pub(super) fn restore(&mut self, key: ObjectKey, object: Arc<T>) {
        self.known.insert(key, object);
    }

    /// All objects, with their keys.
    pub(super) fn objects(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<T>)> {
        self.known.iter()
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<T>> {
        self.known.get(key)
    }

    /// Resumes from the position of a checkpoint.
    pub(super) fn resume(&mut self, position: String) {
        self.position = Some(position);
    }

    /// Adds or updates an object. Returns the object of the same key that it replaces, whose deletion was
    /// missed. `version` becomes the position.
    pub(super) fn apply(&mut self, key: &ObjectKey, object: Arc<T>, version: String) -> Option<Removed> {
        self.list(key);
        self.move_to(version);
        let before = self.known.insert(key.clone(), Arc::clone(&object))?;
        (before.uid() != object.uid()).then(|| Removed::new(key.clone(), &*before))
    }

    /// Removes an object. A late deletion of an earlier object of the same key, with another UID, removes
    /// nothing.
    pub(super) fn delete(&mut self, key: ObjectKey, uid: &str, version: String) -> Option<Removed> {
        self.move_to(version);
        self.known.get(&key).filter(|known| known.uid() == uid)?;
        self.known.remove(&key).map(|object| Removed::new(key, &*object))
    }

    /// Notes an object that exists, and cannot be decoded or says nothing new.
    pub(super) fn pass_over(&mut self, key: &ObjectKey, version: String) {
        self.list(key);
        self.move_to(version);
    }

    /// Returns whether the position has moved.
    pub(super) fn move_to(&mut self, position: String) -> bool {
        let moves = self.list.is_none() && !position.is_empty();
        if moves {
            self.position = Some(position);
        }
        moves
    }

    pub(super) fn begin_list(&mut self) {
        self.list = Some(List::default());
    }

    /// Names an object in the list in progress, if there is one.
    pub(super) fn list(&mut self, key: &ObjectKey) {
        if let Some(list) = &mut self.list {
            list.named.insert(key.clone());
        }
    }

    /// Completes a list. Removes and returns, in the order of their keys, the objects that the list lacks:
    /// their deletions were missed. `None` if any of them may be what the list has garbled; then nothing
    /// changes.
    pub(super) fn end_list(&mut self, position: String) -> Option<Vec<Removed>> {
        let List { named, is_garbled } = self.list.take().unwrap_or_default();
        if is_garbled {
            return None;
        }
        let lost = self.known.extract_if(|key, _| !named.contains(key));
        let mut lost: Vec<_> = lost.map(|(key, object)| Removed::new(key, &*object)).collect();
        lost.sort_by(|a, b| a.key.cmp(&b.key));
        self.move_to(position);
        (self.is_in_doubt, self.is_incomplete) = (false, false);
        Some(lost)
    }

    /// Discards an incomplete list: objects that it has not delivered may still exist.
    pub(super) fn abort_list(&mut self) {
        self.list = None;
    }

    /// Drops the position, so that a relist follows.
    pub(super) fn expire(&mut self) {
        self.expired = self.position.take().or(self.expired.take());
    }

    /// Notes an object or an event that could not be identified.
    pub(super) fn doubt(&mut self) {
        self.is_in_doubt = true;
        if let Some(list) = &mut self.list {
            list.is_garbled = true;
        }
    }

    /// Notes that objects have to be listed once more, also those that have not changed.
    pub(super) fn miss(&mut self) {
        (self.is_in_doubt, self.is_incomplete) = (true, true);
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }

    /// Drops the position if it is in doubt, and returns whether it was.
    pub(super) fn expire_if_in_doubt(&mut self) -> bool {
        let was_in_doubt = std::mem::take(&mut self.is_in_doubt);
        if was_in_doubt {
            self.expire();
        }
        was_in_doubt
    }
}

// === impl Removed ===

impl Removed {
    fn new(key: ObjectKey, object: &impl Object) -> Self {
        Self { key, uid: object.uid().to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, Deserialize, Serialize)]
    struct Named(String);

    impl Object for Named {
        fn key(&self) -> ObjectKey {
            unreachable!("the inventory gets keys")
        }

        fn uid(&self) -> &str {
            &self.0
        }

        fn take_version(&mut self) -> String {
            unreachable!("the inventory gets versions")
        }
    }

    fn object(uid: &str) -> Arc<Named> {
        Arc::new(Named(uid.to_owned()))
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("n", name)
    }

    fn removed(name: &str, uid: &str) -> Removed {
        Removed { key: key(name), uid: uid.to_owned() }
    }

    /// The objects `a/u1` and `b/u2` at position 10.
    fn listed() -> Inventory<Named> {
        let mut inventory = Inventory::default();
        inventory.begin_list();
        for (name, uid) in [("a", "u1"), ("b", "u2")] {
            assert_eq!(inventory.apply(&key(name), object(uid), "99".to_owned()), None);
        }
        assert_eq!(inventory.position(), None, "versions within a list are no positions");
        assert_eq!(inventory.end_list("10".to_owned()).unwrap(), []);
        inventory
    }

    #[test]
    fn events_move_the_position_and_a_list_stops_it() {
        let mut inventory = listed();
        assert_eq!((inventory.position(), inventory.len()), (Some("10"), 2));
        inventory.apply(&key("c"), object("u3"), "11".to_owned());
        assert_eq!(inventory.position(), Some("11"));
        assert!(inventory.move_to("12".to_owned()) && !inventory.move_to(String::new()));
        inventory.begin_list();
        assert!(!inventory.move_to("13".to_owned()));
        inventory.abort_list();
        assert_eq!(
            (inventory.position(), inventory.len()),
            (Some("12"), 3),
            "an aborted list proves nothing"
        );
    }

    #[test]
    fn an_object_of_the_same_name_replaces_its_predecessor() {
        let mut inventory = listed();
        let replaced = inventory.apply(&key("a"), object("u9"), "11".to_owned());
        assert_eq!(replaced, Some(removed("a", "u1")));
        assert_eq!(inventory.delete(key("a"), "u1", "12".to_owned()), None, "a late event");
        assert_eq!(inventory.delete(key("a"), "u9", "13".to_owned()), Some(removed("a", "u9")));
        assert_eq!((inventory.position(), inventory.len()), (Some("13"), 1));
    }

    #[test]
    fn a_list_finds_missed_deletions_but_not_of_objects_that_it_names() {
        let mut inventory = listed();
        inventory.apply(&key("c"), object("u3"), "11".to_owned());
        inventory.begin_list();
        inventory.pass_over(&key("b"), "15".to_owned());
        assert_eq!(inventory.end_list("20".to_owned()).unwrap(), [removed("a", "u1"), removed("c", "u3")]);
        assert_eq!((inventory.position(), inventory.len()), (Some("20"), 1));
    }

    #[test]
    fn doubt_expires_the_position_once_and_a_list_clears_it() {
        let mut inventory = listed();
        assert_eq!(inventory.certain_position(), Some("10"));
        inventory.doubt();
        assert_eq!((inventory.certain_position(), inventory.position()), (None, Some("10")));
        assert!(inventory.expire_if_in_doubt() && !inventory.expire_if_in_doubt());
        assert_eq!((inventory.position(), inventory.last_position()), (None, Some("10")));
        inventory.expire();
        assert_eq!(inventory.last_position(), Some("10"));
        inventory.doubt();
        inventory.begin_list();
        assert_eq!(inventory.end_list("20".to_owned()).unwrap().len(), 2);
        assert!(!inventory.expire_if_in_doubt());
        assert_eq!((inventory.position(), inventory.last_position()), (Some("20"), Some("20")));
    }

    #[test]
    fn a_garbled_list_proves_no_absence_and_moves_no_position() {
        let mut inventory = listed();
        inventory.begin_list();
        assert_eq!(inventory.certain_position(), None);
        inventory.apply(&key("c"), object("u3"), "15".to_owned());
        inventory.doubt();
        assert_eq!(inventory.end_list("20".to_owned()), None);
        assert_eq!((inventory.position(), inventory.len()), (Some("10"), 3));
        assert!(inventory.is_in_doubt() && !inventory.is_listing());
        inventory.begin_list();
        assert_eq!(inventory.end_list("20".to_owned()).unwrap().len(), 3, "the next list is not in doubt");
    }
}
