//! The last dropped packets and flows: one ring, which readers read at their own pace.
//!
//! A reader has a position in the ring. The writer never waits for readers: one that is too slow finds its
//! position overwritten, and learns how many entries it has missed.
//!
//! Pods decide how many entries there are. One whose drops, or whose flows, have their share of a full ring
//! displaces its own only, so that a pod cannot make more than a 16th of others' entries disappear.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::seen::{Seen, Verdict};

/// Most entries. Full, they take about 1 MiB; an agent that has seen nothing holds none.
pub const CAPACITY: usize = 4096;
/// Drops, or flows, of one host interface from which on it displaces its own, once the ring is full: a 16th.
const SHARE: usize = CAPACITY / 16;

/// The ring, shared by its writer and all readers.
#[derive(Debug, Default)]
pub struct History {
    ring: Mutex<Ring>,
    /// Follows the ring, for readers that wait.
    end: watch::Sender<End>,
}

/// Where the ring ends: the position of the next entry, which is also the number of entries so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct End {
    pub position: u64,
    /// No entry follows.
    pub is_closed: bool,
}

#[derive(Debug, Default)]
struct Ring {
    /// By position.
    entries: BTreeMap<u64, Arc<Seen>>,
    /// The positions of each host interface's drops and of its flows, oldest first.
    of_interface: HashMap<Share, VecDeque<u64>>,
    end: End,
}

/// A host interface, and whether the entries are flows.
type Share = (u32, bool);

/// Entries from a position on.
#[derive(Debug, PartialEq)]
pub struct Batch {
    /// Entries that were overwritten between the position and `next`.
    pub missed: u64,
    pub entries: Vec<Arc<Seen>>,
    /// The position to read from next.
    pub next: u64,
}

// === impl History ===

impl History {
    /// Adds an entry, in place of an older one if the ring is full.
    pub fn push(&self, seen: Seen) {
        let mut ring = self.ring();
        ring.push(seen);
        self.end.send_replace(ring.end);
    }

    /// Lets readers come to an end.
    pub fn close(&self) {
        let mut ring = self.ring();
        ring.end.is_closed = true;
        self.end.send_replace(ring.end);
    }

    /// At most `most` entries from a position on.
    pub fn read(&self, position: u64, most: usize) -> Batch {
        let ring = self.ring();
        let mut from = ring.entries.range(position..);
        let entries: Vec<_> = from.by_ref().take(most).map(|(_, seen)| Arc::clone(seen)).collect();
        let next = from.next().map_or(ring.end.position, |(next, _)| *next);
        let missed = next.saturating_sub(position).saturating_sub(entries.len() as u64);
        Batch { missed, entries, next }
    }

    /// The number of entries in the ring.
    pub fn len(&self) -> usize {
        self.ring().entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The end, now and after each change.
    pub fn end(&self) -> watch::Receiver<End> {
        self.end.subscribe()
    }

    /// Never held across a wait.
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Ring ===

impl Ring {
    fn push(&mut self, seen: Seen) {
        let share = share(&seen);
        if self.entries.len() >= CAPACITY {
            let own = self.of_interface.get(&share).filter(|own| own.len() >= SHARE);
            let displaced = own.and_then(VecDeque::front).or(self.entries.keys().next()).copied();
            displaced.inspect(|position| self.remove(*position));
        }
        let position = self.end.position;
        self.of_interface.entry(share).or_default().push_back(position);
        self.entries.insert(position, Arc::new(seen));
        self.end.position += 1;
    }

    /// Removes an entry that is the oldest of its share.
    fn remove(&mut self, position: u64) {
        let Some(seen) = self.entries.remove(&position) else { return };
        let share = share(&seen);
        if let Some(positions) = self.of_interface.get_mut(&share) {
            positions.pop_front();
            if positions.is_empty() {
                self.of_interface.remove(&share);
            }
        }
    }
}

fn share(seen: &Seen) -> Share {
    (seen.interface.ifindex, matches!(seen.verdict, Verdict::Forwarded(_)))
}
