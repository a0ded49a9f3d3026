//! The ADDs that are under way, so that a DEL of the same container ends them.
//!
//! An ADD may wait for its VIF for a long time, and does not keep others from its key meanwhile. Were a DEL that comes then
//! to find nothing and leave it at that, the ADD would attach afterwards what the runtime believes to be gone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::error::AttachError;
use crate::registry::Key;

/// By key, what tells its ADDs that a DEL has come.
#[derive(Debug, Clone, Default)]
pub(super) struct InFlight(Arc<Mutex<HashMap<Key, watch::Sender<bool>>>>);

/// One ADD.
#[derive(Debug)]
pub(super) struct InFlightGuard {
    in_flight: InFlight,
    key: Key,
    deleted: watch::Receiver<bool>,
}

// === impl InFlight ===

impl InFlight {
    /// Notes that an ADD has begun.
    pub fn enter(&self, key: &Key) -> InFlightGuard {
        let deleted = self.entries().entry(key.clone()).or_default().subscribe();
        InFlightGuard { in_flight: self.clone(), key: key.clone(), deleted }
    }

    /// Ends the ADDs of a key that have not plugged anything yet; those that begin from now on are others.
    pub fn delete(&self, key: &Key) {
        if let Some(deleted) = self.entries().remove(key) {
            deleted.send_replace(true);
        }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Key, watch::Sender<bool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl InFlightGuard ===

impl InFlightGuard {
    /// Whether to go on. To be asked with the key locked: a DEL that comes after that waits for the lock.
    ///
    /// # Errors
    /// If a DEL has come since.
    pub fn check(&self) -> Result<(), AttachError> {
        if *self.deleted.borrow() { Err(AttachError::Overtaken) } else { Ok(()) }
    }

    /// Waits for something unless a DEL comes.
    ///
    /// # Errors
    /// If one does.
    pub async fn unless_deleted<T, E: Into<AttachError>>(
        &self,
        wait: impl Future<Output = Result<T, E>>,
    ) -> Result<T, AttachError> {
        let mut deleted = self.deleted.clone();
        tokio::select! {
            biased;
            outcome = wait => outcome.map_err(Into::into),
            // The sender goes only after it has sent.
            _ = deleted.wait_for(|deleted| *deleted) => Err(AttachError::Overtaken),
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut entries = self.in_flight.entries();
        // One that was deleted is not among them any more, though another of the same key may be.
        let is_last = |sender: &watch::Sender<bool>| sender.receiver_count() == 1;
        if self.check().is_ok() && entries.get(&self.key).is_some_and(is_last) {
            entries.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn key(id: &str) -> Key {
        Key::try_from(format!("net/{id}/eth0")).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_del_ends_the_adds_of_its_key_that_began_before_it() {
        let in_flight = InFlight::default();
        let (first, second, other) =
            (in_flight.enter(&key("a")), in_flight.enter(&key("a")), in_flight.enter(&key("b")));
        let forever = || std::future::pending::<Result<(), AttachError>>();
        let waiting = tokio::spawn(async move { first.unless_deleted(forever()).await });
        tokio::task::yield_now().await;
        in_flight.delete(&key("a"));
        assert!(matches!(waiting.await.unwrap(), Err(AttachError::Overtaken)));
        assert!(second.check().is_err() && other.check().is_ok());
        let later = in_flight.enter(&key("a"));
        drop(second);
        assert!(later.check().is_ok());
        let waits = later.unless_deleted(forever());
        assert!(timeout(Duration::from_secs(1), waits).await.is_err());
        in_flight.delete(&key("a"));
        assert!(later.check().is_err(), "an older ADD has not taken the newer one's place with it");
    }

    #[test]
    fn nothing_is_kept_of_adds_that_are_done() {
        let in_flight = InFlight::default();
        let (first, second) = (in_flight.enter(&key("a")), in_flight.enter(&key("a")));
        drop(first);
        assert_eq!(in_flight.entries().len(), 1);
        drop(second);
        in_flight.delete(&key("never"));
        assert!(in_flight.entries().is_empty());
    }
}
