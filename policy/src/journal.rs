//! Ordered maps that can take back what was changed since the last commit.
//!
//! All state of the compiler is in such maps, so that a change that does not fit leaves nothing behind.

use std::{
    borrow::Borrow,
    collections::{
        BTreeMap,
        btree_map::{self, Entry},
    },
    ops::RangeBounds,
};

/// A map with an undo log.
#[derive(Debug, Clone)]
pub(crate) struct Map<K, V> {
    entries: BTreeMap<K, V>,
    /// Keys and their earlier values, oldest first.
    undo: Vec<(K, Option<V>)>,
    /// The least size since the nodes were filled.
    packed: usize,
}

/// A set with an undo log.
#[derive(Debug, Clone)]
pub(crate) struct Set<K>(Map<K, ()>);

/// What [`Map::put`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    Changed,
    Unchanged,
    /// Nothing: there is no room for another entry.
    Full,
}

/// By so many entries a map may grow before its nodes are filled again, besides a quarter of its size.
const SLACK: usize = 256;

// === impl Map ===

impl<K: Ord + Clone, V: Clone> Map<K, V> {
    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key)
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> btree_map::Iter<'_, K, V> {
        self.entries.iter()
    }

    pub(crate) fn values(&self) -> btree_map::Values<'_, K, V> {
        self.entries.values()
    }

    pub(crate) fn range(&self, range: impl RangeBounds<K>) -> btree_map::Range<'_, K, V> {
        self.entries.range(range)
    }

    /// Returns the earlier value.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let earlier = self.entries.insert(key.clone(), value);
        self.undo.push((key, earlier.clone()));
        earlier
    }

    /// Sets or removes an entry. A map with so many entries gets no further one.
    pub(crate) fn put(&mut self, key: &K, value: Option<&V>, capacity: usize) -> Put
    where
        V: PartialEq,
    {
        let is_full = self.len() >= capacity;
        let earlier = match (self.entries.entry(key.clone()), value) {
            (Entry::Vacant(_), None) => return Put::Unchanged,
            (Entry::Vacant(_), Some(_)) if is_full => return Put::Full,
            (Entry::Vacant(place), Some(value)) => {
                place.insert(value.clone());
                None
            }
            (Entry::Occupied(place), Some(value)) if place.get() == value => return Put::Unchanged,
            (Entry::Occupied(mut place), Some(value)) => Some(place.insert(value.clone())),
            (Entry::Occupied(place), None) => Some(place.remove()),
        };
        self.undo.push((key.clone(), earlier));
        Put::Changed
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let earlier = self.entries.remove(key)?;
        self.undo.push((key.clone(), Some(earlier.clone())));
        Some(earlier)
    }

    pub(crate) fn commit(&mut self) {
        // A large load must not keep its log's memory.
        self.undo = Vec::new();
        self.packed = self.packed.min(self.len());
    }

    /// Fills the nodes, if the map has grown: keys that arrive in order leave each node half empty. Returns
    /// whether it has.
    pub(crate) fn pack(&mut self) -> bool {
        let has_grown = self.len() > self.packed + self.packed / 4 + SLACK;
        if has_grown {
            self.entries = std::mem::take(&mut self.entries).into_iter().collect();
            self.packed = self.len();
        }
        has_grown
    }

    pub(crate) fn rollback(&mut self) {
        for (key, earlier) in std::mem::take(&mut self.undo).into_iter().rev() {
            match earlier {
                Some(value) => self.entries.insert(key, value),
                None => self.entries.remove(&key),
            };
        }
    }
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), undo: Vec::new(), packed: 0 }
    }
}

// === impl Set ===

impl<K: Ord + Clone> Set<K> {
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.0.contains(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn range(&self, range: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = &K> {
        self.0.range(range).map(|(key, ())| key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(key, ())| key)
    }

    /// Whether the key is new.
    pub(crate) fn insert(&mut self, key: K) -> bool {
        let Entry::Vacant(place) = self.0.entries.entry(key) else { return false };
        self.0.undo.push((place.key().clone(), None));
        place.insert(());
        true
    }

    /// Whether the key was there.
    pub(crate) fn remove(&mut self, key: &K) -> bool {
        self.0.remove(key).is_some()
    }

    pub(crate) fn commit(&mut self) {
        self.0.commit();
    }

    pub(crate) fn pack(&mut self) -> bool {
        self.0.pack()
    }

    pub(crate) fn rollback(&mut self) {
        self.0.rollback();
    }
}

impl<K> Default for Set<K> {
    fn default() -> Self {
        Self(Map::default())
    }
}

/// Implements `commit`, `pack` and `rollback` for a struct of maps and sets.
macro_rules! journaled {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $name {
            pub(crate) fn commit(&mut self) {
                $(self.$field.commit();)*
            }

            /// Packs the first that has grown. Returns whether one has.
            pub(crate) fn pack(&mut self) -> bool {
                $(if self.$field.pack() {
                    return true;
                })*
                false
            }

            pub(crate) fn rollback(&mut self) {
                $(self.$field.rollback();)*
            }
        }
    };
}

pub(crate) use journaled;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollback_restores_what_was_committed() {
        let mut map = Map::default();
        map.insert("a", 1);
        map.insert("b", 2);
        map.commit();
        map.insert("a", 3);
        map.insert("a", 4);
        map.remove(&"b");
        map.remove(&"c");
        map.insert("c", 5);
        map.remove(&"c");
        map.insert("d", 6);
        map.rollback();
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&"a", &1), (&"b", &2)]);
        map.rollback();
        assert_eq!(map.len(), 2);
    }

    #[test]
    fn a_map_keeps_its_entries_while_it_grows_and_shrinks() {
        let mut map = Map::default();
        for turn in 0..3 {
            for n in 0..4 * SLACK {
                map.insert(n, turn);
                map.commit();
                map.pack();
            }
            assert!(map.iter().map(|(n, turn)| (*n, *turn)).eq((0..4 * SLACK).map(|n| (n, turn))));
            for n in SLACK..4 * SLACK {
                map.remove(&n);
                map.commit();
                map.pack();
            }
            assert_eq!(map.len(), SLACK);
        }
    }

    #[test]
    fn a_map_is_packed_only_after_it_has_grown_by_a_quarter() {
        let mut map = Map::default();
        let mut add = |entries: std::ops::Range<usize>| {
            entries.for_each(|n| assert!(map.insert(n, n).is_none()));
            map.commit();
            assert_eq!(map.pack(), map.packed == map.len());
            assert!(!map.pack(), "once");
            map.packed
        };
        assert_eq!(add(0..8 * SLACK), 8 * SLACK);
        assert_eq!(add(8 * SLACK..11 * SLACK), 8 * SLACK);
        assert_eq!(add(11 * SLACK..12 * SLACK), 12 * SLACK);
    }

    #[test]
    fn what_is_put_changes_something_or_not_or_does_not_fit_and_is_taken_back() {
        let mut map = Map::default();
        let mut put = |key, value: Option<i32>| map.put(&key, value.as_ref(), 2);
        assert_eq!([put("a", Some(1)), put("b", Some(2))], [Put::Changed; 2]);
        assert_eq!([put("a", Some(1)), put("c", None)], [Put::Unchanged; 2]);
        assert_eq!(put("c", Some(3)), Put::Full);
        map.commit();
        let mut put = |key, value: Option<i32>| map.put(&key, value.as_ref(), 2);
        assert_eq!([put("a", Some(4)), put("b", None), put("c", Some(3))], [Put::Changed; 3]);
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&"a", &4), (&"c", &3)]);
        map.rollback();
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&"a", &1), (&"b", &2)]);
    }

    #[test]
    fn sets_say_what_is_new() {
        let mut set = Set::default();
        assert!(set.insert(1) && !set.insert(1) && set.remove(&1) && !set.remove(&1));
        set.insert(2);
        set.commit();
        set.remove(&2);
        set.rollback();
        assert!(set.contains(&2));
    }
}
