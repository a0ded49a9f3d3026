//! One lock per key: what concerns one attachment happens in order, and nothing else waits for it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::OwnedMutexGuard;

use super::attachment::Key;

/// The locks of the keys that somebody works on.
#[derive(Debug, Clone, Default)]
pub struct Locks(Arc<Mutex<HashMap<Key, Arc<tokio::sync::Mutex<()>>>>>);

/// A key that nobody else works on while this lives. It may move between threads.
#[derive(Debug)]
pub struct KeyGuard {
    locks: Locks,
    key: Key,
    guard: Option<OwnedMutexGuard<()>>,
}

// === impl Locks ===

impl Locks {
    /// Waits until nobody else works on a key. Those who wait are served in order.
    pub async fn lock(&self, key: &Key) -> KeyGuard {
        let lock = Arc::clone(self.entries().entry(key.clone()).or_default());
        let mut held = KeyGuard { locks: self.clone(), key: key.clone(), guard: None };
        held.guard = Some(lock.lock_owned().await);
        held
    }

    /// Locks a key that nobody works on, nor waits to.
    pub fn try_lock(&self, key: &Key) -> Option<KeyGuard> {
        let mut entries = self.entries();
        if entries.contains_key(key) {
            return None;
        }
        let lock = Arc::clone(entries.entry(key.clone()).or_default());
        let guard = lock.try_lock_owned().ok()?;
        Some(KeyGuard { locks: self.clone(), key: key.clone(), guard: Some(guard) })
    }

    /// Whether somebody works on a key, or waits to.
    pub fn is_taken(&self, key: &Key) -> bool {
        self.entries().contains_key(key)
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Arc<tokio::sync::Mutex<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        let mut entries = self.locks.entries();
        self.guard = None;
        // Whoever waits for it has a share of it, taken while the entries were locked.
        if entries.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            entries.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ferrule_proto::names::{ContainerId, IfName, NetworkName};
    use tokio::time::timeout;

    use super::*;

    fn key(id: &str) -> Key {
        Key {
            network: NetworkName::new("net").unwrap(),
            container_id: ContainerId::new(id).unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_key_is_served_in_order_and_others_do_not_wait() {
        let locks = Locks::default();
        let first = locks.lock(&key("a")).await;
        assert!(locks.is_taken(&key("a")) && !locks.is_taken(&key("b")));
        let blocked = timeout(Duration::from_secs(1), locks.lock(&key("a"))).await;
        assert!(blocked.is_err(), "the key is taken");
        let _other = timeout(Duration::from_secs(1), locks.lock(&key("b"))).await.unwrap();
        drop(first);
        timeout(Duration::from_secs(1), locks.lock(&key("a"))).await.unwrap();
    }

    #[tokio::test]
    async fn who_does_not_wait_gets_only_what_nobody_works_on() {
        let locks = Locks::default();
        let first = locks.try_lock(&key("a")).unwrap();
        assert!(locks.try_lock(&key("a")).is_none());
        assert!(timeout(Duration::from_millis(1), locks.lock(&key("a"))).await.is_err());
        drop(first);
        assert!(locks.try_lock(&key("a")).is_some() && locks.entries().is_empty());
    }

    #[tokio::test]
    async fn nothing_is_kept_of_keys_that_nobody_works_on() {
        let locks = Locks::default();
        let first = locks.lock(&key("a")).await;
        drop(timeout(Duration::from_millis(1), locks.lock(&key("a"))).await);
        drop(first);
        assert!(locks.entries().is_empty());
    }
}
