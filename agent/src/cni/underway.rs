//! The ADDs that are under way, so that a DEL of the same container ends them.
//!
//! An ADD may wait for its VIF for a long time, and does not keep others from its key meanwhile. Were a DEL that comes then
//! to find nothing and leave it at that, the ADD would attach afterwards what the runtime believes to be gone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::error::VerbError;
use crate::registry::Key;

/// By key, what tells its ADDs that a DEL has come.
#[derive(Debug, Clone, Default)]
pub(super) struct Underway(Arc<Mutex<HashMap<Key, watch::Sender<bool>>>>);

/// One ADD.
#[derive(Debug)]
pub(super) struct Ticket {
    underway: Underway,
    key: Key,
    deleted: watch::Receiver<bool>,
}

// === impl Underway ===

impl Underway {
    /// Notes that an ADD has begun.
    pub fn enter(&self, key: &Key) -> Ticket {
        let deleted = self.entries().entry(key.clone()).or_default().subscribe();
        Ticket { underway: self.clone(), key: key.clone(), deleted }
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

// === impl Ticket ===

impl Ticket {
    /// Whether to go on. To be asked with the key locked: a DEL that comes after that waits for the lock.
    ///
    /// # Errors
    /// If a DEL has come since.
    pub fn check(&self) -> Result<(), VerbError> {
        if *self.deleted.borrow() { Err(VerbError::Overtaken) } else { Ok(()) }
    }

    /// Waits for something unless a DEL comes.
    ///
    /// # Errors
    /// If one does.
    pub async fn unless_deleted<T>(
        &self,
        wait: impl Future<Output = Result<T, VerbError>>,
    ) -> Result<T, VerbError> {
        let mut deleted = self.deleted.clone();
        tokio::select! {
            biased;
            outcome = wait => outcome,
            // The sender goes only after it has sent.
            _ = deleted.wait_for(|deleted| *deleted) => Err(VerbError::Overtaken),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut entries = self.underway.entries();
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
        let underway = Underway::default();
        let (first, second, other) =
            (underway.enter(&key("a")), underway.enter(&key("a")), underway.enter(&key("b")));
        let forever = || std::future::pending::<Result<(), VerbError>>();
        let waiting = tokio::spawn(async move { first.unless_deleted(forever()).await });
        tokio::task::yield_now().await;
        underway.delete(&key("a"));
        assert!(matches!(waiting.await.unwrap(), Err(VerbError::Overtaken)));
        assert!(second.check().is_err() && other.check().is_ok());
        let later = underway.enter(&key("a"));
        drop(second);
        assert!(later.check().is_ok());
        let waits = later.unless_deleted(forever());
        assert!(timeout(Duration::from_secs(1), waits).await.is_err());
        underway.delete(&key("a"));
        assert!(later.check().is_err(), "an older ADD has not taken the newer one's place with it");
    }

    #[test]
    fn nothing_is_kept_of_adds_that_are_done() {
        let underway = Underway::default();
        let (first, second) = (underway.enter(&key("a")), underway.enter(&key("a")));
        drop(first);
        assert_eq!(underway.entries().len(), 1);
        drop(second);
        underway.delete(&key("never"));
        assert!(underway.entries().is_empty());
    }
}
