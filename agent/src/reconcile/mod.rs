//! Reconciles registry, kernel and API: once at start, and in rounds from then on.
//!
//! [`Recovery`] runs before any call is served, with the [`DeferredDels`] that shims left. Afterwards a
//! [`Reconciler`] garbage-collects orphaned attachments: pod and namespace are gone, and no runtime sends the
//! DEL. A [`Queue`] holds the pods to examine: each pod that changed, and all pods in each round.
//! [`evidence`] observes, [`verdict`] judges without I/O, [`collect`] acts.

mod collect;
mod deferred;
mod evidence;
mod left;
mod observations;
mod queue;
mod rebuild;
mod recover;
mod settings;
mod verdict;

use std::{sync::Arc, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    attach::Engine,
    chain::chain,
    cluster::Pods,
    health::Health,
    metrics::{ReconcileMetrics, StoreMetrics, count},
    ports::HostPorts,
    registry::Registry,
};
pub use collect::{Candidate, Collector};
pub use deferred::DeferredDels;
pub use evidence::{Evidence, Proof};
pub use queue::Queue;
pub use recover::Recovery;
pub use settings::{PERIOD, Settings};

/// Garbage-collects a node's attachments.
pub struct Reconciler {
    collector: Arc<Collector>,
    registry: Arc<Registry>,
    ports: Arc<HostPorts>,
    queue: Queue,
    settings: Settings,
    metrics: ReconcileMetrics,
    store_metrics: StoreMetrics,
}

/// The delay of the first round: a watch that resumes delivers the missed events in its first moments.
const FIRST_ROUND_DELAY: Duration = Duration::from_secs(5);

// === impl Reconciler ===

impl Reconciler {
    /// `api` is the health of the watches; without an API server, the kernel has to prove everything.
    pub fn new(
        engine: Arc<Engine>,
        (registry, ports): (Arc<Registry>, Arc<HostPorts>),
        pods: Pods,
        api: Option<Health>,
        settings: Settings,
        metrics: ReconcileMetrics,
        store_metrics: StoreMetrics,
    ) -> Self {
        let (queue, of) = (Queue::new(metrics.clone()), Arc::clone(&registry));
        let collector = Arc::new(Collector::new(engine, of, pods, api, settings, metrics.clone()));
        Self { collector, registry, ports, queue, settings, metrics, store_metrics }
    }

    /// The queue for pods that changed.
    pub fn queue(&self) -> Queue {
        self.queue.clone()
    }

    /// The garbage collector, to explain its plans.
    pub fn collector(&self) -> Arc<Collector> {
        Arc::clone(&self.collector)
    }

    /// Runs forever, from the initial list of pods on.
    pub async fn run(self) {
        self.collector.until_synced().await;
        // One task, so that the supervisor notices a panic of any part. Blocking work runs on other threads.
        tokio::join!(self.rounds(), self.work(), self.work(), self.work(), self.work());
    }

    async fn work(&self) {
        loop {
            let job = self.queue.next().await;
            match self.collector.examine(job.key()).await {
                Ok(()) => job.done(),
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(pod = %job.key(), error, "cannot reconcile the attachments of a pod; retrying");
                }
            }
        }
    }

    async fn free_left(&self) {
        let (registry, ports) = (Arc::clone(&self.registry), Arc::clone(&self.ports));
        match spawn_blocking(move || left::free_gone(&registry, &ports)).await {
            Ok(left) => drop(self.store_metrics.unknown_interfaces.set(count(left))),
            Err(error) => {
                tracing::error!(error = chain(&error), "the look for interfaces without a record panicked");
            }
        }
    }

    async fn rounds(&self) {
        sleep(FIRST_ROUND_DELAY.min(self.settings.period)).await;
        loop {
            // Never below the period: a second observation just before the spacing has passed would not
            // count.
            let wait = self.settings.period.mul_f64(1.02 + 0.08 * fastrand::f64());
            let next = Instant::now() + wait;
            for pod in self.collector.begin_round(next) {
                self.queue.until_room().await;
                self.queue.add(pod);
            }
            self.free_left().await;
            self.metrics.rounds.inc();
            tokio::select! {
                () = sleep_until(next) => {}
                // The rejected pod may be any: if it has an attachment, a round examines it.
                () = self.queue.overflowed() => {}
            }
        }
    }
}
