//! The limits on concurrent calls.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::AttachError;

/// Concurrency limits of the engine.
#[derive(Debug)]
pub(super) struct Limits {
    /// ADDs: running, queued for a thread, or waiting for a VIF.
    attaching: Arc<Semaphore>,
    /// All other calls.
    others: Arc<Semaphore>,
    /// Calls on a blocking thread.
    working: Arc<Semaphore>,
}

/// A slot of an admitted call; dropping the value frees the slot.
pub(super) type Admission = OwnedSemaphorePermit;

/// Calls admitted at once, for ADDs and for others each; more than a node has pods.
const MAX_CALLS: u32 = 1024;
/// Calls on a blocking thread at once. The kernel serializes network changes under RTNL, so that more threads
/// would only wait there.
const MAX_WORKING: u32 = 8;

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        let semaphore = |permits: u32| Arc::new(Semaphore::new(permits as usize));
        Self {
            attaching: semaphore(MAX_CALLS),
            others: semaphore(MAX_CALLS),
            working: semaphore(MAX_WORKING),
        }
    }
}

impl Limits {
    pub fn admit_attach(&self) -> Result<Admission, AttachError> {
        admit(&self.attaching)
    }

    pub fn admit_other(&self) -> Result<Admission, AttachError> {
        admit(&self.others)
    }

    /// Waits for a blocking thread.
    pub async fn work(&self) -> Result<Admission, AttachError> {
        Arc::clone(&self.working).acquire_owned().await.map_err(|_| AttachError::Lost)
    }

    /// Waits until all slots are free. The rollback of an abandoned call holds a `working` slot to its end.
    pub async fn drained(&self) {
        for (slots, all) in
            [(&self.attaching, MAX_CALLS), (&self.others, MAX_CALLS), (&self.working, MAX_WORKING)]
        {
            // The semaphores are never closed.
            let _ = slots.acquire_many(all).await;
        }
    }
}

fn admit(slots: &Arc<Semaphore>) -> Result<Admission, AttachError> {
    Arc::clone(slots).try_acquire_owned().map_err(|_| AttachError::Busy(MAX_CALLS))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waiting_adds_leave_slots_for_every_other_call() {
        let limits = Limits::default();
        let adds: Vec<_> = (0..1024).map(|_| limits.admit_attach().unwrap()).collect();
        assert!(matches!(limits.admit_attach(), Err(AttachError::Busy(1024))));
        let others: Vec<_> = (0..1024).map(|_| limits.admit_other().unwrap()).collect();
        assert!(matches!(limits.admit_other(), Err(AttachError::Busy(1024))));
        drop(adds);
        assert!(limits.admit_attach().is_ok() && limits.admit_other().is_err());
        drop(others);
        assert!(limits.admit_other().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn at_most_eight_calls_work_and_drained_waits_for_each_kind() {
        let limits = Limits::default();
        let limit = Duration::from_secs(60);
        let mut working = Vec::new();
        for _ in 0..8 {
            working.push(limits.work().await.unwrap());
        }
        assert!(timeout(limit, limits.work()).await.is_err(), "the ninth waits");
        working.pop();
        drop(timeout(limit, limits.work()).await.unwrap());
        assert!(timeout(limit, limits.drained()).await.is_err(), "work");
        working.clear();
        for slot in [limits.admit_attach(), limits.admit_other()] {
            assert!(timeout(limit, limits.drained()).await.is_err());
            drop(slot);
        }
        timeout(limit, limits.drained()).await.unwrap();
    }
}
