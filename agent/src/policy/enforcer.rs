//! Owns the compiler, and writes its rows.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use ferrule_policy::{Change, Compiler, Endpoint, EndpointId};

/// Compiles changes of the cluster, and writes the rows that follow from them.
#[derive(Default)]
pub struct Enforcer {
    compiler: Mutex<Compiler>,
}

/// A pod cannot get a network, because the policies that judge it are not in the maps.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// The policies, or what they ask about pods and namespaces, have not been listed yet.
    #[error("the cluster's network policies are not known yet: {0}")]
    Unknown(String),
}

// === impl Enforcer ===

impl Enforcer {
    /// Replaces all that is known of the cluster, by complete lists: of all objects that policies concern, or
    /// of none while the cluster has no policy. Until the first call, no new pod is admitted, and the rows of
    /// an earlier agent stay. Returns at once.
    pub fn replace(&self, _state: Vec<Change>) {}

    /// The cluster has policies, and their rows will follow by [`Self::replace`]: until then, no new pod is
    /// admitted. Attached pods are judged as before. `why` says what is missing. Returns at once.
    pub fn expect(&self, _why: &str) {}

    /// Applies a change to what [`Self::replace`] has brought. Returns at once.
    pub fn submit(&self, _change: Change) {}

    /// Returns when the rows that judge a new interface are in the maps. Blocks.
    ///
    /// # Errors
    /// If the deadline passes first, or the rows do not fit.
    pub fn admit(&self, _endpoint: Endpoint, _deadline: Instant) -> Result<(), AdmitError> {
        Ok(())
    }

    /// Removes the rows that judge an interface.
    pub fn forget(&self, _id: EndpointId) {}

    /// Asks the compiler.
    pub fn read<T>(&self, ask: impl FnOnce(&Compiler) -> T) -> T {
        ask(&self.compiler())
    }

    fn compiler(&self) -> MutexGuard<'_, Compiler> {
        self.compiler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
