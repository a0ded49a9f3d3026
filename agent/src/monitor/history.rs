//! The last dropped packets and flows: one ring, which readers read at their own pace.
//!
//! A reader has a position in the ring. The writer never waits for readers: one that is too slow finds its
//! position overwritten, and learns how many entries it has missed.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::seen::Seen;

/// Most entries. Full, they take about 1 MiB; an agent that has seen nothing holds none.
pub const CAPACITY: usize = 4096;

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
    /// Oldest first.
    entries: VecDeque<Arc<Seen>>,
    end: End,
}

/// Entries from a position on.
#[derive(Debug, PartialEq)]
pub struct Batch {
    /// Entries that were overwritten between the position and the first of `entries`.
    pub missed: u64,
    pub entries: Vec<Arc<Seen>>,
    /// The position behind the last of `entries`.
    pub next: u64,
}

// === impl History ===

impl History {
    /// Adds an entry in place of the oldest one.
    pub fn push(&self, seen: Seen) {
        let mut ring = self.ring();
        if ring.entries.len() >= CAPACITY {
            ring.entries.pop_front();
        }
        ring.entries.push_back(Arc::new(seen));
        ring.end.position += 1;
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
        let oldest = ring.end.position - ring.entries.len() as u64;
        let missed = oldest.saturating_sub(position);
        let from = position.clamp(oldest, ring.end.position);
        let skipped = usize::try_from(from - oldest).unwrap_or(usize::MAX);
        let entries: Vec<_> = ring.entries.iter().skip(skipped).take(most).cloned().collect();
        let next = from + entries.len() as u64;
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
