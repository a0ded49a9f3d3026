//! What should be and what is, brought together: at start, and for as long as the agent runs.
//!
//! [`recover`] does it once, before anyone can call, with the [`DeferredDels`] of what was deleted meanwhile. Afterwards a [`Reconciler`] looks for what dangles: attachments whose
//! pod and namespace are gone, and that no runtime deletes any more. Its work comes in a [`Queue`] of pods: one that
//! changed, and all of them in each round. What is looked at in an attachment is in [`proofs`], what follows from it in
//! [`verdict`], and what is done about it in [`collect`].

mod collect;
mod deferred;
mod proofs;
mod queue;
mod rebuild;
mod start;
mod verdict;

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use crate::{attach::Engine, health::Health, metrics::ReconcileMetrics};
pub use collect::{Candidate, Collector};
pub use deferred::DeferredDels;
pub use proofs::{Evidence, Proof};
pub use queue::Queue;
pub use start::recover;

/// Looks after a node's attachments.
pub struct Reconciler {
    collector: Arc<Collector>,
    queue: Queue,
    settings: Settings,
    metrics: ReconcileMetrics,
}

/// How often to look, and how careful to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// From one round to the next, and a little more by chance.
    pub period: Duration,
    /// The least time between the two looks that it takes to remove anything.
    pub spacing: Duration,
}

/// From one round to the next, unless it is configured otherwise (Kuryr's `watch_reconcile_period`).
pub const PERIOD: Duration = Duration::from_secs(120);
/// Longer than a runtime takes from making a namespace to its ADD, or from unmounting one to its DEL.
const SPACING: Duration = Duration::from_secs(30);
/// The first round waits for what a watch that goes on where it was has missed, which comes in its first moments.
const SETTLE: Duration = Duration::from_secs(5);

// === impl Reconciler ===

impl Reconciler {
    /// `api` is how well the API server is followed; without one, the kernel has to prove everything.
    pub fn new(
        engine: Arc<Engine>,
        api: Option<Health>,
        settings: Settings,
        metrics: ReconcileMetrics,
    ) -> Self {
        let queue = Queue::new(metrics.clone());
        let collector = Arc::new(Collector::new(engine, api, settings, metrics.clone()));
        Self { collector, queue, settings, metrics }
    }

    /// Where to say that a pod has changed.
    pub fn queue(&self) -> Queue {
        self.queue.clone()
    }

    /// Who can explain what will be removed, and why.
    pub fn collector(&self) -> Arc<Collector> {
        Arc::clone(&self.collector)
    }

    /// Works, for ever, from when all pods are known.
    pub async fn run(self) {
        self.collector.until_known().await;
        // In one task: a panic ends all of it, and whoever supervises it knows. What may block does so elsewhere.
        tokio::join!(self.rounds(), self.work(), self.work(), self.work(), self.work());
    }

    async fn work(&self) {
        loop {
            let job = self.queue.next().await;
            match self.collector.examine(job.key()).await {
                Ok(()) => job.done(),
                Err(error) => {
                    tracing::warn!(pod = %job.key(), error = crate::chain::chain(&error), "reconciling failed: trying again");
                }
            }
        }
    }

    async fn rounds(&self) {
        sleep(SETTLE.min(self.settings.period)).await;
        loop {
            // Never less than the period: else a second look could come just too early to count as one.
            let wait = self.settings.period.mul_f64(1.02 + 0.08 * fastrand::f64());
            let next = Instant::now() + wait;
            for pod in self.collector.begin_round(next) {
                self.queue.room().await;
                self.queue.add(pod);
            }
            self.metrics.rounds.inc();
            tokio::select! {
                () = sleep_until(next) => {}
                // Somebody's pod found no room, and is in the registry if it matters.
                () = self.queue.overflowed() => {}
            }
        }
    }
}

// === impl Settings ===

impl Settings {
    /// A round in each period.
    pub fn every(period: Duration) -> Self {
        Self { period, spacing: SPACING.min(period) }
    }
}
