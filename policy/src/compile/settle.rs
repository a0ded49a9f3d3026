//! Addresses, and edges of blocks, move to their classes.
//!
//! A change of predicates splits or merges classes, some of which have most of the cluster's addresses. So
//! the larger part of a class keeps the class's number, and only the smaller part moves.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    mem::take,
    sync::Arc,
};

use super::{Compiler, classes::ClassKey};
use crate::{
    Addr, Prefix, Refused,
    rows::{ClassId, Op, PeerRow},
    store::{Kind, Work},
};

/// The key of an address's class; `None` without a row.
pub(super) type Key = Option<Arc<ClassKey>>;

/// The earlier and the later keys of addresses.
pub(super) type Keys = BTreeSet<(Key, Key)>;

/// What has moved.
#[derive(Default)]
pub(super) struct Moved {
    pub(super) keys: Keys,
    /// Whether some address has become a Service's, or this node's: packets to it are judged after their
    /// translation from now on.
    pub(super) is_translated: bool,
    /// What has no row any more; the rows are still there.
    pub(super) gone: Vec<Place>,
}

/// What has a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Address(Addr),
    Edge(Prefix),
}

/// What moves to a key, each from a class.
type Arrivals = BTreeMap<Arc<ClassKey>, Vec<(Option<ClassId>, Place)>>;

/// The moves out of a class, in the order of the new keys.
type Moves = Vec<(Arc<ClassKey>, Vec<Place>)>;

// === impl Compiler ===

impl Compiler {
    /// Moves what the work names to where it belongs.
    ///
    /// # Errors
    /// If the classes had too many predicates. Nothing has moved then.
    pub(super) fn settle(&mut self, work: &mut Work) -> Result<Moved, Refused> {
        let addresses = take(&mut work.addresses).into_iter().map(Place::Address);
        let edges = take(&mut self.blocks.dirty).into_iter().map(Place::Edge);
        let mut moved = Moved::default();
        let mut to = Arrivals::new();
        let mut matches = self.classes.matches();
        for place in addresses.chain(edges) {
            let (old, new) = (self.class_of(place), self.key_of(place));
            let old_key = old.and_then(|id| self.classes.key(id)).cloned();
            moved.is_translated |= self.becomes_translated(place, &new);
            let stays =
                old_key == new || (old == Some(ClassId::NONE) && new.as_ref().is_some_and(|it| it.is_none()));
            // No row and the row of no class differ.
            if stays && old.is_some() == new.is_some() {
                if let (Some(class), Some(key)) = (old, &new) {
                    self.write(place, class, key.is_pod);
                }
                continue;
            }
            if let Place::Address(_) = place {
                moved.keys.insert((old_key, new.clone()));
            }
            match new {
                Some(new) => match to.entry(new) {
                    Entry::Occupied(mut arrivals) => arrivals.get_mut().push((old, place)),
                    Entry::Vacant(first) => {
                        if self.classes.id(first.key()).is_none() {
                            matches += first.key().predicates.len();
                            self.out.may_match(matches)?;
                        }
                        first.insert(vec![(old, place)]);
                    }
                },
                None => moved.gone.push(place),
            }
        }
        let from = departures(to);
        let leaving: BTreeSet<_> = from.keys().copied().collect();
        for (old, mut moves) in from {
            let largest = moves.iter().enumerate().max_by_key(|(_, (_, places))| places.len());
            let kept = old.zip(largest).filter(|(old, (_, moved))| self.may_rename(*old, moved, &leaving));
            let kept = kept.map(|(old, (at, _))| (old, at));
            let kept = kept.map(|(old, at)| (old, moves.remove(at)));
            // The rows of all classes first: rows of one map can be written by one system call.
            let moves: Vec<_> =
                moves.into_iter().map(|(key, places)| (self.class_for(&key), key.is_pod, places)).collect();
            for (class, is_pod, places) in moves {
                places.into_iter().for_each(|place| self.put(place, class, is_pod));
            }
            if let Some((class, (key, places))) = kept {
                self.rename(class, &key, places);
            }
        }
        Ok(moved)
    }

    /// Removes the rows of what has no class any more.
    pub(super) fn remove_gone(&mut self, gone: Vec<Place>) {
        for place in gone {
            if let Some(class) = self.class_of(place) {
                self.classes.resize(class, |size| size.saturating_sub(1));
            }
            self.out.emit(match place {
                Place::Address(addr) => Op::Peer(addr, None),
                Place::Edge(prefix) => Op::Block(prefix, None),
            });
        }
    }

    /// Whether it costs less to give a class the key of what leaves it than to move what leaves.
    fn may_rename(
        &self,
        class: ClassId,
        (key, places): &(Arc<ClassKey>, Vec<Place>),
        leaving: &BTreeSet<Option<ClassId>>,
    ) -> bool {
        let Some(old) = self.classes.key(class) else { return false };
        let count = places.len();
        let existing = self.classes.id(key);
        // The rows of named ports are several, so that they cannot be changed at once.
        old.is_pod == key.is_pod
            && old.ports == key.ports
            && !key.is_none()
            && 2 * count > self.classes.size(class)
            && existing.is_none_or(|id| self.classes.size(id) < count && !leaving.contains(&Some(id)))
    }

    /// Gives a class another key; `places` are its members that get this key.
    fn rename(&mut self, class: ClassId, key: &Arc<ClassKey>, places: Vec<Place>) {
        let Some(old) = self.classes.key(class).cloned() else { return };
        places.iter().for_each(|place| self.write(*place, class, old.is_pod));
        if places.len() < self.classes.size(class) {
            let moved: BTreeSet<_> = places.into_iter().collect();
            let rest: Vec<_> = self.members(class).filter(|place| !moved.contains(place)).collect();
            let other = self.add_class(old.clone());
            rest.into_iter().for_each(|place| self.put(place, other, old.is_pod));
        }
        let existing = self.classes.id(key);
        let mut rulesets = self.rulesets.asking(&old, &self.predicates);
        rulesets.extend(self.rulesets.asking(key, &self.predicates));
        self.classes.rename(class, key.clone());
        for id in rulesets {
            if let Some(ruleset) = self.rulesets.get(id) {
                ruleset.write(id, class, key, &mut self.out);
            }
        }
        if let Some(smaller) = existing {
            let members: Vec<_> = self.members(smaller).collect();
            members.into_iter().for_each(|place| self.put(place, class, key.is_pod));
        }
    }

    /// The class with a key; a new one gets its rows before anything moves there.
    fn class_for(&mut self, key: &Arc<ClassKey>) -> ClassId {
        if key.is_none() {
            return ClassId::NONE;
        }
        self.classes.id(key).unwrap_or_else(|| self.add_class(key.clone()))
    }

    fn add_class(&mut self, key: Arc<ClassKey>) -> ClassId {
        let class = self.classes.add(key.clone());
        self.rulesets.write(class, &key, &self.predicates, &mut self.out);
        class
    }

    fn put(&mut self, place: Place, class: ClassId, is_pod: bool) {
        if let Some(old) = self.class_of(place) {
            self.classes.resize(old, |size| size.saturating_sub(1));
        }
        self.classes.resize(class, |size| size + 1);
        self.write(place, class, is_pod);
    }

    /// Writes the row of what has a class.
    fn write(&mut self, place: Place, class: ClassId, is_pod: bool) {
        let op = match place {
            Place::Edge(prefix) => Op::Block(prefix, Some(class)),
            Place::Address(addr) => {
                let (is_service, is_own_node) = self.marks_of(addr, is_pod);
                Op::Peer(addr, Some(PeerRow { class, is_pod, is_service, is_own_node }))
            }
        };
        self.out.blame(None);
        self.out.emit(op);
    }

    /// Whether the row of an address has to get a mark that it does not have yet.
    fn becomes_translated(&self, place: Place, key: &Key) -> bool {
        let Place::Address(addr) = place else { return false };
        let (is_service, is_own_node) = self.marks_of(addr, key.as_ref().is_some_and(|it| it.is_pod));
        let old = self.out.rows.peers.get(&addr);
        is_service && old.is_none_or(|it| !it.is_service)
            || is_own_node && old.is_none_or(|it| !it.is_own_node)
    }

    /// Whether an address is a Service's, and whether it is this node's.
    fn marks_of(&self, addr: Addr, is_pod: bool) -> (bool, bool) {
        let marks = &self.store.marks;
        (!is_pod && marks.is_service(addr), marks.is_own_node(addr))
    }

    fn class_of(&self, place: Place) -> Option<ClassId> {
        match place {
            Place::Address(addr) => self.out.rows.peers.get(&addr).map(|row| row.class),
            Place::Edge(prefix) => self.out.rows.blocks.get(&prefix).copied(),
        }
    }

    /// The key of the class that a place should have.
    fn key_of(&self, place: Place) -> Key {
        let (is_pod, mut predicates, ports) = match place {
            Place::Edge(prefix) if self.blocks.has(prefix) => {
                (false, self.blocks.containing(prefix), Vec::new())
            }
            Place::Edge(_) => return None,
            Place::Address(addr) => {
                let party = self.store.owner(addr);
                let is_pod = party.is_some_and(|it| it.kind == Kind::Pod);
                let held = party.into_iter().flat_map(|it| self.predicates.of_group(it.group));
                let mut predicates: Vec<_> = held.collect();
                let marks = &self.store.marks;
                if !is_pod && predicates.is_empty() && !marks.is_service(addr) && !marks.is_own_node(addr) {
                    return None;
                }
                predicates.extend(self.blocks.of(addr));
                let group = party.and_then(|it| self.store.group(it));
                let ports = group.into_iter().flat_map(|it| it.ports.iter());
                (is_pod, predicates, ports.filter(|it| self.rulesets.uses_name(&it.name)).cloned().collect())
            }
        };
        predicates.sort_unstable();
        Some(Arc::new(ClassKey::new(is_pod, predicates, ports)))
    }

    fn members(&self, class: ClassId) -> impl Iterator<Item = Place> {
        let peers = self.out.rows.peers.iter().filter(move |(_, row)| row.class == class);
        let edges = self.out.rows.blocks.iter().filter(move |(_, id)| **id == class);
        peers.map(|(addr, _)| Place::Address(*addr)).chain(edges.map(|(prefix, _)| Place::Edge(*prefix)))
    }
}

/// The moves by the class from which they lead.
fn departures(to: Arrivals) -> BTreeMap<Option<ClassId>, Moves> {
    let mut from: BTreeMap<Option<ClassId>, Moves> = BTreeMap::new();
    for (key, arrivals) in to {
        for (old, place) in arrivals {
            let moves = from.entry(old).or_default();
            match moves.last_mut() {
                Some((last, places)) if Arc::ptr_eq(last, &key) => places.push(place),
                _ => moves.push((key.clone(), vec![place])),
            }
        }
    }
    from
}
