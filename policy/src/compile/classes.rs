//! The classes in use.

use std::sync::Arc;

use super::predicate::PredicateId;
use crate::{
    journal::{Map, Set, journaled},
    rows::ClassId,
    store::{Digest, NamedPort, Word},
};

/// What addresses of one class have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClassKey {
    /// Of what follows. Most comparisons end here.
    digest: Digest,
    pub(crate) is_pod: bool,
    /// The predicates that are true, in order.
    pub(crate) predicates: Vec<PredicateId>,
    /// The ports with names that rulesets use, in order.
    pub(crate) ports: Vec<NamedPort>,
}

/// All classes.
#[derive(Default)]
pub(crate) struct Classes {
    ids: Map<Arc<ClassKey>, ClassId>,
    keys: Map<ClassId, Arc<ClassKey>>,
    /// How many addresses and edges of blocks have the class.
    sizes: Map<ClassId, usize>,
    asked: Set<(PredicateId, ClassId)>,
    naming: Set<(Word, ClassId)>,
    /// Classes that have become empty.
    empty: Set<ClassId>,
    next: u32,
}

journaled!(Classes { ids, keys, sizes, asked, naming, empty });

// === impl Classes ===

impl Classes {
    pub(crate) fn id(&self, key: &Arc<ClassKey>) -> Option<ClassId> {
        self.ids.get(key).copied()
    }

    pub(crate) fn key(&self, id: ClassId) -> Option<&Arc<ClassKey>> {
        self.keys.get(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The pairs of a class and a predicate that is true for it.
    pub(crate) fn matches(&self) -> usize {
        self.asked.len()
    }

    /// How many addresses and edges have the class.
    pub(crate) fn size(&self, id: ClassId) -> usize {
        self.sizes.get(&id).copied().unwrap_or_default()
    }

    /// The classes for which a predicate is true.
    pub(crate) fn asked(&self, predicate: PredicateId) -> impl Iterator<Item = ClassId> {
        let range = (predicate, ClassId::NONE)..=(predicate, ClassId(u32::MAX));
        self.asked.range(range).map(|(_, class)| *class)
    }

    /// The classes with a named port.
    pub(crate) fn naming(&self, name: &Word) -> impl Iterator<Item = ClassId> {
        let range = (name.clone(), ClassId::NONE)..=(name.clone(), ClassId(u32::MAX));
        self.naming.range(range).map(|(_, class)| *class)
    }

    /// Adds a class, which has to get a member.
    pub(crate) fn add(&mut self, key: Arc<ClassKey>) -> ClassId {
        let id = loop {
            self.next = self.next.wrapping_add(1).max(1);
            if !self.keys.contains(&ClassId(self.next)) {
                break ClassId(self.next);
            }
        };
        self.index(id, &key, true);
        self.ids.insert(key.clone(), id);
        self.keys.insert(id, key);
        id
    }

    /// Gives a class another key. Another class may have the old one already.
    pub(crate) fn rename(&mut self, id: ClassId, key: Arc<ClassKey>) {
        self.unlink(id);
        self.index(id, &key, true);
        self.ids.insert(key.clone(), id);
        self.keys.insert(id, key);
    }

    pub(crate) fn resize(&mut self, id: ClassId, change: impl Fn(usize) -> usize) {
        if id == ClassId::NONE {
            return;
        }
        match change(self.size(id)) {
            0 => {
                self.sizes.remove(&id);
                self.empty.insert(id);
            }
            size => {
                self.sizes.insert(id, size);
                self.empty.remove(&id);
            }
        }
    }

    /// Removes an empty class.
    pub(crate) fn take_empty(&mut self) -> Option<(ClassId, Arc<ClassKey>)> {
        let id = *self.empty.iter().next()?;
        self.empty.remove(&id);
        self.unlink(id);
        Some((id, self.keys.remove(&id)?))
    }

    /// Forgets the key of a class.
    fn unlink(&mut self, id: ClassId) {
        let Some(key) = self.keys.get(&id).cloned() else { return };
        self.index(id, &key, false);
        if self.ids.get(&key) == Some(&id) {
            self.ids.remove(&key);
        }
    }

    fn index(&mut self, id: ClassId, key: &ClassKey, is_there: bool) {
        for predicate in &key.predicates {
            if is_there {
                self.asked.insert((*predicate, id));
            } else {
                self.asked.remove(&(*predicate, id));
            }
        }
        for port in &key.ports {
            if is_there {
                self.naming.insert((port.name.clone(), id));
            } else {
                self.naming.remove(&(port.name.clone(), id));
            }
        }
    }
}

// === impl ClassKey ===

impl ClassKey {
    pub(crate) fn new(is_pod: bool, predicates: Vec<PredicateId>, ports: Vec<NamedPort>) -> Self {
        Self { digest: Digest::of(&(is_pod, &predicates, &ports)), is_pod, predicates, ports }
    }

    /// Whether the key says nothing, so that no rows are needed.
    pub(crate) fn is_none(&self) -> bool {
        !self.is_pod && self.predicates.is_empty()
    }
}
