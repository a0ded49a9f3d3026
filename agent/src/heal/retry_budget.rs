//! Backoff of repairs, for each subject and kind of deviation: the first repair is immediate; each further
//! one of the same kind waits longer.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::{
    backoff::Policy,
    desired::{Kind, Subject},
};

/// Recent repairs, successful or not, by subject and name of the kind.
#[derive(Debug, Default)]
pub(super) struct RetryBudget(HashMap<(Subject, &'static str), Attempts>);

#[derive(Debug)]
struct Attempts {
    count: u32,
    last: Instant,
}

const BACKOFF: Policy = Policy::new(Duration::from_millis(500), Duration::from_secs(60));
/// The budget is full again after this long without a repair.
const RESET: Duration = Duration::from_secs(300);
/// This many repairs in a row are a conflict with another program.
pub(super) const CONFLICT: u32 = 5;

// === impl RetryBudget ===

impl RetryBudget {
    /// When the next repair may start; `None` for now.
    pub(super) fn blocked_until(&self, of: &Subject, kind: Kind, now: Instant) -> Option<Instant> {
        let attempts = self.0.get(&(of.clone(), kind.name()))?;
        Some(attempts.last + BACKOFF.delay(attempts.count)).filter(|due| *due > now)
    }

    /// Records a repair, and returns the number of repairs in a row.
    pub(super) fn spend(&mut self, of: &Subject, kind: Kind, now: Instant) -> u32 {
        let none = Attempts { count: 0, last: now };
        let attempts = self.0.entry((of.clone(), kind.name())).or_insert(none);
        if now.duration_since(attempts.last) > RESET {
            attempts.count = 0;
        }
        attempts.count = attempts.count.saturating_add(1);
        attempts.last = now;
        attempts.count
    }

    /// Whether another program keeps undoing the repairs.
    pub(super) fn is_conflict(&self, of: &Subject, kind: Kind) -> bool {
        self.0.get(&(of.clone(), kind.name())).is_some_and(|attempts| attempts.count >= CONFLICT)
    }

    /// Drops subjects that do not exist any more, and those whose budget is full again.
    pub(super) fn prune(&mut self, exists: impl Fn(&Subject) -> bool, now: Instant) {
        self.0.retain(|(of, _), attempts| exists(of) && now.duration_since(attempts.last) <= RESET);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plug::filter::Hook, registry::Key};

    fn subject(container: &str) -> Subject {
        Subject::Attachment(Key::try_from(format!("net/{container}/eth0")).unwrap())
    }

    #[test]
    fn first_repair_is_immediate_and_backoff_doubles_up_to_a_minute() {
        let (mut budget, now, of) = (RetryBudget::default(), Instant::now(), subject("0123"));
        assert_eq!(budget.blocked_until(&of, Kind::LinkDown, now), None);
        for (count, wait_ms) in (1..).zip([500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]) {
            assert_eq!(budget.spend(&of, Kind::LinkDown, now), count);
            let due = now + Duration::from_millis(wait_ms);
            let blocked = |at| budget.blocked_until(&of, Kind::LinkDown, at);
            assert_eq!(blocked(now), Some(due));
            assert_eq!((blocked(due - Duration::from_nanos(1)), blocked(due)), (Some(due), None));
        }
    }

    #[test]
    fn the_fifth_repair_of_a_kind_in_a_row_is_a_conflict() {
        let (mut budget, now, of) = (RetryBudget::default(), Instant::now(), subject("0123"));
        for count in 1..=6 {
            assert_eq!(budget.is_conflict(&of, Kind::LinkDown), count > 5);
            assert_eq!(budget.spend(&of, Kind::LinkDown, now), count);
        }
        for (of, kind) in [(&of, Kind::LinkMtu), (&subject("4567"), Kind::LinkDown)] {
            assert!(!budget.is_conflict(of, kind) && budget.blocked_until(of, kind, now).is_none());
            assert_eq!(budget.spend(of, kind, now), 1, "each subject and kind has a budget");
        }
        // The two hooks are one kind.
        budget.spend(&of, Kind::Filter(Hook::FromPod), now);
        assert_eq!(budget.spend(&of, Kind::Filter(Hook::ToPod), now), 2);
    }

    #[test]
    fn five_calm_minutes_reset_the_budget() {
        let (mut budget, now, of) = (RetryBudget::default(), Instant::now(), subject("0123"));
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(budget.spend(&of, Kind::LinkDown, now), 1);
        assert_eq!(budget.spend(&of, Kind::LinkDown, after(300)), 2);
        budget.prune(|_| true, after(600));
        assert_eq!(budget.0.len(), 1, "not yet");
        assert_eq!(budget.spend(&of, Kind::LinkDown, after(601)), 1);
        budget.prune(|_| true, after(902));
        assert_eq!(budget.0.len(), 0);
        budget.spend(&of, Kind::LinkDown, after(902));
        budget.prune(|_| false, after(902));
        assert_eq!(budget.0.len(), 0, "the subject is gone");
    }
}
