//! What the healer remembers between passes.

use std::{
    collections::{HashMap, HashSet},
    time::Instant,
};

use super::retry_budget::RetryBudget;
use crate::{
    desired::{Deviation, Kind, Subject},
    registry::{Attachment, Key},
};

/// The name of [`Kind::Filter`].
const FILTER: &str = "filter";

#[derive(Default)]
pub(super) struct Tracker {
    /// Deviations that were counted and logged, and persist.
    pub reported: HashSet<(Subject, Kind)>,
    pub budget: RetryBudget,
    /// When to examine attachments again; at most one entry for each attachment.
    pub scheduled: HashMap<Key, Instant>,
    /// When the next pass over everything is due at the latest, for subjects that are no attachments.
    pub full_pass_due: Option<Instant>,
}

/// Which kinds of one attachment's deviations wait for their next repair.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    blocked: HashSet<&'static str>,
    /// When the first of them is due.
    pub next: Option<Instant>,
}

// === impl Turn ===

impl Turn {
    /// Whether the repair of a kind has to wait. While the filters wait, the interface stays down: nothing
    /// may pass unchecked.
    pub fn blocks(&self, kind: Kind) -> bool {
        let is_blocked = |name| self.blocked.contains(name);
        is_blocked(kind.name()) || (kind == Kind::LinkDown && is_blocked(FILTER))
    }

    /// Whether any deviation may be repaired now.
    pub fn is_due(&self, found: &[Deviation]) -> bool {
        found.iter().any(|it| it.kind.is_repairable() && !self.blocks(it.kind))
    }
}

// === impl Tracker ===

impl Tracker {
    /// Takes the attachments that are due, and returns when the next one is.
    pub fn take_due(&mut self, now: Instant) -> (HashSet<Key>, Option<Instant>) {
        let due: HashSet<Key> =
            self.scheduled.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        self.scheduled.retain(|key, _| !due.contains(key));
        (due, self.scheduled.values().min().copied())
    }

    /// Schedules a full pass, if none is due earlier.
    pub fn advance_full_pass(&mut self, at: Instant) {
        self.full_pass_due = self.full_pass_due.into_iter().chain([at]).min();
    }

    /// Drops the state of attachments that do not exist any more, and expired budgets.
    pub fn prune(&mut self, attachments: &[Attachment], now: Instant) {
        let exists = |key: &Key| attachments.iter().any(|it| it.key == *key);
        self.scheduled.retain(|key, _| exists(key));
        self.budget.prune(|of| of.attachment().is_none_or(exists), now);
    }

    /// Decides by the retry budgets which of an attachment's deviations wait.
    pub fn turn(&self, found: &[Deviation], now: Instant) -> Turn {
        let mut turn = Turn::default();
        for it in found.iter().filter(|it| it.kind.is_repairable()) {
            let Some(due) = self.budget.blocked_until(&it.of, it.kind, now) else { continue };
            turn.blocked.insert(it.kind.name());
            turn.next = turn.next.into_iter().chain([due]).min();
        }
        turn
    }

    /// The attachments with reported deviations.
    pub fn reported_attachments(&self) -> impl Iterator<Item = &Key> {
        self.reported.iter().filter_map(|(of, _)| of.attachment())
    }

    /// Forgets the reported deviations of `these` subjects that are not in `found`, and returns the new ones
    /// in it.
    pub fn update<'a>(
        &mut self,
        found: &'a [Deviation],
        these: impl Fn(&Subject) -> bool,
    ) -> Vec<&'a Deviation> {
        let persists = |of: &Subject, kind: &Kind| found.iter().any(|it| it.of == *of && it.kind == *kind);
        self.reported.retain(|(of, kind)| !these(of) || persists(of, kind));
        found.iter().filter(|it| self.reported.insert((it.of.clone(), it.kind))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{dataplane::Entry, plug::filter::Hook};

    fn key(container: &str) -> Key {
        Key::try_from(format!("net/{container}/eth0")).unwrap()
    }

    fn deviations(kinds: &[Kind]) -> Vec<Deviation> {
        let of = || Subject::Attachment(key("a"));
        kinds.iter().map(|kind| Deviation { of: of(), kind: *kind, what: String::new() }).collect()
    }

    #[test]
    fn a_kind_in_backoff_does_not_delay_another_kind() {
        let (mut tracker, now) = (Tracker::default(), Instant::now());
        let of = Subject::Attachment(key("a"));
        for kind in [Kind::LinkMtu, Kind::LinkMtu, Kind::LinkGroup] {
            tracker.budget.spend(&of, kind, now);
        }
        let found = deviations(&[Kind::LinkMtu, Kind::LinkGroup, Kind::LinkDown]);
        let turn = tracker.turn(&found, now);
        assert_eq!(turn.next, Some(now + Duration::from_millis(500)), "the first one that is due");
        assert_eq!(found.iter().map(|it| turn.blocks(it.kind)).collect::<Vec<_>>(), [true, true, false]);
        assert!(turn.is_due(&found) && !turn.is_due(&found[..2]));
        let later = tracker.turn(&found, now + Duration::from_millis(999));
        assert_eq!(found.iter().map(|it| later.blocks(it.kind)).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(tracker.turn(&found, now + Duration::from_millis(1000)), Turn::default());
        // What the agent may not repair does not wait.
        let stamp = deviations(&[Kind::LinkStamp]);
        tracker.budget.spend(&of, Kind::LinkStamp, now);
        assert_eq!(tracker.turn(&stamp, now), Turn::default());
        assert!(!tracker.turn(&stamp, now).is_due(&stamp));
    }

    #[test]
    fn an_interface_stays_down_while_its_filters_wait() {
        let (mut tracker, now) = (Tracker::default(), Instant::now());
        let of = Subject::Attachment(key("a"));
        tracker.budget.spend(&of, Kind::Filter(Hook::FromPod), now);
        let found = deviations(&[Kind::Filter(Hook::ToPod), Kind::LinkDown, Kind::Entry(Entry::Vif(7))]);
        let turn = tracker.turn(&found, now);
        assert_eq!(found.iter().map(|it| turn.blocks(it.kind)).collect::<Vec<_>>(), [true, true, false]);
        // The filters are in place.
        assert!(!tracker.turn(&found[1..], now).blocks(Kind::LinkDown));
    }

    #[test]
    fn a_deviation_is_new_once_and_again_after_its_repair() {
        let mut tracker = Tracker::default();
        let found = deviations(&[Kind::LinkMtu, Kind::LinkGroup]);
        let any = |_: &Subject| true;
        assert_eq!(tracker.update(&found, any).len(), 2);
        assert_eq!(tracker.update(&found, any).len(), 0);
        assert_eq!(tracker.update(&found[..1], any).len(), 0);
        assert_eq!(tracker.update(&found, any).len(), 1, "the second one was gone");
        assert_eq!(tracker.update(&[], |_| false).len(), 0);
        assert_eq!(tracker.reported_attachments().count(), 2, "others' deviations stay");
    }

    #[test]
    fn attachments_are_due_at_their_time_and_forgotten_with_their_record() {
        let (mut tracker, now) = (Tracker::default(), Instant::now());
        let after = |ms| now + Duration::from_millis(ms);
        tracker.scheduled.extend([(key("a"), after(10)), (key("b"), after(20)), (key("c"), after(30))]);
        assert_eq!(tracker.take_due(after(20)), ([key("a"), key("b")].into(), Some(after(30))));
        assert_eq!(tracker.take_due(after(29)), (HashSet::new(), Some(after(30))));
        for kind in [Kind::LinkMtu, Kind::LinkGroup] {
            tracker.budget.spend(&Subject::Attachment(key("c")), kind, now);
            tracker.budget.spend(&Subject::Setting("ipv4/ip_forward"), kind, now);
        }
        tracker.prune(&[], now);
        assert_eq!(tracker.take_due(after(30)), (HashSet::new(), None));
        let blocked = |of: &Subject| tracker.budget.blocked_until(of, Kind::LinkMtu, now).is_some();
        assert!(!blocked(&Subject::Attachment(key("c"))));
        assert!(blocked(&Subject::Setting("ipv4/ip_forward")), "a setting exists without attachments");
    }

    #[test]
    fn the_earliest_full_pass_counts() {
        let (mut tracker, now) = (Tracker::default(), Instant::now());
        let after = |ms| now + Duration::from_millis(ms);
        for (at, earliest) in [(20, 20), (30, 20), (10, 10)] {
            tracker.advance_full_pass(after(at));
            assert_eq!(tracker.full_pass_due, Some(after(earliest)));
        }
    }
}
