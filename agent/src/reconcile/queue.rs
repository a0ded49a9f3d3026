//! Which pods are to be looked at.
//!
//! ```text
//!                 add                next                 done
//!   (none) ───────────────▶ Ready ─────────▶ Working ───────────────▶ (none)
//!                            ▲ ▲               │ │
//!                            │ └── added again ┘ │ failed
//!                            │    meanwhile      ▼
//!                            └───────────────── Later ──▶ (none), after too many failures
//!                         in time, or added
//! ```
//!
//! So a pod is in the queue once, however often it is added; two never work on the same; what is added during the work is
//! worked on once more; and nothing is looked at without a cause. Who has nothing to do sleeps.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::{metrics::ReconcileMetrics, watch::ObjectKey};

/// The queue. Cloning it is cheap, and gives the same one.
#[derive(Clone)]
pub struct Queue(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    /// There may be something to do, or to do sooner.
    work: Notify,
    /// There may be room again.
    room: Notify,
    /// A key found none.
    overflow: Notify,
    capacity: usize,
    metrics: ReconcileMetrics,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<ObjectKey, Entry>,
    ready: VecDeque<ObjectKey>,
    later: BTreeSet<(Instant, ObjectKey)>,
}

struct Entry {
    state: State,
    /// In a row.
    failures: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    /// It failed, and is tried again then.
    Later(Instant),
    Working {
        added_again: bool,
    },
}

/// A pod that nobody else works on. Dropped before it is done, it has failed.
pub struct Job {
    queue: Queue,
    key: ObjectKey,
    succeeded: bool,
}

/// More pods than any node has.
const CAPACITY: usize = 8192;
/// How often a pod is tried again before it is left alone, until it changes (Virtual Kubelet's `maxRetries`).
const MAX_RETRIES: u32 = 20;
/// The wait before the first time, which doubles with each.
const FIRST: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST: Duration = Duration::from_secs(60);

// === impl Queue ===

impl Queue {
    pub fn new(metrics: ReconcileMetrics) -> Self {
        Self::with_capacity(CAPACITY, metrics)
    }

    fn with_capacity(capacity: usize, metrics: ReconcileMetrics) -> Self {
        let (work, room, overflow) = (Notify::new(), Notify::new(), Notify::new());
        Self(Arc::new(Shared { inner: Mutex::default(), work, room, overflow, capacity, metrics }))
    }

    /// Says that there is something about a pod. If there is no room, that is noted instead: see [`Self::overflowed`].
    pub fn add(&self, key: ObjectKey) {
        let mut inner = self.inner();
        let Inner { entries, ready, later } = &mut *inner;
        let is_full = entries.len() >= self.0.capacity;
        match entries.get_mut(&key) {
            Some(Entry { state: State::Ready, .. }) => return,
            Some(Entry { state: State::Working { added_again }, .. }) => {
                *added_again = true;
                return;
            }
            Some(entry) => {
                if let State::Later(at) = std::mem::replace(&mut entry.state, State::Ready) {
                    later.remove(&(at, key.clone()));
                }
            }
            None if is_full => {
                self.0.overflow.notify_one();
                return;
            }
            None => {
                entries.insert(key.clone(), Entry { state: State::Ready, failures: 0 });
            }
        }
        ready.push_back(key);
        self.count(inner);
        self.0.work.notify_one();
    }

    /// The next pod to work on, as soon as there is one.
    pub async fn next(&self) -> Job {
        loop {
            match self.take() {
                Ok(key) => return Job { queue: self.clone(), key, succeeded: false },
                Err(None) => self.0.work.notified().await,
                // Either way there may be one.
                Err(Some(due)) => drop(timeout_at(due, self.0.work.notified()).await),
            }
        }
    }

    /// Waits until there is room for another pod.
    pub async fn room(&self) {
        while self.inner().entries.len() >= self.0.capacity {
            self.0.room.notified().await;
        }
    }

    /// Returns when a pod has found no room since the last time: then any may have changed.
    pub async fn overflowed(&self) {
        self.0.overflow.notified().await;
    }

    /// A pod to work on; or when to look again, if there is a time for it.
    fn take(&self) -> Result<ObjectKey, Option<Instant>> {
        let mut inner = self.inner();
        let Inner { entries, ready, later } = &mut *inner;
        let now = Instant::now();
        while later.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = later.pop_first() else { break };
            if let Some(entry) = entries.get_mut(&key) {
                entry.state = State::Ready;
            }
            ready.push_back(key);
        }
        let Some(key) = ready.pop_front() else { return Err(later.first().map(|(at, _)| *at)) };
        if let Some(entry) = entries.get_mut(&key) {
            entry.state = State::Working { added_again: false };
        }
        // Several may have been added for one that was woken; and somebody has to know what is due next.
        if !ready.is_empty() || !later.is_empty() {
            self.0.work.notify_one();
        }
        Ok(key)
    }

    fn finish(&self, key: &ObjectKey, succeeded: bool) {
        let metrics = &self.0.metrics;
        let mut inner = self.inner();
        let Inner { entries, ready, later } = &mut *inner;
        let Some(entry) = entries.get_mut(key) else { return };
        let added_again = entry.state == State::Working { added_again: true };
        entry.failures = if succeeded { 0 } else { entry.failures + 1 };
        if !succeeded {
            metrics.failures.inc();
        }
        if entry.failures > MAX_RETRIES {
            tracing::error!(pod = %key, "reconciling has failed {MAX_RETRIES} times: leaving it until something changes");
            metrics.given_up.inc();
            entry.failures = 0;
        }
        if added_again {
            entry.state = State::Ready;
            ready.push_back(key.clone());
        } else if entry.failures > 0 {
            let at = Instant::now() + delay(entry.failures);
            entry.state = State::Later(at);
            later.insert((at, key.clone()));
        } else {
            entries.remove(key);
            self.0.room.notify_one();
        }
        self.count(inner);
        // Those who sleep do not know of this time.
        self.0.work.notify_one();
    }

    fn count(&self, inner: MutexGuard<'_, Inner>) {
        self.0.metrics.queued.set(i64::try_from(inner.entries.len()).unwrap_or(i64::MAX));
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Job ===

impl Job {
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// It has succeeded.
    pub fn done(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.queue.finish(&self.key, self.succeeded);
    }
}

/// The wait after a number of failures in a row, spread by chance: what failed together need not come back together.
fn delay(failures: u32) -> Duration {
    // A power beyond this is longer than any wait, and must not overflow.
    let doubled = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST);
    doubled.mul_f64(1.0 + fastrand::f64()).min(LONGEST)
}

#[cfg(test)]
mod tests;
