//! The blocks that rulesets ask about, by their edges: the prefixes at which the answer changes.

use std::collections::BTreeSet;

use super::predicate::PredicateId;
use crate::{
    Addr, Block, Prefix,
    journal::{Map, Set, journaled},
    store::{PartyId, Store, Work},
};

/// All blocks in use.
#[derive(Default)]
pub(crate) struct Blocks {
    edges: Set<(Prefix, PredicateId, Side)>,
    /// How many edges have a length, by family, so that look-ups skip the other lengths.
    lengths: Map<(bool, u8), usize>,
    /// Edges whose class has to be determined.
    pub(crate) dirty: BTreeSet<Prefix>,
}

/// What an edge means for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Cidr,
    Except,
}

journaled!(Blocks { edges, lengths });

// === impl Blocks ===

impl Blocks {
    pub(crate) fn add(&mut self, block: &Block, id: PredicateId, store: &Store, work: &mut Work) {
        for (prefix, side) in edges(block) {
            self.edges.insert((prefix, id, side));
            self.count(prefix, |n| n + 1);
        }
        self.touch(block, store, work);
    }

    pub(crate) fn remove(&mut self, block: &Block, id: PredicateId, store: &Store, work: &mut Work) {
        self.touch(block, store, work);
        for (prefix, side) in edges(block) {
            self.edges.remove(&(prefix, id, side));
            self.count(prefix, |n| n.saturating_sub(1));
        }
    }

    /// Whether a prefix is an edge.
    pub(crate) fn has(&self, prefix: Prefix) -> bool {
        self.at(prefix).next().is_some()
    }

    /// The blocks that contain a prefix.
    pub(crate) fn containing(&self, prefix: Prefix) -> BTreeSet<PredicateId> {
        let lengths = self.lengths.range((prefix.is_v4(), 0)..=(prefix.is_v4(), prefix.bits()));
        let mut inside = BTreeSet::new();
        let mut excepted = Vec::new();
        for ((_, len), _) in lengths {
            for (_, id, side) in self.at(Prefix::new(prefix.addr(), *len)) {
                match side {
                    Side::Cidr => {
                        inside.insert(*id);
                    }
                    Side::Except => excepted.push(*id),
                }
            }
        }
        excepted.iter().for_each(|id| {
            inside.remove(id);
        });
        inside
    }

    /// The blocks that contain an address.
    pub(crate) fn of(&self, addr: Addr) -> BTreeSet<PredicateId> {
        self.containing(Prefix::new(addr, u8::MAX))
    }

    fn at(&self, prefix: Prefix) -> impl Iterator<Item = &(Prefix, PredicateId, Side)> {
        let first = (prefix, PredicateId::MIN, Side::Cidr);
        self.edges.range(first..=(prefix, PredicateId::MAX, Side::Except))
    }

    /// Notes all edges and addresses in a block.
    fn touch(&mut self, block: &Block, store: &Store, work: &mut Work) {
        let last = block.cidr.last();
        let start = (Prefix::before(block.cidr.addr()), PredicateId::MIN, Side::Cidr);
        let end = (Prefix::new(last, u8::MAX), PredicateId::MAX, Side::Except);
        let inside = self.edges.range(start..=end).map(|(prefix, ..)| *prefix);
        let inside: Vec<_> = inside.filter(|prefix| block.cidr.covers(*prefix)).collect();
        self.dirty.extend(inside);
        self.dirty.extend(edges(block).map(|(prefix, _)| prefix));
        let claims = store.claims.range((block.cidr.addr(), PartyId::MIN)..);
        let addresses = claims.map(|(addr, _)| *addr).take_while(|addr| *addr <= last);
        let marked = store.marks.between(block.cidr.addr(), last);
        work.addresses.extend(addresses.chain(marked).filter(|addr| block.cidr.contains(*addr)));
    }

    fn count(&mut self, prefix: Prefix, change: impl Fn(usize) -> usize) {
        let key = (prefix.is_v4(), prefix.bits());
        match change(self.lengths.get(&key).copied().unwrap_or_default()) {
            0 => self.lengths.remove(&key),
            n => self.lengths.insert(key, n),
        };
    }
}

/// Where a block begins and ends; exceptions outside of it change nothing.
fn edges(block: &Block) -> impl Iterator<Item = (Prefix, Side)> {
    let inner = block.except.iter().filter(|it| block.cidr.covers(**it) || it.covers(block.cidr));
    [(block.cidr, Side::Cidr)].into_iter().chain(inner.map(|it| (*it, Side::Except)))
}
