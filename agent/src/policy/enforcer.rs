//! The handle of the thread that compiles policies and writes their rows.

use std::{
    sync::{Arc, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ferrule_policy::{Capacities, Change, Compiler, EndpointId};
use tokio::time::timeout_at;

use super::{
    admit::AdmitError,
    inbox::{Answer, Interface},
    maps::Maps,
    report::Report,
    shared::{Progress, Shared},
    unjudged::Unjudged,
    worker::Worker,
};
use crate::{
    chain::chain,
    cluster::{PodRef, Pods},
    dataplane::{Audit, MapFailure},
};

/// Compiles changes of the cluster, and writes the rows that follow from them.
pub struct Enforcer(pub(super) Arc<Shared>);

/// The rows in the maps cannot be restored.
#[derive(Debug, thiserror::Error)]
#[error("cannot restore the rows of policies")]
pub struct RestoreError(#[from] MapFailure);

/// Between two steps of a comparison, in which a change that waits comes first.
const BETWEEN_STEPS: Duration = Duration::from_micros(100);

// === impl Enforcer ===

impl Enforcer {
    /// `capacities`: the rows of one table that fit.
    pub fn new(maps: Arc<dyn Maps>, capacities: Capacities, pods: Pods) -> Self {
        Self(Arc::new(Shared::new(maps, capacities, pods)))
    }

    /// Starts the thread. The returned task ends only if the thread does.
    ///
    /// # Errors
    /// If the system has no room for another thread.
    pub fn start(&self, report: Report) -> std::io::Result<impl Future<Output = ()> + use<>> {
        let mut worker = Worker::new(Arc::clone(&self.0), report);
        let (running, ended) = tokio::sync::oneshot::channel::<()>();
        thread::Builder::new().name("policy".to_owned()).spawn(move || {
            let _running = running;
            worker.run();
        })?;
        Ok(async move {
            let _ = ended.await;
        })
    }

    /// Replaces all that is known of the cluster, by complete lists: of all objects that policies concern, or
    /// of none while the cluster has no policy. Until the first call, no new pod is admitted, and the rows of
    /// an earlier agent stay. Returns at once.
    pub fn replace(&self, state: Vec<Change>) {
        self.0.inbox().replace(state);
        self.0.arrived.notify_one();
    }

    /// The cluster has policies, and their rows will follow by [`Self::replace`]: until then, no new pod is
    /// admitted. Attached pods are judged as before. `why` says what is missing. Returns at once.
    pub fn expect(&self, why: &str) {
        self.0.inbox().expected = Some(why.to_owned());
    }

    /// Applies a change to what [`Self::replace`] has brought. Returns at once.
    pub fn submit(&self, change: Change) {
        self.0.inbox().changes.push(change);
        self.0.arrived.notify_one();
    }

    /// Sets by which interfaces packets leave that no policy judges, and why. Returns at once.
    pub fn set_unjudged(&self, unjudged: Unjudged) {
        if std::mem::replace(&mut *self.0.unjudged(), unjudged.clone()) != unjudged {
            self.0.inbox().has_news = true;
            self.0.arrived.notify_one();
        }
    }

    /// Adds an interface, which passes nothing until its row is written. Returns at once.
    pub fn add(&self, interface: Interface) {
        self.0.inbox().add(interface, &self.0.pods);
        self.0.arrived.notify_one();
    }

    /// Waits until the policies, and what they ask about a pod, are known, and rows can be written:
    /// [`Self::admit`] is quick then.
    ///
    /// # Errors
    /// If the deadline passes first.
    pub async fn until_known(&self, pod: &PodRef, deadline: tokio::time::Instant) -> Result<(), AdmitError> {
        let began = tokio::time::Instant::now();
        let mut progress = self.0.progress.subscribe();
        // Tells the UID of a static pod, which no turn of the thread follows.
        let mut of_pod = self.0.pods.subscribe(pod);
        let known = async {
            while !(self.is_complete() && self.0.is_placed(pod).await) {
                if let Some(why) = self.0.obstacle() {
                    return Err(AdmitError::Refused(why));
                }
                tokio::select! {
                    _ = progress.changed() => {}
                    () = of_pod.changed() => {}
                }
            }
            Ok(())
        };
        let in_time = timeout_at(deadline, known).await;
        in_time.unwrap_or_else(|_| Err(self.0.missing(pod, began.elapsed())))
    }

    /// As [`Self::until_known`], without a wait: `false` also while another thread compiles.
    pub fn is_known(&self, pod: &PodRef) -> bool {
        self.is_complete() && self.0.try_is_placed(pod) == Some(true)
    }

    /// Whether a complete state is in force, and no other one waits.
    fn is_complete(&self) -> bool {
        let Progress { is_live, is_written, .. } = *self.0.progress.borrow();
        is_live && is_written && !self.0.inbox().is_outdated_for_all()
    }

    /// What an ADD of the pod waits for, in words; empty once [`Self::is_known`].
    pub fn missing(&self, pod: &PodRef) -> String {
        if self.is_known(pod) { String::new() } else { self.0.missing(pod, Duration::ZERO).missing() }
    }

    /// Returns when the rows that judge a new interface are in the maps. Blocks.
    ///
    /// # Errors
    /// If the deadline passes first, or the rows do not fit.
    pub fn admit(&self, interface: Interface, deadline: Instant) -> Result<(), AdmitError> {
        let (id, pod, began) = (EndpointId(interface.ifindex), interface.pod.clone(), Instant::now());
        self.add(interface);
        let mut inbox = self.0.inbox();
        loop {
            match inbox.locals.get(&id).map(|local| &local.answer) {
                Some(Answer::Admitted) => return Ok(()),
                Some(Answer::Refused(why)) => return Err(AdmitError::Refused(why.clone())),
                Some(Answer::Waiting) | None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(inbox);
                return Err(self.0.missing(&pod, began.elapsed()));
            }
            inbox = self.0.answered.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the rows of all interfaces are written. Blocks.
    ///
    /// # Errors
    /// If the deadline passes first: with the number of interfaces without rows.
    pub fn settle(&self, deadline: Instant) -> Result<(), usize> {
        let mut inbox = self.0.inbox();
        loop {
            let waiting = inbox.waiting();
            let left = deadline.saturating_duration_since(Instant::now());
            if waiting == 0 {
                return Ok(());
            }
            if left.is_zero() {
                return Err(waiting);
            }
            inbox = self.0.answered.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Removes the rows that judge an interface. Returns at once.
    pub fn forget(&self, ifindex: u32) {
        self.0.inbox().remove(EndpointId(ifindex));
        self.0.arrived.notify_one();
    }

    /// Whether rows of the maps judge a pod, also those of an earlier agent.
    pub(super) fn judges_pods(&self) -> bool {
        self.0.maps.subjects().values().any(|it| !it.is_open())
    }

    /// Asks the compiler.
    pub fn read<T>(&self, ask: impl FnOnce(&Compiler) -> T) -> T {
        ask(&self.0.compiler())
    }

    /// Asks the compiler, unless another thread compiles or asks.
    pub(super) fn try_read<T>(&self, ask: impl FnOnce(&Compiler) -> T) -> Option<T> {
        self.0.try_compiler().map(|compiler| ask(&compiler))
    }

    /// How the maps differ from what is compiled, one line for each map. Nothing while rows cannot be
    /// written. Blocks, and lets changes pass meanwhile.
    pub fn differences(&self) -> Vec<String> {
        self.audit(Audit::new()).unwrap_or_else(|error| {
            tracing::warn!(error = chain(&error), "cannot compare the rows of policies");
            Vec::new()
        })
    }

    /// Makes the maps what is compiled. Blocks, and lets changes pass meanwhile.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn restore(&self) -> Result<(), RestoreError> {
        self.audit(Audit::repairing())?;
        Ok(())
    }

    fn audit(&self, mut audit: Audit) -> Result<Vec<String>, MapFailure> {
        loop {
            {
                let _turn = self.0.turn();
                let Progress { is_live, is_written, .. } = *self.0.progress.borrow();
                if !is_live || !is_written {
                    return Ok(Vec::new());
                }
                let compiler = self.0.compiler();
                if !self.0.maps.audit(&mut audit, compiler.rows(), compiler.table())? {
                    return Ok(audit.differences());
                }
            }
            // Locks are not fair.
            thread::sleep(BETWEEN_STEPS);
        }
    }
}
