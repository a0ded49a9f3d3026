//! Changes that wait, at most one for each object.

use std::collections::{BTreeMap, HashMap};

use ferrule_policy::{Change, ObjectKey};

/// Changes in the order of their arrival, of each object only the latest. Holds no more changes than the
/// cluster has objects.
#[derive(Debug, Default)]
pub(super) struct Queue {
    changes: BTreeMap<u64, Change>,
    places: HashMap<ObjectKey, u64>,
    next: u64,
}

// === impl Queue ===

impl Queue {
    /// Adds a change, in place of an earlier one of the same object.
    pub(super) fn push(&mut self, change: Change) {
        let key = change.object();
        self.remove(&key);
        self.places.insert(key, self.next);
        self.changes.insert(self.next, change);
        self.next += 1;
    }

    /// Takes the change of an object.
    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Change> {
        self.places.remove(key).and_then(|place| self.changes.remove(&place))
    }

    pub(super) fn contains(&self, key: &ObjectKey) -> bool {
        self.places.contains_key(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Change> {
        self.changes.values()
    }

    /// Takes all changes, in their order.
    pub(super) fn take(&mut self) -> Vec<Change> {
        self.places.clear();
        std::mem::take(&mut self.changes).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use ferrule_policy::{Endpoint, EndpointId};

    use super::*;

    fn endpoint(id: u32, uid: &str) -> Change {
        Change::Endpoint(Endpoint { id: EndpointId(id), uid: uid.to_owned(), addresses: Vec::new() })
    }

    #[test]
    fn of_each_object_only_the_latest_change_waits_at_its_own_place() {
        let mut queue = Queue::default();
        for _ in 0..1000 {
            for change in [endpoint(1, "a"), endpoint(2, "b"), Change::EndpointGone { id: EndpointId(1) }] {
                queue.push(change);
            }
            queue.push(Change::PodGone { uid: "a".to_owned() });
        }
        assert_eq!(queue.iter().count(), 3);
        assert!(queue.contains(&ObjectKey::Endpoint(EndpointId(1))));
        let taken = queue.take();
        let kinds: Vec<_> = taken.iter().map(Change::object).collect();
        let expected = [
            ObjectKey::Endpoint(EndpointId(2)),
            ObjectKey::Endpoint(EndpointId(1)),
            ObjectKey::Pod("a".to_owned()),
        ];
        assert_eq!(kinds, expected);
        assert!(matches!(taken[1], Change::EndpointGone { .. }));
        assert!(queue.is_empty() && !queue.contains(&expected[0]));
    }

    #[test]
    fn a_pod_and_a_node_of_one_uid_are_two_objects() {
        let mut queue = Queue::default();
        queue.push(Change::PodGone { uid: "a".to_owned() });
        queue.push(Change::NodeGone { uid: "a".to_owned() });
        assert_eq!(queue.iter().count(), 2);
        assert!(queue.remove(&ObjectKey::Pod("a".to_owned())).is_some());
        assert_eq!(queue.iter().count(), 1);
    }
}
