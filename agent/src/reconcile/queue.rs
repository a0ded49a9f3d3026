//! The work queue of pods to examine: deduplicated, bounded, with backoff.
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
//! A pod is queued at most once, and at most one worker has it. A pod that is added during its work is queued
//! once more. Idle workers sleep.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::{backoff::Policy, metrics::ReconcileMetrics, watch::ObjectKey};

/// The queue. Clones share it.
#[derive(Clone)]
pub struct Queue(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    /// Wakes a worker: a pod may be ready, or due sooner.
    work: Notify,
    /// Wakes a producer that waits for room.
    room: Notify,
    /// A pod was rejected because the queue was full.
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
    /// Consecutive failures.
    failures: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    /// Failed; retried at this time.
    Later(Instant),
    Working {
        added_again: bool,
    },
}

/// A pod that one worker has exclusively. A job that is dropped without [`Job::done`] has failed.
pub struct Job {
    queue: Queue,
    key: ObjectKey,
    succeeded: bool,
}

/// Pods; more than a node has.
const CAPACITY: usize = 8192;
/// The retry budget of a pod, until the pod changes (Virtual Kubelet's `maxRetries`).
const MAX_RETRIES: u32 = 20;
/// The backoff before the first retry; doubles with each failure.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// With jitter, so that pods that failed together do not retry together.
const BACKOFF: Policy = Policy::new(MIN_BACKOFF, MAX_BACKOFF).with_jitter();

// === impl Queue ===

impl Queue {
    pub fn new(metrics: ReconcileMetrics) -> Self {
        Self::with_capacity(CAPACITY, metrics)
    }

    fn with_capacity(capacity: usize, metrics: ReconcileMetrics) -> Self {
        let (work, room, overflow) = (Notify::new(), Notify::new(), Notify::new());
        Self(Arc::new(Shared { inner: Mutex::default(), work, room, overflow, capacity, metrics }))
    }

    /// Queues a pod. A full queue rejects a new pod, and wakes [`Self::overflowed`].
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

    /// Waits for a pod to work on.
    pub async fn next(&self) -> Job {
        loop {
            match self.take() {
                Ok(key) => return Job { queue: self.clone(), key, succeeded: false },
                Err(None) => self.0.work.notified().await,
                // Woken or due, a pod may be ready.
                Err(Some(due)) => drop(timeout_at(due, self.0.work.notified()).await),
            }
        }
    }

    /// Waits until the queue has room for another pod (backpressure).
    pub async fn until_room(&self) {
        while self.inner().entries.len() >= self.0.capacity {
            self.0.room.notified().await;
        }
    }

    /// Waits until a pod was rejected since the last call. Any pod may be the one.
    pub async fn overflowed(&self) {
        self.0.overflow.notified().await;
    }

    /// A ready pod; or else the time of the next retry, if there is one.
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
        // One wake-up may stand for several pods, and another worker has to sleep until the next retry.
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
            tracing::error!(pod = %key, "reconciling failed {MAX_RETRIES} times; giving up until the pod changes");
            metrics.given_up.inc();
            entry.failures = 0;
        }
        if added_again {
            entry.state = State::Ready;
            ready.push_back(key.clone());
        } else if entry.failures > 0 {
            let at = Instant::now() + BACKOFF.delay(entry.failures);
            entry.state = State::Later(at);
            later.insert((at, key.clone()));
        } else {
            entries.remove(key);
            self.0.room.notify_one();
        }
        self.count(inner);
        // Sleeping workers do not know the time of this retry.
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

    /// Marks the job as succeeded.
    pub fn done(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.queue.finish(&self.key, self.succeeded);
    }
}

#[cfg(test)]
mod tests;
