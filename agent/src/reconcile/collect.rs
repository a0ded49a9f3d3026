//! Garbage collection: removes orphaned attachments, which no pod uses and for which no runtime sends a DEL.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
    time::{Instant, error::Elapsed, timeout},
};

use super::{
    evidence::{Evidence, Proof, Witness},
    observations::{Identity, Observations},
    settings::Settings,
    verdict::{Plan, Verdict},
};
use crate::{
    attach::{AttachError, Engine, Phases},
    cluster::{PodRef, Pods},
    crash::{self, Step},
    health::Health,
    metrics::ReconcileMetrics,
    registry::{Attachment, Key, Registry, since_boot},
    watch::ObjectKey,
};

/// Removes attachments with their keys locked.
pub trait Detach: Send + Sync + 'static {
    /// As [`Engine::detach_if`].
    fn detach_if(
        self: &Arc<Self>,
        key: &Key,
        condition: impl FnOnce() -> bool + Send + 'static,
    ) -> impl Future<Output = Result<bool, AttachError>> + Send;
}

/// Examines attachments, and removes those that were found orphaned twice.
pub struct Collector<D = Engine> {
    engine: Arc<D>,
    registry: Arc<Registry>,
    pods: Pods,
    /// Health of the watches; `None` without an API server.
    api: Option<Health>,
    settings: Settings,
    metrics: ReconcileMetrics,
    observations: Mutex<Observations>,
    next_round: Mutex<Option<Instant>>,
    /// At most one explanation at a time, because each occupies a blocking thread.
    explaining: Arc<Semaphore>,
}

/// An attachment that may be orphaned, and the agent's plan for it.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub key: Key,
    pub pod: PodRef,
    pub evidence: Evidence,
    /// One line.
    pub verdict: String,
    /// Whether the next round removes the attachment if all proofs still hold.
    pub removable: bool,
}

/// The attachments of a pod that cannot be examined or removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExamineError {
    #[error("the examination of an attachment panicked")]
    Examine(#[from] JoinError),
    #[error("cannot remove an orphaned attachment")]
    Remove(#[from] AttachError),
}

/// A failed explanation.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    #[error(
        "the examination of all attachments exceeded its deadline: check whether the file system of a namespace's path hangs"
    )]
    Deadline(#[from] Elapsed),
    #[error("the examination of the attachments panicked")]
    Examine(#[from] JoinError),
}

/// For an explanation; shorter than the caller's deadline.
const DEADLINE: Duration = Duration::from_secs(8);

// === impl Engine ===

impl Detach for Engine {
    async fn detach_if(
        self: &Arc<Self>,
        key: &Key,
        condition: impl FnOnce() -> bool + Send + 'static,
    ) -> Result<bool, AttachError> {
        Engine::detach_if(self, key, &Phases::untracked(), |_| condition()).await
    }
}

// === impl Collector ===

impl<D: Detach> Collector<D> {
    pub(super) fn new(
        engine: Arc<D>,
        registry: Arc<Registry>,
        pods: Pods,
        api: Option<Health>,
        settings: Settings,
        metrics: ReconcileMetrics,
    ) -> Self {
        Self {
            engine,
            registry,
            pods,
            api,
            settings,
            metrics,
            observations: Mutex::default(),
            next_round: Mutex::default(),
            explaining: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits for the initial list of the node's pods, if there is an API server.
    pub(super) async fn until_synced(&self) {
        if self.api.is_some() {
            self.pods.until_synced().await;
        }
    }

    /// The pods that a round examines: all that have an attachment.
    pub(super) fn begin_round(&self, next: Instant) -> BTreeSet<ObjectKey> {
        *self.next_round.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
        let keys = self.registry.runtime_keys(|_| true);
        self.change(|observations| observations.retain(|key| keys.contains(key)));
        let pod = |it: Attachment| ObjectKey::new(&it.pod.namespace, &it.pod.name);
        self.registry.list().into_iter().map(pod).collect()
    }

    /// Examines the attachments of a pod, and removes those that were found orphaned before, long enough ago.
    /// All attachments without a pod share the empty key.
    pub(super) async fn examine(self: &Arc<Self>, pod: &ObjectKey) -> Result<(), ExamineError> {
        let keys = self.registry.runtime_keys(|it| it.namespace == pod.namespace() && it.name == pod.name());
        let mut outcome = Ok(());
        for key in keys {
            let (this, of, began) = (Arc::clone(self), key.clone(), Instant::now());
            let evidence = spawn_blocking(move || this.evidence(&of)).await?;
            let Some((identity, evidence)) = evidence else { continue };
            let (verdict, spacing) = (Verdict::of(&evidence), self.settings.spacing);
            if self.change(|observations| observations.record(&key, identity, verdict, began, spacing)) {
                outcome = outcome.and(self.remove(key, identity).await);
            }
        }
        outcome
    }

    /// The attachments that may be orphaned, with the evidence. Changes nothing, and does not count as an
    /// observation.
    ///
    /// # Errors
    /// If the examination exceeds its deadline.
    pub async fn explain(self: &Arc<Self>) -> Result<Vec<Candidate>, ExplainError> {
        let this = Arc::clone(self);
        let explain = async {
            let permit = Arc::clone(&self.explaining).acquire_owned().await;
            // The thread holds the permit, because the thread continues after the deadline.
            spawn_blocking(move || {
                let _permit = permit;
                let keys = this.registry.runtime_keys(|_| true);
                keys.into_iter().filter_map(|key| this.candidate(key)).collect()
            })
            .await
        };
        Ok(timeout(DEADLINE, explain).await??)
    }

    /// Removes an attachment if the same incarnation is still orphaned once its key is locked.
    async fn remove(self: &Arc<Self>, key: Key, it: Identity) -> Result<(), ExamineError> {
        let (this, of) = (Arc::clone(self), key.clone());
        let is_orphaned = move || {
            let Some((identity, mut evidence)) = this.evidence(&of) else { return false };
            evidence.not_in_work = Proof::yes("garbage collection holds the lock");
            if identity != it || Verdict::of(&evidence) != Verdict::Orphaned {
                tracing::info!(key = %of, %evidence, "an attachment is no longer orphaned; keeping it");
                return false;
            }
            tracing::info!(key = %of, proofs = %evidence, "removing an orphaned attachment");
            crash::point(Step::OrphanFound);
            true
        };
        if self.engine.detach_if(&key, is_orphaned).await? {
            self.metrics.removed.inc();
        }
        self.change(|observations| observations.forget(&key));
        Ok(())
    }

    /// The evidence about the attachments of a runtime key; `None` if there are none. May block.
    fn evidence(&self, key: &Key) -> Option<(Identity, Evidence)> {
        let group = self.registry.group(key);
        let witness = Witness { pods: &self.pods, api: self.api.as_ref() };
        let evidence = Evidence::collect(&self.registry, witness, key, &group, since_boot())?;
        Some((Identity::of(group.first()?), evidence))
    }

    fn candidate(&self, key: Key) -> Option<Candidate> {
        let pod = self.registry.get(&key)?.pod;
        let (identity, evidence) = self.evidence(&key).filter(|(_, evidence)| evidence.is_suspect())?;
        let now = Instant::now();
        let since = self.observations().since(&key, identity);
        let next = *self.next_round.lock().unwrap_or_else(PoisonError::into_inner);
        let Plan { text, removes } = Verdict::of(&evidence).plan(
            &evidence,
            since.map(|since| now.duration_since(since)),
            next.map(|next| next.saturating_duration_since(now)),
            self.settings,
        );
        Some(Candidate { key, pod, evidence, verdict: text, removable: removes })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Observations) -> T) -> T {
        let mut observations = self.observations();
        let result = change(&mut observations);
        self.metrics.dangling.set(i64::try_from(observations.len()).unwrap_or(i64::MAX));
        result
    }

    fn observations(&self) -> MutexGuard<'_, Observations> {
        self.observations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
