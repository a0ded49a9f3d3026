//! The blocks that rulesets ask about, by their edges: the prefixes at which the answer changes.

use std::{collections::BTreeSet, mem::take};

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
    /// The CIDRs of blocks that have come or gone, in which nothing is noted yet.
    changed: BTreeSet<Prefix>,
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
    /// Adds a block. [`Self::note`] has to follow.
    pub(crate) fn add(&mut self, block: &Block, id: PredicateId) {
        self.changed.insert(block.cidr);
        for (prefix, side) in edges(block) {
            self.edges.insert((prefix, id, side));
            self.count(prefix, |n| n + 1);
            self.dirty.insert(prefix);
        }
    }

    /// Removes a block. [`Self::note`] has to follow.
    pub(crate) fn remove(&mut self, block: &Block, id: PredicateId) {
        self.changed.insert(block.cidr);
        for (prefix, side) in edges(block) {
            self.edges.remove(&(prefix, id, side));
            self.count(prefix, |n| n.saturating_sub(1));
            self.dirty.insert(prefix);
        }
    }

    /// Notes all edges and addresses in the blocks that have come or gone: once, however many these are.
    pub(crate) fn note(&mut self, store: &Store, work: &mut Work) {
        let mut outer: Option<Prefix> = None;
        for cidr in take(&mut self.changed) {
            // In the order of prefixes, what contains others comes before them.
            if outer.is_some_and(|it| it.covers(cidr)) {
                continue;
            }
            outer = Some(cidr);
            let last = cidr.last();
            // In one address, no edge is but the block's own.
            if last != cidr.addr() {
                let start = (cidr, PredicateId::MIN, Side::Cidr);
                let end = (Prefix::new(last, u8::MAX), PredicateId::MAX, Side::Except);
                let inside = self.edges.range(start..=end).map(|(prefix, ..)| *prefix);
                self.dirty.extend(inside.filter(|prefix| cidr.covers(*prefix)));
            }
            let claims = store.claims.range((cidr.addr(), PartyId::MIN)..);
            let addresses = claims.map(|(addr, _)| *addr).take_while(|addr| *addr <= last);
            let marked = store.marks.between(cidr.addr(), last);
            work.addresses.extend(addresses.chain(marked).filter(|addr| cidr.contains(*addr)));
        }
    }

    /// Whether a prefix is an edge.
    pub(crate) fn has(&self, prefix: Prefix) -> bool {
        self.at(prefix).next().is_some()
    }

    /// The predicates with a block that contains a prefix, in order.
    pub(crate) fn containing(&self, prefix: Prefix) -> Vec<PredicateId> {
        let lengths = self.lengths.range((prefix.is_v4(), 0)..=(prefix.is_v4(), prefix.bits()));
        let mut inside = Vec::new();
        let mut excepted = Vec::new();
        for ((_, len), _) in lengths {
            for (_, id, side) in self.at(Prefix::new(prefix.addr(), *len)) {
                match side {
                    Side::Cidr => inside.push(*id),
                    Side::Except => excepted.push(*id),
                }
            }
        }
        inside.sort_unstable();
        inside.dedup();
        excepted.sort_unstable();
        // What has exceptions is of one block.
        inside.retain(|id| excepted.binary_search(id).is_err());
        inside
    }

    /// The predicates with a block that contains an address, in order.
    pub(crate) fn of(&self, addr: Addr) -> Vec<PredicateId> {
        self.containing(Prefix::new(addr, u8::MAX))
    }

    fn at(&self, prefix: Prefix) -> impl Iterator<Item = &(Prefix, PredicateId, Side)> {
        let first = (prefix, PredicateId::MIN, Side::Cidr);
        self.edges.range(first..=(prefix, PredicateId::MAX, Side::Except))
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
