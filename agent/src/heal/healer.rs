//! Passes: read, diff, report and repair. All of them may block.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    repair,
    retry_budget::CONFLICT,
    tracker::{Tracker, Turn},
};
use crate::{
    attach::Engine,
    chain::chain,
    dataplane::Dataplane,
    desired::{Deviation, Inspection, Inspector, Kind, Subject},
    health::Reporter,
    masquerade::Masquerade,
    metrics::HealMetrics,
    nodes::Keeper,
    plug::{
        netlink::{NetlinkError, Socket},
        reaper::Reaper,
    },
    policy::Enforcer,
    ports::HostPorts,
    registry::{Attachment, Key, Registry},
};

/// Finds deviations, and repairs them if enabled.
pub struct Healer {
    /// Only to restore lost interfaces.
    engine: Arc<Engine>,
    inspector: Inspector,
    reaper: Reaper,
    repairs: bool,
    metrics: HealMetrics,
    /// The state of the maps' pins.
    pins: Arc<Reporter>,
    tracker: Mutex<Tracker>,
}

/// The wait before another examination of an attachment that a call works on.
const IN_WORK: Duration = Duration::from_millis(500);
/// Passes of one repair: a rename can set an interface down, which deletes its routes.
const PASSES: usize = 3;

// === impl Healer ===

impl Healer {
    /// `repairs`: whether deviations are repaired, or only counted and logged. `pins`: reports the maps'
    /// pins.
    pub fn new(
        engine: Arc<Engine>,
        inspector: Inspector,
        reaper: Reaper,
        repairs: bool,
        metrics: HealMetrics,
        pins: Arc<Reporter>,
    ) -> Self {
        Self { engine, inspector, reaper, repairs, metrics, pins, tracker: Mutex::default() }
    }

    /// Whether deviations are repaired.
    pub fn repairs(&self) -> bool {
        self.repairs
    }

    /// Compares everything, reports, and repairs.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub(super) fn pass_over_all(&self) -> Result<(), NetlinkError> {
        let mut host = Socket::open()?;
        let Inspection { attachments, deviations, .. } = self.inspector.all(&mut host)?;
        let mut to_examine: HashSet<Key> =
            deviations.iter().filter_map(|it| it.of.attachment().cloned()).collect();
        {
            let mut tracker = self.tracker();
            tracker.prune(&attachments, Instant::now());
            // The examination forgets reported deviations that are gone.
            to_examine.extend(tracker.reported_attachments().cloned());
        }
        self.pass_over_with(&mut host, &to_examine)?;
        let (found, actual) = self.inspector.confirm_node(&mut host, deviations)?;
        self.report(&found, |of| of.attachment().is_none());
        for it in found.iter().filter(|_| self.repairs) {
            self.repair_node(it, &actual);
        }
        self.dataplane().report_pins(&self.pins);
        Ok(())
    }

    /// Compares some attachments, reports, and repairs.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub(super) fn pass_over(&self, keys: &HashSet<Key>) -> Result<(), NetlinkError> {
        self.pass_over_with(&mut Socket::open()?, keys)
    }

    pub(super) fn attachments(&self, matches: impl Fn(&Attachment) -> bool) -> Vec<Attachment> {
        self.registry().find(matches)
    }

    /// Takes the attachments that are due, and returns when the next one is.
    pub(super) fn take_due(&self) -> (HashSet<Key>, Option<Instant>) {
        self.tracker().take_due(Instant::now())
    }

    /// Takes the time by which another pass over everything is due.
    pub(super) fn take_full_pass_due(&self) -> Option<Instant> {
        self.tracker().full_pass_due.take()
    }

    /// Schedules an examination.
    pub(super) fn examine_later(&self, key: &Key, at: Instant) {
        self.tracker().scheduled.insert(key.clone(), at);
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.inspector.registry
    }

    pub(super) fn dataplane(&self) -> &Dataplane {
        &self.inspector.dataplane
    }

    pub(super) fn ports(&self) -> &HostPorts {
        &self.inspector.ports
    }

    pub(super) fn masquerade(&self) -> &Masquerade {
        &self.inspector.masquerade
    }

    pub(super) fn nodes(&self) -> &Keeper {
        &self.inspector.nodes
    }

    pub(super) fn enforcer(&self) -> &Enforcer {
        &self.inspector.enforcer
    }

    pub(super) fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    pub(super) fn metrics(&self) -> &HealMetrics {
        &self.metrics
    }

    pub(super) fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logged once: the conflict may go on for ever.
    pub(super) fn log_conflict(of: &Subject, kind: Kind) {
        tracing::error!(
            %of,
            kind = kind.name(),
            "repairs keep failing or being undone; is there another program that changes this? From now on the \
             agent does not log repairs of this kind, and retries with growing pauses, at last once a minute"
        );
    }

    fn pass_over_with(&self, host: &mut Socket, keys: &HashSet<Key>) -> Result<(), NetlinkError> {
        keys.iter().try_for_each(|key| self.examine(host, key))
    }

    /// Compares one attachment under its lock, reports, and repairs within its retry budget.
    fn examine(&self, host: &mut Socket, key: &Key) -> Result<(), NetlinkError> {
        let is_its = |of: &Subject| of.attachment() == Some(key);
        let Some(attachment) = self.registry().get(key) else {
            self.report(&[], is_its);
            return Ok(());
        };
        let Some(_guard) = self.registry().try_lock(&attachment.runtime_key()) else {
            self.examine_later(key, Instant::now() + IN_WORK);
            return Ok(());
        };
        let read = self.inspector.one(host, key)?;
        let found = read.as_ref().map(|(_, found)| found.as_slice()).unwrap_or_default();
        self.report(found, is_its);
        let Some((attachment, found)) = read.filter(|_| self.repairs) else { return Ok(()) };
        let turn = self.tracker().turn(&found, Instant::now());
        if let Some(due) = turn.next {
            self.examine_later(key, due);
        }
        if turn.is_due(&found) { self.repair(host, attachment, &found, &turn) } else { Ok(()) }
    }

    fn repair(
        &self,
        host: &mut Socket,
        mut it: Attachment,
        found: &[Deviation],
        turn: &Turn,
    ) -> Result<(), NetlinkError> {
        let (key, mut left, mut failures) = (it.key.clone(), found.to_vec(), Vec::new());
        let of = Subject::Attachment(key.clone());
        let restore = |it: &Attachment| self.engine.restore(it).map_err(|error| chain(&error));
        // By name: a repair can cause deviations of further kinds.
        let mut repaired = BTreeMap::new();
        for _ in 0..PASSES {
            // Checked after the read: from now on a shim may delete interfaces by itself, and the agent must
            // not recreate them.
            if self.engine.is_stopping() {
                return Ok(());
            }
            left.retain(|it| !turn.blocks(it.kind));
            repaired
                .extend(left.iter().filter(|it| it.kind.is_repairable()).map(|it| (it.kind.name(), it.kind)));
            let done = repair::repair(self.dataplane(), restore, host, &it, &left);
            (it, failures) = (done.attachment, done.failures);
            left = self.inspector.one(host, &key)?.map(|(_, found)| found).unwrap_or_default();
            if !failures.is_empty() || !turn.is_due(&left) {
                break;
            }
        }
        let now = Instant::now();
        let mut tracker = self.tracker();
        tracker.reported.retain(|(other, kind)| *other != of || left.iter().any(|it| it.kind == *kind));
        let mut mended = Vec::new();
        for kind in repaired.into_values() {
            let attempts = tracker.budget.spend(&of, kind, now);
            let is_left = left.iter().any(|it| it.kind.name() == kind.name());
            let count = found.iter().filter(|it| it.kind.name() == kind.name()).count();
            (0..count.max(1))
                .for_each(|_| self.metrics.repair(kind.name(), if is_left { "failed" } else { "repaired" }));
            if attempts < CONFLICT {
                let errors = failures.iter().filter(|(failed, _)| failed.name() == kind.name());
                for (_, error) in errors {
                    tracing::warn!(of = %key, kind = kind.name(), error, "repair failed; retrying");
                }
                mended.extend((!is_left).then(|| kind.name()));
            } else if attempts == CONFLICT {
                Self::log_conflict(&of, kind);
            }
        }
        if !mended.is_empty() {
            tracing::info!(of = %key, kind = mended.join(", "), "repaired");
        }
        let next = tracker.turn(&left, now).next;
        drop(tracker);
        if let Some(due) = next {
            self.examine_later(&key, due);
        }
        Ok(())
    }

    /// Counts and logs new deviations of `these` subjects, and forgets those that are gone.
    fn report(&self, found: &[Deviation], these: impl Fn(&Subject) -> bool) {
        let mut tracker = self.tracker();
        for it in tracker.update(found, these) {
            self.metrics.deviation(it.kind.name());
            if !tracker.budget.is_conflict(&it.of, it.kind) {
                tracing::warn!(of = %it.of, kind = it.kind.name(), what = it.what, "deviation found");
            }
        }
    }
}
