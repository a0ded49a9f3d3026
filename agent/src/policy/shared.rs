//! What the thread and its callers share.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError},
    time::Duration,
};

use ferrule_policy::{Capacities, Compiler, PolicyId, Table};
use tokio::{sync::watch, task::spawn_blocking};

use super::{admit::AdmitError, inbox::Inbox, maps::Maps, unjudged::Unjudged};
use crate::cluster::{PodRef, Pods};

/// What the thread and its callers share.
pub(super) struct Shared {
    pub(super) maps: Arc<dyn Maps>,
    /// They tell the UIDs of static pods.
    pub(super) pods: Pods,
    inbox: Mutex<Inbox>,
    /// Something is in the inbox.
    pub(super) arrived: Condvar,
    /// The thread has answered.
    pub(super) answered: Condvar,
    compiler: Mutex<Compiler>,
    /// Of one table.
    pub(super) capacities: Capacities,
    /// Why no complete state is in force, other than that none is known.
    pub(super) obstacle: Mutex<Option<String>>,
    /// Why changes do not fit, one line for each.
    pub(super) held: Mutex<Vec<String>>,
    /// What is wrong with policies of which the newest version cannot be decoded, with their UIDs.
    pub(super) undecodable: Mutex<BTreeMap<PolicyId, (String, String)>>,
    pub(super) unjudged: Mutex<Unjudged>,
    /// Held while the maps differ from what is compiled.
    turn: Mutex<()>,
    pub(super) progress: watch::Sender<Progress>,
}

/// What the thread has come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// A complete state is compiled.
    pub(super) is_live: bool,
    /// The maps have what is compiled.
    pub(super) is_written: bool,
    /// Policies that are compiled.
    pub(super) policies: usize,
    /// Turns of the thread, so that each wakes up who waits.
    pub(super) turns: u64,
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(maps: Arc<dyn Maps>, capacities: Capacities, pods: Pods) -> Self {
        Self {
            maps,
            pods,
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            answered: Condvar::new(),
            compiler: Mutex::new(Compiler::new(Table::A, capacities)),
            capacities,
            obstacle: Mutex::default(),
            held: Mutex::default(),
            undecodable: Mutex::default(),
            unjudged: Mutex::default(),
            turn: Mutex::default(),
            progress: watch::Sender::default(),
        }
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while the thread compiles, and never while it writes.
    pub(super) fn compiler(&self) -> MutexGuard<'_, Compiler> {
        self.compiler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing if the lock is held.
    pub(super) fn try_compiler(&self) -> Option<MutexGuard<'_, Compiler>> {
        match self.compiler.try_lock() {
            Ok(compiler) => Some(compiler),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn obstacle(&self) -> Option<String> {
        self.obstacle.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_obstacle(&self, why: Option<String>) {
        *self.obstacle.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    pub(super) fn unjudged(&self) -> MutexGuard<'_, Unjudged> {
        self.unjudged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all that policies ask about a pod is known. Nothing if another thread compiles.
    pub(super) fn try_is_placed(&self, pod: &PodRef) -> Option<bool> {
        let uid = self.uid_of(pod);
        self.try_compiler().map(|compiler| is_placed(&compiler, &uid))
    }

    /// Whether all that policies ask about a pod is known. If another thread compiles, one of the pool for
    /// blocking calls waits for that.
    pub(super) async fn is_placed(self: &Arc<Self>, pod: &PodRef) -> bool {
        if let Some(is_placed) = self.try_is_placed(pod) {
            return is_placed;
        }
        let (shared, uid) = (Arc::clone(self), self.uid_of(pod));
        // Fails only while the runtime shuts down.
        spawn_blocking(move || is_placed(&shared.compiler(), &uid)).await.unwrap_or(false)
    }

    fn uid_of(&self, pod: &PodRef) -> String {
        self.pods.api_uid(pod).unwrap_or_else(|| pod.uid.clone())
    }

    /// What an ADD has waited for. Never waits.
    pub(super) fn missing(&self, pod: &PodRef, waited: Duration) -> AdmitError {
        if let Some(why) = self.obstacle() {
            return AdmitError::Refused(why);
        }
        if let Some(why) = self.inbox().expected.clone() {
            return AdmitError::Incomplete { why, waited };
        }
        if !self.progress.borrow().is_live {
            return AdmitError::NotListed(waited);
        }
        match self.try_is_placed(pod) {
            Some(false) => AdmitError::UnknownPod { pod: pod.clone(), waited },
            Some(true) | None => AdmitError::NotWritten(waited),
        }
    }
}

fn is_placed(compiler: &Compiler, uid: &str) -> bool {
    !compiler.enforces() || compiler.knows_pod(uid)
}
