//! The engine's parts, and how each operation runs: admitted, alone with its key, on a blocking thread.

use std::sync::Arc;

use tokio::sync::watch;

use super::{
    error::AttachError,
    in_flight::InFlight,
    journal::Journal,
    limits::{Admission, Limits},
    phases::{Phase, Phases},
    worker::{self, OnAbandon},
};
use crate::{
    dataplane::Dataplane,
    decide::Decider,
    events::Events,
    plug::{reaper::Reaper, uplink::Uplink},
    policy::Enforcer,
    ports::HostPorts,
    registry::{Key, Registry},
};

/// Attaches, detaches, verifies and restores attachments.
pub struct Engine {
    pub(super) registry: Arc<Registry>,
    pub(super) dataplane: Arc<Dataplane>,
    pub(super) uplink: Uplink,
    pub(super) reaper: Reaper,
    pub(super) decider: Decider,
    pub(super) events: Events,
    pub(super) enforcer: Arc<Enforcer>,
    pub(super) ports: Arc<HostPorts>,
    pub(super) in_flight: InFlight,
    pub(super) journal: Arc<Journal>,
    limits: Limits,
    /// Becomes true at shutdown; ADDs that wait for a VIF then fail with [`AttachError::Stopping`].
    stopping: watch::Sender<bool>,
}

// === impl Engine ===

impl Engine {
    pub fn new(
        registry: Arc<Registry>,
        dataplane: Arc<Dataplane>,
        uplink: Uplink,
        reaper: Reaper,
        decider: Decider,
        (events, enforcer, ports): (Events, Arc<Enforcer>, Arc<HostPorts>),
    ) -> Self {
        Self {
            registry,
            dataplane,
            uplink,
            reaper,
            decider,
            events,
            enforcer,
            ports,
            in_flight: InFlight::default(),
            journal: Arc::default(),
            limits: Limits::default(),
            stopping: watch::Sender::new(false),
        }
    }

    /// What became of ADDs.
    pub fn journal(&self) -> Arc<Journal> {
        Arc::clone(&self.journal)
    }

    /// Begins the graceful shutdown: fails every ADD that waits for a VIF, now and later. Running work
    /// continues.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Whether [`Self::stop`] was called. From then on, shims may delete interfaces without the agent.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Waits until no operation runs, including the rollback of abandoned ones.
    pub async fn drained(&self) {
        self.limits.drained().await;
    }

    /// Runs `work` with the key locked, on a blocking thread, at most [`limits::MAX_WORKING`](super::limits)
    /// at once.
    ///
    /// The work completes even if the caller is dropped; `on_abandon` then gets its result, still under the
    /// lock.
    ///
    /// # Errors
    /// The error of `work`, or [`AttachError::Lost`] if it panicked.
    pub(super) async fn run_locked<T: Send + 'static>(
        self: &Arc<Self>,
        key: &Key,
        phases: &Phases,
        work: impl FnOnce(&Self, &Phases) -> Result<T, AttachError> + Send + 'static,
        on_abandon: OnAbandon<Self, Result<T, AttachError>>,
    ) -> Result<T, AttachError> {
        phases.enter(Phase::Queue);
        let guard = self.registry.lock(key).await;
        let permit = self.limits.work().await?;
        let phases = phases.clone();
        worker::run(Arc::clone(self), (guard, permit), move |engine| work(engine, &phases), on_abandon)
            .await
            .ok_or(AttachError::Lost)?
    }

    /// Admits an ADD, or fails with [`AttachError::Busy`].
    pub(super) fn admit_attach(&self) -> Result<Admission, AttachError> {
        self.limits.admit_attach()
    }

    /// Admits any other call. Waiting ADDs never use up these slots, so that a DEL is always served.
    pub(super) fn admit_other(&self) -> Result<Admission, AttachError> {
        self.limits.admit_other()
    }

    /// Waits for `wait`, unless the agent stops first.
    pub(super) async fn unless_stopping<T>(
        &self,
        wait: impl Future<Output = Result<T, AttachError>>,
    ) -> Result<T, AttachError> {
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            biased;
            outcome = wait => outcome,
            _ = stopping.wait_for(|stopping| *stopping) => Err(AttachError::Stopping),
        }
    }
}
