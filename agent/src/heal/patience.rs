//! How often one attachment, or one thing of the node, is repaired: at once, and the more seldom the more often somebody breaks it again.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::deviation::Subject;

/// What was repaired lately, or could not be.
#[derive(Debug, Default)]
pub(super) struct Patience(HashMap<Subject, Tries>);

#[derive(Debug)]
struct Tries {
    count: u32,
    last: Instant,
}

/// The wait after the first repair, which doubles with each.
const FIRST: Duration = Duration::from_millis(500);
/// The longest.
const LONGEST: Duration = Duration::from_secs(60);
/// After this long without a repair all is forgotten.
const CALM: Duration = Duration::from_secs(300);
/// As many repairs in a row are a fight.
pub(super) const FIGHT: u32 = 5;

// === impl Patience ===

impl Patience {
    /// When it may be repaired, if that is not now.
    pub(super) fn until(&self, of: &Subject, now: Instant) -> Option<Instant> {
        let tries = self.0.get(of)?;
        Some(tries.last + delay(tries.count)).filter(|due| *due > now)
    }

    /// Notes a repair, and says how many there were in a row.
    pub(super) fn note(&mut self, of: &Subject, now: Instant) -> u32 {
        let tries = self.0.entry(of.clone()).or_insert(Tries { count: 0, last: now });
        if now.duration_since(tries.last) > CALM {
            tries.count = 0;
        }
        tries.count = tries.count.saturating_add(1);
        tries.last = now;
        tries.count
    }

    /// Whether somebody keeps breaking it.
    pub(super) fn is_fight(&self, of: &Subject) -> bool {
        self.0.get(of).is_some_and(|tries| tries.count >= FIGHT)
    }

    /// Forgets what is calm, and what is gone.
    pub(super) fn tidy(&mut self, is_there: impl Fn(&Subject) -> bool, now: Instant) {
        self.0.retain(|of, tries| is_there(of) && now.duration_since(tries.last) <= CALM);
    }
}

fn delay(count: u32) -> Duration {
    // A power beyond this is longer than any wait, and must not overflow.
    FIRST.saturating_mul(1 << count.saturating_sub(1).min(16)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Key;

    #[test]
    fn the_first_repair_is_at_once_and_each_further_one_later() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        let key = Subject::Attachment(Key::try_from("net/0123/eth0".to_owned()).unwrap());
        assert_eq!(patience.until(&key, now), None);
        let mut waits = Vec::new();
        for count in 1..=10 {
            assert_eq!(patience.note(&key, now), count);
            waits.push(patience.until(&key, now).unwrap() - now);
        }
        assert_eq!(waits[0], FIRST);
        assert!(waits.is_sorted() && waits[9] == LONGEST, "{waits:?}");
        assert!(patience.is_fight(&key));
        assert_eq!(patience.until(&key, now + LONGEST), None, "its time comes");
        let later = now + CALM + FIRST;
        assert_eq!(patience.note(&key, later), 1, "it was calm");
        patience.tidy(|_| true, later);
        assert!(!patience.is_fight(&key) && patience.0.len() == 1);
        patience.tidy(|_| false, later);
        assert_eq!(patience.0.len(), 0);
    }
}
