//! Backoff of repairs: the first repair of a subject is immediate; each further one waits longer.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::{backoff::Policy, desired::Subject};

/// Recent repairs, successful or not, by subject.
#[derive(Debug, Default)]
pub(super) struct RetryBudget(HashMap<Subject, Attempts>);

#[derive(Debug)]
struct Attempts {
    count: u32,
    last: Instant,
}

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(60);
const BACKOFF: Policy = Policy::new(FIRST, LONGEST);
/// The budget is full again after this long without a repair.
const RESET: Duration = Duration::from_secs(300);
/// This many repairs in a row are a conflict with another program.
pub(super) const CONFLICT: u32 = 5;

// === impl RetryBudget ===

impl RetryBudget {
    /// When the next repair may start; `None` for now.
    pub(super) fn blocked_until(&self, of: &Subject, now: Instant) -> Option<Instant> {
        let attempts = self.0.get(of)?;
        Some(attempts.last + BACKOFF.delay(attempts.count)).filter(|due| *due > now)
    }

    /// Records a repair, and returns the number of repairs in a row.
    pub(super) fn spend(&mut self, of: &Subject, now: Instant) -> u32 {
        let attempts = self.0.entry(of.clone()).or_insert(Attempts { count: 0, last: now });
        if now.duration_since(attempts.last) > RESET {
            attempts.count = 0;
        }
        attempts.count = attempts.count.saturating_add(1);
        attempts.last = now;
        attempts.count
    }

    /// Whether another program keeps undoing the repairs.
    pub(super) fn is_conflict(&self, of: &Subject) -> bool {
        self.0.get(of).is_some_and(|attempts| attempts.count >= CONFLICT)
    }

    /// Drops subjects that do not exist any more, and those whose budget is full again.
    pub(super) fn prune(&mut self, exists: impl Fn(&Subject) -> bool, now: Instant) {
        self.0.retain(|of, attempts| exists(of) && now.duration_since(attempts.last) <= RESET);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Key;

    #[test]
    fn first_repair_is_immediate_and_backoff_doubles() {
        let (mut budget, now) = (RetryBudget::default(), Instant::now());
        let key = Subject::Attachment(Key::try_from("net/0123/eth0".to_owned()).unwrap());
        assert_eq!(budget.blocked_until(&key, now), None);
        let mut waits = Vec::new();
        for count in 1..=10 {
            assert_eq!(budget.spend(&key, now), count);
            waits.push(budget.blocked_until(&key, now).unwrap() - now);
        }
        assert_eq!(waits[0], FIRST);
        assert!(waits.is_sorted() && waits[9] == LONGEST, "{waits:?}");
        assert!(budget.is_conflict(&key));
        assert_eq!(budget.blocked_until(&key, now + LONGEST), None, "the backoff ends");
        let later = now + RESET + FIRST;
        assert_eq!(budget.spend(&key, later), 1, "the budget was reset");
        budget.prune(|_| true, later);
        assert!(!budget.is_conflict(&key) && budget.0.len() == 1);
        budget.prune(|_| false, later);
        assert_eq!(budget.0.len(), 0);
    }
}
