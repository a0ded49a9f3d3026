//! Earlier observations of orphans: garbage collection removes an attachment only after two, apart by a
//! minimal spacing.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::verdict::Verdict;
use crate::registry::{Attachment, Key, NetnsId};

/// The incarnation of a key: the same key may be attached again, for another sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) netns: NetnsId,
    pub(super) created_since_boot_ns: u64,
}

/// The attachments that were found orphaned, each with the first time. Bounded by the number of attachments.
#[derive(Debug, Default)]
pub(super) struct Observations(HashMap<Key, (Identity, Instant)>);

// === impl Identity ===

impl Identity {
    pub(super) fn of(requested: &Attachment) -> Self {
        Self { netns: requested.netns_id, created_since_boot_ns: requested.created_since_boot_ns }
    }
}

// === impl Observations ===

impl Observations {
    /// Records a verdict. Returns whether the attachment is to be removed: every verdict since one that is at
    /// least `spacing` old found this incarnation orphaned.
    pub(super) fn record(
        &mut self,
        key: &Key,
        it: Identity,
        verdict: Verdict,
        now: Instant,
        spacing: Duration,
    ) -> bool {
        if verdict != Verdict::Orphaned {
            self.forget(key);
            return false;
        }
        match self.0.get(key) {
            Some((before, since)) if *before == it => now.duration_since(*since) >= spacing,
            _ => {
                self.0.insert(key.clone(), (it, now));
                false
            }
        }
    }

    pub(super) fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Key) -> bool) {
        self.0.retain(|key, _| keep(key));
    }

    /// When this incarnation was first found orphaned.
    pub(super) fn since(&self, key: &Key, it: Identity) -> Option<Instant> {
        self.0.get(key).filter(|(before, _)| *before == it).map(|(_, since)| *since)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACING: Duration = Duration::from_secs(30);

    fn key() -> Key {
        Key::try_from("net/0123/eth0".to_owned()).unwrap()
    }

    fn identity(created_since_boot_ns: u64) -> Identity {
        Identity { netns: NetnsId { dev: 4, ino: 7 }, created_since_boot_ns }
    }

    #[tokio::test(start_paused = true)]
    async fn orphan_is_removed_after_two_observations_with_spacing() {
        let mut observations = Observations::default();
        let mut record =
            |at: Instant| observations.record(&key(), identity(1), Verdict::Orphaned, at, SPACING);
        let now = Instant::now();
        assert!(!record(now), "first observation");
        assert!(!record(now + Duration::from_secs(29)), "too close to the first one");
        assert!(record(now + Duration::from_secs(30)));
        assert!(record(now + Duration::from_secs(31)), "again, if the removal failed");
    }

    #[tokio::test(start_paused = true)]
    async fn failed_proof_resets_the_first_observation() {
        let mut observations = Observations::default();
        let now = Instant::now();
        let mut record = |verdict, seconds| {
            let at = now + Duration::from_secs(seconds);
            observations.record(&key(), identity(1), verdict, at, SPACING)
        };
        record(Verdict::Orphaned, 0);
        assert!(!record(Verdict::PodNotGone, 60));
        assert!(!record(Verdict::Orphaned, 120), "first observation again");
        assert!(record(Verdict::Orphaned, 240));
    }

    #[tokio::test(start_paused = true)]
    async fn observation_of_an_older_sandbox_does_not_count_for_a_newer_one() {
        let mut observations = Observations::default();
        let now = Instant::now();
        observations.record(&key(), identity(1), Verdict::Orphaned, now, SPACING);
        let later = now + Duration::from_secs(600);
        assert_eq!(observations.since(&key(), identity(2)), None);
        assert!(!observations.record(&key(), identity(2), Verdict::Orphaned, later, SPACING));
        assert_eq!(observations.since(&key(), identity(2)), Some(later));
        observations.retain(|_| false);
        assert_eq!(observations.len(), 0);
    }
}
