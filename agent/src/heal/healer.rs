//! Looking, believing and repairing. All of it may block.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    deviation::{Deviation, Foreign, Kind, Subject},
    look::{self, Snapshot},
    patience::{FIGHT, Patience},
    repair,
};
use crate::{
    attach::Engine,
    chain::chain,
    metrics::HealMetrics,
    plug::{
        ends::Ends,
        host,
        netlink::{NetlinkError, Socket},
        stamp::Stamp,
        veth,
    },
    registry::{Attachment, Key, State},
};
use ferrule_vif::Addresses;

/// Finds what deviates, and puts it right if it is to.
pub struct Healer {
    engine: Arc<Engine>,
    repairs: bool,
    metrics: HealMetrics,
    memory: Mutex<Memory>,
}

/// What was found, and what is to be looked at when.
#[derive(Default)]
struct Memory {
    /// What is known to deviate: it was counted and said.
    known: HashSet<(Subject, Kind)>,
    patience: Patience,
    /// Attachments to look at again: no more than there are.
    later: HashMap<Key, Instant>,
    /// When to look at everything again, at the latest: what is of no attachment has no look of its own.
    all: Option<Instant>,
}

/// What is wrong with a node.
#[derive(Debug, Default)]
pub struct Findings {
    pub deviations: Vec<Deviation>,
    pub foreign: Vec<Foreign>,
    /// The attachments that were looked at.
    pub attachments: Vec<Attachment>,
    /// How many of them a call works on, so that nothing can be said of them.
    pub in_work: usize,
}

/// After which a call may be done with an attachment.
const IN_WORK: Duration = Duration::from_millis(500);
/// Repairs of a repair: a rename can set an interface down, and that takes its routes away.
const PASSES: usize = 3;

// === impl Healer ===

impl Healer {
    /// `repairs` is whether what is found is put right; else it is counted and said only.
    pub fn new(engine: Arc<Engine>, repairs: bool, metrics: HealMetrics) -> Self {
        Self { engine, repairs, metrics, memory: Mutex::default() }
    }

    /// Whether what is found is put right.
    pub fn repairs(&self) -> bool {
        self.repairs
    }

    pub(super) fn attachments(&self, are_meant: impl Fn(&Attachment) -> bool) -> Vec<Attachment> {
        self.engine.registry.find(are_meant)
    }

    /// Looks at everything, changes nothing and counts nothing. What is told was seen twice, the second time while no call
    /// worked on it.
    ///
    /// # Errors
    /// If the kernel refuses to tell.
    pub fn verify(&self) -> Result<Findings, NetlinkError> {
        let mut host = Socket::open()?;
        let (attachments, found, seen) = self.look(&mut host)?;
        let mut findings = Findings::default();
        for key in keys(&found) {
            let Some(attachment) = self.engine.registry.get(&key) else { continue };
            let Some(_guard) = self.engine.registry.try_lock(&attachment.runtime_key()) else {
                findings.in_work += 1;
                continue;
            };
            findings
                .deviations
                .extend(self.look_at(&mut host, &key)?.into_iter().flat_map(|(_, found)| found));
        }
        findings.deviations.extend(self.others(&mut host, found)?.0);
        for it in attachments.iter().filter(|it| it.state == State::Attached) {
            let tcx =
                it.host.device().map(|device| self.engine.dataplane.tcx(&device.ifname)).unwrap_or_default();
            findings.foreign.extend(look::foreign(it, &seen, &tcx));
        }
        findings.attachments = attachments;
        Ok(findings)
    }

    /// Looks at everything, and does what is to be done about it.
    ///
    /// # Errors
    /// If the kernel refuses to tell.
    pub(super) fn all(&self) -> Result<(), NetlinkError> {
        let mut host = Socket::open()?;
        let (attachments, found, _) = self.look(&mut host)?;
        let mut at: HashSet<Key> = keys(&found);
        self.change(|memory| {
            let is_there = |key: &Key| attachments.iter().any(|it| it.key == *key);
            memory.later.retain(|key, _| is_there(key));
            memory.patience.tidy(|of| key_of(of).is_none_or(|key| is_there(&key)), Instant::now());
            // What was known of these and is not found any more is forgotten by a look at them.
            at.extend(memory.known.iter().filter_map(|(of, _)| key_of(of)));
        });
        for key in at {
            self.examine(&mut host, &key)?;
        }
        let (others, seen) = self.others(&mut host, found)?;
        self.notice(&others, |of| key_of(of).is_none());
        for it in others.iter().filter(|_| self.repairs) {
            self.settle(it, &seen);
        }
        Ok(())
    }

    /// Looks at some attachments, and does what is to be done about them.
    ///
    /// # Errors
    /// If the kernel refuses to tell.
    pub(super) fn some(&self, keys: &HashSet<Key>) -> Result<(), NetlinkError> {
        let mut host = Socket::open()?;
        keys.iter().try_for_each(|key| self.examine(&mut host, key))
    }

    /// The attachments that are due, and when the next one is.
    pub(super) fn due(&self) -> (HashSet<Key>, Option<Instant>) {
        let now = Instant::now();
        let mut memory = self.memory();
        let due: HashSet<Key> =
            memory.later.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        memory.later.retain(|key, _| !due.contains(key));
        (due, memory.later.values().min().copied())
    }

    /// A look at everything: the attachments, what seems to deviate, and what was seen.
    fn look(&self, host: &mut Socket) -> Result<(Vec<Attachment>, Vec<Deviation>, Snapshot), NetlinkError> {
        let registry = &self.engine.registry;
        let before = registry.list();
        let indexes = before.iter().filter_map(|it| it.host.ifindex()).collect();
        let mut seen = Snapshot {
            // First: the kernel changes it before it goes through the interfaces.
            not_forwarded: host::not_forwarded(registry.families()),
            ends: Ends::all(host, &indexes)?,
            entries: self.engine.dataplane.entries(),
            programs: self.engine.dataplane.program_ids(),
            living: HashSet::new(),
            lost_pins: self.engine.dataplane.lost_pins(),
        };
        seen.living = before.iter().filter(|it| is_bereft(it, &seen.ends)).map(|it| it.key.clone()).collect();
        let found = look::all(&before, &registry.list(), &seen);
        Ok((before, found, seen))
    }

    /// A look at one attachment, if it is attached. Whoever calls has its key.
    fn look_at(
        &self,
        host: &mut Socket,
        key: &Key,
    ) -> Result<Option<(Attachment, Vec<Deviation>)>, NetlinkError> {
        let registry = &self.engine.registry;
        let Some(it) = registry.get(key).filter(|it| it.state == State::Attached) else { return Ok(None) };
        let Some(ifindex) = it.host.ifindex() else { return Ok(None) };
        let mut seen = Snapshot {
            not_forwarded: host::not_forwarded((true, false)),
            ends: Ends::one(host, ifindex)?,
            entries: self.engine.dataplane.entries_of(ifindex, it.vif.addresses),
            programs: self.engine.dataplane.program_ids(),
            living: HashSet::new(),
            lost_pins: Vec::new(),
        };
        seen.living.extend(is_bereft(&it, &seen.ends).then(|| it.key.clone()));
        let mut found = look::attachment(&it, &seen);
        let has_its = |other: &Attachment| {
            it.vif.addresses.iter().any(|its| other.vif.addresses.iter().any(|it| it == its))
        };
        found.extend(look::shared(&it, &registry.find(has_its)));
        Ok(Some((it, found)))
    }

    /// Those of what was found that are of no attachment, if a second look finds them too.
    fn others(
        &self,
        host: &mut Socket,
        found: Vec<Deviation>,
    ) -> Result<(Vec<Deviation>, Snapshot), NetlinkError> {
        let mut others = found;
        others.retain(|it| key_of(&it.of).is_none());
        if others.is_empty() {
            return Ok((others, Snapshot::default()));
        }
        let (_, again, seen) = self.look(host)?;
        others.retain(|it| again.contains(it));
        Ok((others, seen))
    }

    /// Looks at one attachment while nobody works on it, and does what is to be done about it.
    fn examine(&self, host: &mut Socket, key: &Key) -> Result<(), NetlinkError> {
        let Some(attachment) = self.engine.registry.get(key) else {
            self.notice(&[], |of| key_of(of).as_ref() == Some(key));
            return Ok(());
        };
        let Some(_guard) = self.engine.registry.try_lock(&attachment.runtime_key()) else {
            self.look_later(key, Instant::now() + IN_WORK);
            return Ok(());
        };
        let looked = self.look_at(host, key)?;
        let found = looked.as_ref().map(|(_, found)| found.as_slice()).unwrap_or_default();
        self.notice(found, |of| key_of(of).as_ref() == Some(key));
        let Some((attachment, found)) = looked.filter(|_| self.repairs) else { return Ok(()) };
        if !found.iter().any(|it| it.kind.is_repairable()) {
            return Ok(());
        }
        let due =
            self.change(|memory| memory.patience.until(&Subject::Attachment(key.clone()), Instant::now()));
        if let Some(due) = due {
            self.look_later(key, due);
            return Ok(());
        }
        self.repair(host, attachment, &found)
    }

    fn repair(&self, host: &mut Socket, mut it: Attachment, found: &[Deviation]) -> Result<(), NetlinkError> {
        let (key, mut left, mut failures) = (it.key.clone(), found.to_vec(), Vec::new());
        let of = Subject::Attachment(key.clone());
        for _ in 0..PASSES {
            // Asked after the look: what a shim deletes because nobody listens any more is not made anew.
            if self.engine.is_stopping() {
                return Ok(());
            }
            let repaired = repair::repair(&self.engine, host, &it, &left);
            (it, failures) = (repaired.attachment, repaired.failures);
            left = self.look_at(host, &key)?.map(|(_, found)| found).unwrap_or_default();
            if !failures.is_empty() || !left.iter().any(|it| it.kind.is_repairable()) {
                break;
            }
        }
        let now = Instant::now();
        let tries = self.change(|memory| memory.patience.note(&of, now));
        for Deviation { kind, .. } in found {
            let is_left = left.iter().any(|it| it.kind.name() == kind.name());
            self.metrics.repair(kind.name(), if is_left { "failed" } else { "repaired" });
        }
        if left.is_empty() {
            self.change(|memory| memory.known.retain(|(of, _)| key_of(of).as_ref() != Some(&key)));
            if tries < FIGHT {
                tracing::info!(%key, what = names(found), "put right");
            }
        } else {
            for (kind, error) in failures.iter().filter(|_| tries < FIGHT) {
                tracing::warn!(%key, kind = kind.name(), error, "cannot be put right yet; trying again");
            }
            let due = self.change(|memory| memory.patience.until(&of, now));
            if let Some(due) = due {
                self.look_later(&key, due);
            }
        }
        if tries == FIGHT {
            say_fight(&of, &names(found));
        }
        Ok(())
    }

    /// Counts and says what is new, and forgets what of the same subjects is no more.
    fn notice(&self, found: &[Deviation], of_these: impl Fn(&Subject) -> bool) {
        let mut memory = self.memory();
        memory
            .known
            .retain(|(of, kind)| !of_these(of) || found.iter().any(|it| it.of == *of && it.kind == *kind));
        for it in found {
            if memory.known.insert((it.of.clone(), it.kind)) {
                self.metrics.deviation(it.kind.name());
                if !memory.patience.is_fight(&it.of) {
                    tracing::warn!(of = %it.of, kind = it.kind.name(), "not as it should be: {}", it.what);
                }
            }
        }
    }

    /// Puts right, or removes, what is of no attachment.
    fn settle(&self, it: &Deviation, seen: &Snapshot) {
        let is_stray = matches!(it.kind, Kind::StrayLink | Kind::StrayEntry);
        // Where attachments were lost, these may be what is left of them, and carry a pod's packets.
        if is_stray && !self.engine.registry.is_complete() {
            return;
        }
        let now = Instant::now();
        if let Some(due) = self.change(|memory| memory.patience.until(&it.of, now)) {
            self.change(|memory| memory.all = memory.all.into_iter().chain([due]).min());
            return;
        }
        let Some(done) = self.settle_now(it, seen).transpose() else { return };
        self.metrics.repair(it.kind.name(), if done.is_ok() { "repaired" } else { "failed" });
        let tries = self.change(|memory| {
            if done.is_ok() {
                memory.known.remove(&(it.of.clone(), it.kind));
            }
            memory.patience.note(&it.of, now)
        });
        match done {
            Ok(()) if tries < FIGHT => tracing::info!(of = %it.of, what = it.kind.name(), "put right"),
            Err(error) if tries < FIGHT => {
                tracing::warn!(of = %it.of, what = it.kind.name(), error, "cannot be put right yet; trying again");
            }
            _ if tries == FIGHT => say_fight(&it.of, it.kind.name()),
            _ => {}
        }
    }

    /// Nothing comes of it if a call works on it.
    fn settle_now(&self, it: &Deviation, seen: &Snapshot) -> Result<Option<()>, String> {
        let Engine { dataplane, registry, .. } = &*self.engine;
        match &it.of {
            Subject::Attachment(_) => return Ok(None),
            Subject::Setting(_) => {
                host::forward_families(registry.families()).map_err(|error| chain(&error))?
            }
            Subject::Pin(map) => dataplane.renew_pin(map).map_err(|error| chain(&error))?,
            Subject::Entry(_) if matches!(it.kind, Kind::Entry(_)) => {
                dataplane.count_nobody().map_err(|error| chain(&error))?
            }
            Subject::Entry(entry) => {
                dataplane.forget(*entry, &seen.entries).map_err(|error| chain(&error))?
            }
            Subject::Interface(ifindex, key) => {
                let Some(_guard) = registry.try_lock(key) else { return Ok(None) };
                let is_its = |it: Attachment| {
                    it.state != State::Attached || it.host.ifindex().is_none_or(|its| its == *ifindex)
                };
                if registry.get(key).is_some_and(is_its) {
                    return Ok(None);
                }
                veth::retire(*ifindex, &Stamp::of(key), Addresses::default())
                    .map_err(|error| chain(&error))?;
                self.engine.reaper.notify();
            }
        }
        Ok(Some(()))
    }

    /// When to look at everything again, unless that comes sooner for another reason. To be asked once after each such look.
    pub(super) fn take_all(&self) -> Option<Instant> {
        self.change(|memory| memory.all.take())
    }

    /// Has an attachment looked at when its time has come.
    pub(super) fn look_later(&self, key: &Key, at: Instant) {
        self.change(|memory| {
            memory.later.insert(key.clone(), at);
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Memory) -> T) -> T {
        change(&mut self.memory())
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an attachment has lost its interface, and its namespace lives.
fn is_bereft(it: &Attachment, ends: &Ends) -> bool {
    let is_gone = it.host.ifindex().is_some_and(|ifindex| !ends.links.contains_key(&ifindex));
    is_gone && it.state == State::Attached && it.is_in_living_netns()
}

/// Once: it may go on for ever.
fn say_fight(of: &Subject, what: &str) {
    tracing::error!(
        %of,
        what,
        "it does not last, or cannot be done: is there another program that changes this? From now on it is tried at most once \
         a minute, and said no more"
    );
}

fn keys(found: &[Deviation]) -> HashSet<Key> {
    found.iter().filter_map(|it| key_of(&it.of)).collect()
}

fn key_of(of: &Subject) -> Option<Key> {
    if let Subject::Attachment(key) = of { Some(key.clone()) } else { None }
}

fn names(found: &[Deviation]) -> String {
    let mut names: Vec<&str> = found.iter().map(|it| it.kind.name()).collect();
    names.dedup();
    names.join(", ")
}
