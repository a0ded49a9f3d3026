//! The thread: takes what waits, compiles, writes, and answers.

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use ferrule_policy::{Change, Compiler, EndpointId, Op, Table};

use super::{
    batch::Offered,
    complete::compile,
    held::Held,
    inbox::{Answer, Local, Taken},
    install::{free_table, install},
    report::{self, Report},
    shared::{Progress, Shared},
};
use crate::{
    backoff::{Backoff, Policy},
    crash::{self, Step},
    dataplane::MapFailure,
    memory,
};

pub(super) struct Worker {
    shared: Arc<Shared>,
    report: Report,
    /// A complete state that is not compiled yet, with later changes.
    pending: Option<Vec<Change>>,
    held: Held,
    is_live: bool,
    /// The maps have what is compiled.
    is_written: bool,
    backoff: Backoff,
    /// Changes have to wait until then.
    not_before: Option<Instant>,
    /// To be repeated then, without a change.
    retry_at: Option<Instant>,
    /// Held changes are offered again then.
    held_at: Option<Instant>,
    held_pause: Duration,
    /// Memory goes back to the kernel after so long without a change; none while there is none to give back.
    rest: Option<Duration>,
}

const BACKOFF: Policy = Policy::new(Duration::from_millis(200), Duration::from_secs(30))
    .with_jitter()
    .reset_after(Duration::from_secs(120));
/// Between two attempts to apply changes that did not fit.
const HELD_PAUSE: Duration = Duration::from_secs(1);
const MAX_HELD_PAUSE: Duration = Duration::from_secs(30);
/// Such a pause in durations of the last attempt, which other changes wait for: at most a twentieth of the
/// time goes into attempts.
const HELD_SHARE: u32 = 20;
/// Between two looks for the UIDs of static pods.
const LOOK: Duration = Duration::from_millis(500);
/// The same while a complete state waits for them.
const LOOK_SOON: Duration = Duration::from_millis(50);
/// Without a change for so long, free memory goes back to the kernel: changes seldom come alone.
const QUIET: Duration = Duration::from_secs(1);
/// Between two steps of that.
const BETWEEN_STEPS: Duration = Duration::from_millis(1);
/// Without anything to do.
const IDLE: Duration = Duration::from_secs(3600);

// === impl Worker ===

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, report: Report) -> Self {
        Self {
            shared,
            report,
            pending: None,
            held: Held::default(),
            is_live: false,
            is_written: true,
            backoff: Backoff::new(BACKOFF),
            not_before: None,
            retry_at: None,
            held_at: None,
            held_pause: HELD_PAUSE,
            rest: None,
        }
    }

    pub(super) fn run(&mut self) {
        loop {
            let taken = self.wait();
            self.turn(taken);
        }
    }

    fn wait(&mut self) -> Taken {
        let shared = Arc::clone(&self.shared);
        loop {
            let mut inbox = shared.inbox();
            let is_missing = inbox.look_for_uids(&shared.pods);
            if inbox.waits_for_uids(&shared.pods) {
                drop(shared.arrived.wait_timeout(inbox, LOOK_SOON));
                continue;
            }
            let now = Instant::now();
            let left = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(now));
            // Without a complete state, changes have to wait for one.
            let has_changes = !inbox.changes.is_empty() && (self.is_live || self.pending.is_some());
            let in_changes = has_changes.then(|| left(self.not_before).unwrap_or_default());
            let looks = is_missing.then_some(LOOK);
            let held = self.held_at.filter(|_| self.is_written && self.pending.is_none());
            let due = in_changes.into_iter().chain(left(self.retry_at)).chain(left(held)).min();
            let has_news = inbox.has_news && self.is_live;
            if inbox.state.is_some() || has_news || due.is_some_and(|due| due.is_zero()) {
                return inbox.take();
            }
            let wait = due.into_iter().chain(looks).chain(self.rest).min().unwrap_or(IDLE);
            let waited = shared.arrived.wait_timeout(inbox, wait).unwrap_or_else(PoisonError::into_inner);
            let is_quiet = waited.1.timed_out() && self.rest.is_some_and(|rest| wait >= rest);
            drop(waited);
            if is_quiet {
                self.give_back();
            }
        }
    }

    /// Takes one step, so that a change which has come meanwhile waits for no other.
    fn give_back(&mut self) {
        self.rest = if self.shared.compiler().pack() {
            Some(BETWEEN_STEPS)
        } else {
            memory::release();
            None
        };
    }

    fn turn(&mut self, Taken { state, changes }: Taken) {
        let shared = Arc::clone(&self.shared);
        let _turn = shared.turn();
        (self.not_before, self.retry_at) = (None, None);
        if state.is_some() {
            (self.pending, self.held, self.held_at) = (state, Held::default(), None);
        }
        match self.pending.take() {
            Some(mut pending) => {
                supersede(&mut pending, changes);
                self.replace(pending);
            }
            None => self.change(changes),
        }
        shared.set_held(self.held.refused().map(report::held).collect());
        let (is_live, is_written) = (self.is_live, self.is_written);
        let usage = shared.compiler().usage();
        self.report.usage(&usage);
        shared.progress.send_modify(|it| {
            *it = Progress { is_live, is_written, policies: usage.policies, turns: it.turns + 1 };
        });
        self.answer();
        self.rest = Some(QUIET);
    }

    /// Compiles a complete state, and replaces all rows.
    fn replace(&mut self, pending: Vec<Change>) {
        let shared = Arc::clone(&self.shared);
        let endpoints = shared.inbox().endpoints();
        let subjects = shared.maps.subjects();
        let began = Instant::now();
        let (current, epoch) = {
            let compiler = shared.compiler();
            (compiler.table(), compiler.epoch())
        };
        let epoch = subjects.values().map(|it| it.epoch).fold(epoch, u32::max);
        let table = free_table(&subjects, current);
        let mut compiler = Compiler::new(table, shared.capacities).after_epoch(epoch);
        let compiled = compile(&mut compiler, &pending, &endpoints);
        self.report.compiled(pending.len(), began.elapsed());
        match compiled {
            Ok(refused) => self.held = Held::of_state(refused),
            Err(refused) => {
                self.report.state_refused(&refused, pending.iter().find(|it| report::is_about(it, &refused)));
                shared.set_obstacle(Some(report::refused(&refused)));
                self.pending = Some(pending);
                self.not_before = Some(self.next_attempt());
                return;
            }
        }
        shared.set_obstacle(None);
        self.is_live = true;
        self.report.held(&self.held);
        let rows: Vec<Op> = compiler.rows().all().collect();
        // Dropped before the rows are written, and without the lock: both may be large.
        let old = mem::replace(&mut *shared.compiler(), compiler);
        drop((old, pending));
        self.write(|| install(&*shared.maps, &subjects, &rows, table));
        self.retry_held();
    }

    /// Applies changes to what is compiled.
    fn change(&mut self, changes: Vec<Change>) {
        let shared = Arc::clone(&self.shared);
        self.held.forget(&changes);
        let (began, number) = (Instant::now(), changes.len());
        let mut offered = Offered::default();
        let table = {
            let mut compiler = shared.compiler();
            offered.offer(&mut compiler, changes);
            self.held.is_stale |= offered.taken > 0;
            if self.held_at.take_if(|at| *at <= Instant::now()).is_some() {
                let (again, others) = (Instant::now(), offered.taken);
                offered.offer(&mut compiler, self.held.take());
                // What fits now may make room for the rest.
                self.held.is_stale = offered.taken > others;
                self.held_pause = (again.elapsed() * HELD_SHARE).clamp(HELD_PAUSE, MAX_HELD_PAUSE);
            }
            compiler.table()
        };
        self.report.compiled(number, began.elapsed());
        for (change, why) in offered.refused {
            self.held.hold(change, why);
        }
        self.held.settle();
        self.report.held(&self.held);
        if self.is_written {
            self.write(|| shared.maps.apply(&offered.rows, table));
            crash::point(Step::PolicyChanged);
        } else {
            self.renew();
        }
        self.retry_held();
    }

    /// Other changes may have made room for the held ones.
    fn retry_held(&mut self) {
        if self.held.is_stale && !self.held.is_empty() && self.held_at.is_none() {
            self.held_at = Some(Instant::now() + self.held_pause);
        }
    }

    /// Compiles all that is known once more, after a failed write.
    fn renew(&mut self) {
        let shared = Arc::clone(&self.shared);
        let subjects = shared.maps.subjects();
        let renewed: Result<(Vec<Op>, Table), _> = {
            let mut compiler = shared.compiler();
            let table = free_table(&subjects, compiler.table());
            compiler.renew(table).map(|()| (compiler.rows().all().collect(), table))
        };
        match renewed {
            Ok((rows, table)) => self.write(|| install(&*shared.maps, &subjects, &rows, table)),
            Err(refused) => {
                self.report.state_refused(&refused, None);
                self.retry_at = Some(self.next_attempt());
            }
        }
    }

    fn write(&mut self, write: impl FnOnce() -> Result<(), MapFailure>) {
        let began = Instant::now();
        let written = write();
        self.report.written(began.elapsed());
        match written {
            Ok(()) => {
                self.is_written = true;
                let unjudged = self.shared.unjudged().clone();
                let compiler = self.shared.compiler();
                self.shared.maps.count(compiler.rows());
                self.report.in_force(&compiler, &self.held, &unjudged);
            }
            Err(error) => self.not_written(&error),
        }
    }

    fn not_written(&mut self, error: &MapFailure) {
        self.is_written = false;
        let at = self.next_attempt();
        // Changes wait, too: each attempt writes everything.
        (self.not_before, self.retry_at) = (Some(at), Some(at));
        self.report.not_written(error);
    }

    fn next_attempt(&mut self) -> Instant {
        Instant::now() + self.backoff.next(tokio::time::Instant::now())
    }

    /// Answers those who wait for an interface.
    fn answer(&self) {
        let shared = &self.shared;
        // In this order: a watch that writes to the inbox waits for no reader of the compiler.
        let compiler = shared.compiler();
        let mut inbox = shared.inbox();
        let asking = inbox.locals.iter().filter(|(_, local)| !local.is_settled());
        let asking = asking.map(|(id, _)| *id).filter(|id| !inbox.is_outdated(*id));
        let obstacle = shared.obstacle();
        for id in asking.collect::<Vec<EndpointId>>() {
            let Some(local) = inbox.locals.get_mut(&id) else { continue };
            local.has_row = compiler.rows().endpoint(id).is_some();
            if local.answer != Answer::Admitted {
                local.answer = self.answer_of(id, local, obstacle.as_deref());
            }
        }
        drop(compiler);
        shared.answered.notify_all();
    }

    fn answer_of(&self, id: EndpointId, local: &Local, obstacle: Option<&str>) -> Answer {
        if let Some(why) = obstacle {
            return Answer::Refused(why.to_owned());
        }
        if self.pending.is_some() || !self.is_live || !self.is_written {
            return Answer::Waiting;
        }
        match self.held.obstacle(id, &local.interface.pod.namespace) {
            Some(why) => Answer::Refused(report::refused(why)),
            None if local.has_row => Answer::Admitted,
            None => Answer::Waiting,
        }
    }
}

/// Adds later changes to a complete state, but those of interfaces: all of these are added when the state is
/// compiled.
fn supersede(state: &mut Vec<Change>, mut later: Vec<Change>) {
    later.retain(|it| !is_of_endpoint(it));
    if !later.is_empty() {
        let objects: HashSet<_> = later.iter().map(Change::object).collect();
        state.retain(|it| !objects.contains(&it.object()));
        state.append(&mut later);
    }
}

fn is_of_endpoint(change: &Change) -> bool {
    matches!(change, Change::Endpoint(_) | Change::EndpointGone { .. })
}
