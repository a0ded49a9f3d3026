//! One lock per key: operations on a key run in order, and operations on different keys do not wait for each
//! other.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::OwnedMutexGuard;

use super::key::Key;

/// The keys that are locked or waited for. Clones share the same locks.
#[derive(Debug, Clone, Default)]
pub struct Locks(Arc<Mutex<HashMap<Key, Arc<tokio::sync::Mutex<()>>>>>);

/// A locked key. Dropping the guard unlocks it, on any thread.
#[derive(Debug)]
pub struct KeyGuard {
    locks: Locks,
    key: Key,
    guard: Option<OwnedMutexGuard<()>>,
}

// === impl Locks ===

impl Locks {
    /// Waits for the lock of a key, in first-come order.
    pub async fn lock(&self, key: &Key) -> KeyGuard {
        let lock = Arc::clone(self.entries().entry(key.clone()).or_default());
        let mut held = KeyGuard { locks: self.clone(), key: key.clone(), guard: None };
        held.guard = Some(lock.lock_owned().await);
        held
    }

    /// Locks a key that is neither locked nor waited for.
    pub fn try_lock(&self, key: &Key) -> Option<KeyGuard> {
        let mut entries = self.entries();
        if entries.contains_key(key) {
            return None;
        }
        let lock = Arc::clone(entries.entry(key.clone()).or_default());
        let guard = lock.try_lock_owned().ok()?;
        Some(KeyGuard { locks: self.clone(), key: key.clone(), guard: Some(guard) })
    }

    /// Whether a key is locked or waited for.
    pub fn is_locked(&self, key: &Key) -> bool {
        self.entries().contains_key(key)
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Arc<tokio::sync::Mutex<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl KeyGuard ===

impl Drop for KeyGuard {
    fn drop(&mut self) {
        let mut entries = self.locks.entries();
        self.guard = None;
        // Every waiter holds a clone, taken while the entries were locked: a count of one means no waiter.
        if entries.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
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
    async fn one_key_is_exclusive_and_other_keys_do_not_wait() {
        let locks = Locks::default();
        let first = locks.lock(&key("a")).await;
        assert!(locks.is_locked(&key("a")) && !locks.is_locked(&key("b")));
        let blocked = timeout(Duration::from_secs(1), locks.lock(&key("a"))).await;
        assert!(blocked.is_err(), "the key is locked");
        let _other = timeout(Duration::from_secs(1), locks.lock(&key("b"))).await.unwrap();
        drop(first);
        timeout(Duration::from_secs(1), locks.lock(&key("a"))).await.unwrap();
    }

    #[tokio::test]
    async fn try_lock_fails_on_a_key_that_is_locked_or_waited_for() {
        let locks = Locks::default();
        let first = locks.try_lock(&key("a")).unwrap();
        assert!(locks.try_lock(&key("a")).is_none());
        assert!(timeout(Duration::from_millis(1), locks.lock(&key("a"))).await.is_err());
        drop(first);
        assert!(locks.try_lock(&key("a")).is_some() && locks.entries().is_empty());
    }

    #[tokio::test]
    async fn unlocked_keys_are_not_kept() {
        let locks = Locks::default();
        let first = locks.lock(&key("a")).await;
        drop(timeout(Duration::from_millis(1), locks.lock(&key("a"))).await);
        drop(first);
        assert!(locks.entries().is_empty());
    }
}
