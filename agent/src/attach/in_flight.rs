//! The ADDs in flight, so that a DEL of the same container cancels them.
//!
//! An ADD that waits for its VIF holds no key lock. Without cancellation, a DEL would find no attachment and
//! succeed, and the ADD would later attach a container that the runtime has already deleted.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::error::AttachError;
use crate::registry::Key;

/// The cancellation flag of each key with an ADD in flight.
#[derive(Debug, Clone, Default)]
pub(super) struct InFlight(Arc<Mutex<HashMap<Key, watch::Sender<bool>>>>);

/// One ADD in flight.
#[derive(Debug)]
pub(super) struct InFlightGuard {
    in_flight: InFlight,
    key: Key,
    cancelled: watch::Receiver<bool>,
}

/// The proof that no DEL has overtaken an ADD, which the ADD's locked part requires.
#[derive(Debug)]
pub(super) struct NotOvertaken(());

// === impl InFlight ===

impl InFlight {
    /// Registers an ADD until the guard is dropped.
    pub fn enter(&self, key: &Key) -> InFlightGuard {
        let cancelled = self.flags().entry(key.clone()).or_default().subscribe();
        InFlightGuard { in_flight: self.clone(), key: key.clone(), cancelled }
    }

    /// Cancels the ADDs of a key that have not plugged yet. An ADD that enters later is not affected.
    pub fn cancel(&self, key: &Key) {
        if let Some(cancelled) = self.flags().remove(key) {
            cancelled.send_replace(true);
        }
    }

    fn flags(&self) -> MutexGuard<'_, HashMap<Key, watch::Sender<bool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl InFlightGuard ===

impl InFlightGuard {
    /// To be called with the key locked: a DEL that arrives later waits for the lock.
    ///
    /// # Errors
    /// [`AttachError::Overtaken`] if a DEL has arrived since the ADD entered.
    pub fn check(&self) -> Result<NotOvertaken, AttachError> {
        if *self.cancelled.borrow() { Err(AttachError::Overtaken) } else { Ok(NotOvertaken(())) }
    }

    /// Waits for `wait`, unless a DEL arrives first.
    ///
    /// # Errors
    /// [`AttachError::Overtaken`] if a DEL arrives.
    pub async fn unless_deleted<T, E: Into<AttachError>>(
        &self,
        wait: impl Future<Output = Result<T, E>>,
    ) -> Result<T, AttachError> {
        let mut cancelled = self.cancelled.clone();
        tokio::select! {
            biased;
            // The sender is dropped only after it has sent.
            _ = cancelled.wait_for(|cancelled| *cancelled) => Err(AttachError::Overtaken),
            outcome = wait => outcome.map_err(Into::into),
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut flags = self.in_flight.flags();
        // The flag of a cancelled ADD is already removed; the flag now stored under its key belongs to a
        // later ADD.
        let is_last = |flag: &watch::Sender<bool>| flag.receiver_count() == 1;
        if self.check().is_ok() && flags.get(&self.key).is_some_and(is_last) {
            flags.remove(&self.key);
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
    async fn a_del_cancels_the_adds_of_its_key_that_entered_before_it() {
        let in_flight = InFlight::default();
        let (first, second, other) =
            (in_flight.enter(&key("a")), in_flight.enter(&key("a")), in_flight.enter(&key("b")));
        let forever = || std::future::pending::<Result<(), AttachError>>();
        let waiting = tokio::spawn(async move { first.unless_deleted(forever()).await });
        tokio::task::yield_now().await;
        in_flight.cancel(&key("a"));
        assert!(matches!(waiting.await.unwrap(), Err(AttachError::Overtaken)));
        assert!(second.check().is_err() && other.check().is_ok());
        let later = in_flight.enter(&key("a"));
        drop(second);
        assert!(later.check().is_ok());
        let waits = later.unless_deleted(forever());
        assert!(timeout(Duration::from_secs(1), waits).await.is_err());
        in_flight.cancel(&key("a"));
        assert!(later.check().is_err(), "the drop of an older guard keeps the flag of a newer ADD");
        let decided = later.unless_deleted(std::future::ready(Ok::<_, AttachError>(())));
        assert!(
            matches!(decided.await, Err(AttachError::Overtaken)),
            "also if the wait ends at the same time"
        );
    }

    #[test]
    fn no_flag_is_left_after_the_last_add_of_a_key() {
        let in_flight = InFlight::default();
        let (first, second) = (in_flight.enter(&key("a")), in_flight.enter(&key("a")));
        drop(first);
        assert_eq!(in_flight.flags().len(), 1);
        drop(second);
        in_flight.cancel(&key("never"));
        assert!(in_flight.flags().is_empty());
    }
}
