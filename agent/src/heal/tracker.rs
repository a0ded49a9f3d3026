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
