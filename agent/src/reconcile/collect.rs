//! Removing what dangles: nobody uses it, and no runtime deletes it any more.

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
    Settings,
    proofs::{Evidence, Proof},
    verdict::{Identity, Observations, Outlook, Verdict},
};
use crate::{
    attach::{AttachError, Engine, Phases},
    crash::{self, Step},
    health::Health,
    metrics::ReconcileMetrics,
    registry::{Attachment, Key, Pod},
    watch::ObjectKey,
};

/// Looks at attachments, and removes those that it has found dangling twice.
pub struct Collector {
    engine: Arc<Engine>,
    /// How well the API server is followed; `None` if there is none.
    api: Option<Health>,
    settings: Settings,
    metrics: ReconcileMetrics,
    observations: Mutex<Observations>,
    next_round: Mutex<Option<Instant>>,
    /// Explanations take threads from those who work: one at a time.
    explaining: Arc<Semaphore>,
}

/// An attachment that may be dangling, and what the agent will do about it.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub key: Key,
    pub pod: Pod,
    pub evidence: Evidence,
    /// One line.
    pub verdict: String,
    /// Whether it is removed at the next round, should all proofs still hold.
    pub removable: bool,
}

/// A pod's attachments could not be looked at, or not be removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("the work on them ended without a result")]
    Look(#[from] JoinError),
    #[error("cannot remove a dangling attachment")]
    Remove(#[from] AttachError),
}

/// There is no explanation.
#[derive(Debug, thiserror::Error)]
pub enum Unexplained {
    #[error(
        "to look at all attachments took too long; is a path of a namespace on a file system that hangs?"
    )]
    Late(#[from] Elapsed),
    #[error("the look at the attachments ended without a result")]
    Look(#[from] JoinError),
}

/// For an explanation; shorter than its caller waits.
const DEADLINE: Duration = Duration::from_secs(8);

// === impl Collector ===

impl Collector {
    pub(super) fn new(
        engine: Arc<Engine>,
        api: Option<Health>,
        settings: Settings,
        metrics: ReconcileMetrics,
    ) -> Self {
        Self {
            engine,
            api,
            settings,
            metrics,
            observations: Mutex::default(),
            next_round: Mutex::default(),
            explaining: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits until the node's pods are known, if anyone is to tell.
    pub(super) async fn until_known(&self) {
        if self.api.is_some() {
            self.engine.registry.pods.until_synced().await;
        }
    }

    /// The pods that a round is to look at: all that have an attachment.
    pub(super) fn begin_round(&self, next: Instant) -> BTreeSet<ObjectKey> {
        *self.next_round.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
        let keys = self.engine.registry.runtime_keys(|_| true);
        self.change(|observations| observations.retain(|key| keys.contains(key)));
        let pod = |it: Attachment| ObjectKey::new(&it.pod.namespace, &it.pod.name);
        self.engine.registry.list().into_iter().map(pod).collect()
    }

    /// Looks at the attachments of a pod, and removes those that were found dangling before, long enough ago. Those
    /// without a pod are all at the same key, an empty one.
    pub(super) async fn examine(self: &Arc<Self>, pod: &ObjectKey) -> Result<(), Failed> {
        let keys =
            self.engine.registry.runtime_keys(|it| it.namespace == pod.namespace && it.name == pod.name);
        let mut outcome = Ok(());
        for key in keys {
            let (this, of, began) = (Arc::clone(self), key.clone(), Instant::now());
            let Some((identity, evidence)) = spawn_blocking(move || this.look(&of)).await? else { continue };
            let (verdict, spacing) = (Verdict::of(&evidence), self.settings.spacing);
            if self.change(|observations| observations.note(&key, identity, verdict, began, spacing)) {
                outcome = outcome.and(self.remove(key, identity).await);
            }
        }
        outcome
    }

    /// All that may be dangling, with what speaks for and against it. Changes nothing, and is no look that counts.
    ///
    /// # Errors
    /// If it takes too long.
    pub async fn explain(self: &Arc<Self>) -> Result<Vec<Candidate>, Unexplained> {
        let this = Arc::clone(self);
        let explain = async {
            let alone = Arc::clone(&self.explaining).acquire_owned().await;
            // Held by the work itself, which goes on when nobody waits for it any more.
            spawn_blocking(move || {
                let _alone = alone;
                let keys = this.engine.registry.runtime_keys(|_| true);
                keys.into_iter().filter_map(|key| this.candidate(key)).collect()
            })
            .await
        };
        Ok(timeout(DEADLINE, explain).await??)
    }

    /// Removes an attachment, unless a last look, with its key locked, shows it to be another one or in use.
    async fn remove(self: &Arc<Self>, key: Key, it: Identity) -> Result<(), Failed> {
        let (this, of) = (Arc::clone(self), key.clone());
        let dangles = move |_: &[Attachment]| {
            let Some((identity, mut evidence)) = this.look(&of) else { return false };
            evidence.not_in_work = Proof::yes("its lock is the collector's");
            if identity != it || Verdict::of(&evidence) != Verdict::Dangling {
                tracing::info!(key = %of, %evidence, "an attachment that had been dangling is in use");
                return false;
            }
            tracing::info!(key = %of, proofs = %evidence, "removing an attachment that dangles");
            crash::point(Step::Dangles);
            true
        };
        if self.engine.detach_if(&key, &Phases::untracked(), dangles).await? {
            self.metrics.removed.inc();
        }
        self.change(|observations| observations.forget(&key));
        Ok(())
    }

    /// Looks at all that a runtime knows by a key, if there still is anything. May block.
    fn look(&self, key: &Key) -> Option<(Identity, Evidence)> {
        let registry = &self.engine.registry;
        let group = registry.group(key);
        let evidence = Evidence::look(registry, self.api.as_ref(), key, &group)?;
        Some((Identity::of(group.first()?), evidence))
    }

    fn candidate(&self, key: Key) -> Option<Candidate> {
        let pod = self.engine.registry.get(&key)?.pod;
        let (identity, evidence) = self.look(&key).filter(|(_, evidence)| evidence.is_suspect())?;
        let now = Instant::now();
        let since = self.observations().since(&key, identity);
        let next = *self.next_round.lock().unwrap_or_else(PoisonError::into_inner);
        let Outlook { text, removes } = Verdict::of(&evidence).outlook(
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
