//! The engine's parts, and how each operation runs: admitted, alone with its key, on a blocking thread.

use std::{sync::Arc, time::Instant};

use agent_common::VifEntry;
use ferrule_vif::Addresses;
use tokio::sync::watch;

use super::{
    error::AttachError,
    in_flight::InFlight,
    limits::{Admission, Limits},
    phases::{Phase, Phases},
    plug::{ADMISSION, interface},
    worker::{self, OnAbandon},
};
use crate::{
    cluster::PodRef,
    dataplane::Dataplane,
    decide::Decider,
    events::Events,
    plug::{reaper::Reaper, uplink::Uplink},
    policy::{Enforcer, Interface},
    registry::{Attachment, Key, Registry},
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
    pub(super) in_flight: InFlight,
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
        (events, enforcer): (Events, Arc<Enforcer>),
    ) -> Self {
        Self {
            registry,
            dataplane,
            uplink,
            reaper,
            decider,
            events,
            enforcer,
            in_flight: InFlight::default(),
            limits: Limits::default(),
            stopping: watch::Sender::new(false),
        }
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

    /// Lets policies judge an interface that exists already.
    pub fn judge(&self, ifindex: u32, attachment: &Attachment) {
        self.enforcer.add(interface(ifindex, attachment));
    }

    /// Lets policies judge an interface without a known attachment, as far as the maps tell whose it is.
    pub fn judge_unknown(&self, ifindex: u32, addresses: Addresses) {
        let recorded = self.dataplane.recorded(ifindex).ok().flatten();
        let pod = recorded.map(|it| pod_of(&it.vif)).unwrap_or_default();
        self.enforcer.add(Interface { ifindex, pod, addresses: addresses.iter().collect() });
    }

    /// Lets all interfaces pass everything, which no policy judges. Blocks, not for long.
    pub fn let_all_pass(&self) {
        self.enforcer.replace(Vec::new());
        if let Err(waiting) = self.enforcer.settle(Instant::now() + ADMISSION) {
            tracing::error!(
                waiting,
                "interfaces without rows of policies pass nothing until these are written"
            );
        }
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

/// The pod that a row of `VIFS` names.
fn pod_of(row: &VifEntry) -> PodRef {
    let text = |field: &[i8]| {
        let bytes = field.iter().take_while(|byte| **byte != 0).map(|byte| byte.cast_unsigned());
        String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
    };
    let pod = text(&row.pod);
    let (namespace, name) = pod.split_once('/').unwrap_or_default();
    PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: text(&row.pod_uid) }
}
