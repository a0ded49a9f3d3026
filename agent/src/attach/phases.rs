//! Where the time of a call goes: a call is in exactly one phase at a time, from admission to answer.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// A step of a call, as metrics and traces report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting for the key's lock and a blocking thread.
    Queue,
    /// Waiting for the VIF to be decided, or to become active.
    WaitForVif,
    /// Policies, or what they ask about the pod, are not known yet.
    WaitForPolicy,
    /// Comparing actual with desired state.
    Verify,
    /// Planning the interfaces, and reserving addresses durably.
    Intent,
    /// Netlink requests.
    Plug,
    /// Writing map entries.
    Dataplane,
    /// Persisting the outcome.
    Commit,
    /// Rolling back after a failure.
    Undo,
}

/// The phase clock of one call. Clones share the clock, so that it follows the call across threads.
#[derive(Debug, Clone)]
pub(crate) struct Phases(Option<Arc<Mutex<Clock>>>);

/// The time a call spent, by phase.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    pub(crate) began: SystemTime,
    pub(crate) total: Duration,
    /// The first [`MAX_SPELLS`], in order; empty unless requested.
    pub(crate) spells: Vec<Spell>,
    spent: [Option<Duration>; Phase::ALL.len()],
}

/// One continuous stay in a phase; times since the call began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spell {
    pub(crate) phase: Phase,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

#[derive(Debug)]
struct Clock {
    began: Instant,
    /// The current phase and its start.
    now: Option<(Phase, Duration)>,
    /// What the current phase lacks, if that is known.
    lacks: Option<&'static str>,
    keep_spells: bool,
    so_far: Timeline,
    is_over: bool,
}

/// An ADD of one interface has ten; a GC of a full engine has hundreds, of which these tell enough.
const MAX_SPELLS: usize = 64;

// === impl Phase ===

impl Phase {
    const ALL: [Self; 9] = [
        Self::Queue,
        Self::WaitForVif,
        Self::WaitForPolicy,
        Self::Verify,
        Self::Intent,
        Self::Plug,
        Self::Dataplane,
        Self::Commit,
        Self::Undo,
    ];

    /// The label in metrics and traces.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::WaitForVif => "wait_for_vif",
            Self::WaitForPolicy => "wait_for_policy",
            Self::Verify => "verify",
            Self::Intent => "intent",
            Self::Plug => "plug",
            Self::Dataplane => "dataplane",
            Self::Commit => "commit",
            Self::Undo => "undo",
        }
    }
}

// === impl Phases ===

impl Phases {
    /// Starts the clock. Time is summed by phase; `keep_spells` also records each stay.
    pub(crate) fn begin(keep_spells: bool) -> Self {
        let so_far = Timeline {
            began: SystemTime::now(),
            total: Duration::ZERO,
            spells: Vec::new(),
            spent: [None; Phase::ALL.len()],
        };
        let (began, lacks) = (Instant::now(), None);
        let clock = Clock { began, now: None, lacks, keep_spells, so_far, is_over: false };
        Self(Some(Arc::new(Mutex::new(clock))))
    }

    /// Records nothing: for work that the agent starts by itself.
    pub(crate) fn untracked() -> Self {
        Self(None)
    }

    /// Ends the current phase and begins `phase`; no effect if `phase` is the current one.
    pub(crate) fn enter(&self, phase: Phase) {
        self.change(|clock| clock.turn(Some(phase)));
    }

    /// The phase that the call is in; `None` before the first, after the end, and if untracked.
    pub(crate) fn current(&self) -> Option<Phase> {
        self.change(|clock| clock.now.map(|(phase, _)| phase)).flatten()
    }

    /// Notes what the current phase waits for, until the next phase.
    pub(crate) fn lacks(&self, what: &'static str) {
        self.change(|clock| clock.lacks = Some(what));
    }

    /// What the current phase waits for, and how long the call has been in the phase.
    pub(crate) fn wait(&self) -> Option<(Option<&'static str>, Duration)> {
        let wait = |clock: &mut Clock| {
            let (_, from) = clock.now?;
            Some((clock.lacks, clock.began.elapsed().saturating_sub(from)))
        };
        self.change(wait).flatten()
    }

    /// Stops the clock; work that continues after the answer is not recorded. `None` if already stopped or
    /// untracked.
    pub(crate) fn end(&self) -> Option<Timeline> {
        self.change(|clock| {
            clock.turn(None);
            clock.is_over = true;
            let spells = mem::take(&mut clock.so_far.spells);
            Timeline { total: clock.began.elapsed(), spells, ..clock.so_far }
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Clock) -> T) -> Option<T> {
        let mut clock = self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        if clock.is_over { None } else { Some(change(&mut clock)) }
    }
}

// === impl Clock ===

impl Clock {
    fn turn(&mut self, next: Option<Phase>) {
        if self.now.map(|(phase, _)| phase) == next {
            return;
        }
        let at = self.began.elapsed();
        self.lacks = None;
        if let Some((phase, from)) = mem::replace(&mut self.now, next.map(|phase| (phase, at))) {
            if let Some(spent) = self.so_far.spent.get_mut(phase as usize) {
                *spent = Some(spent.unwrap_or_default() + at.saturating_sub(from));
            }
            if self.keep_spells && self.so_far.spells.len() < MAX_SPELLS {
                self.so_far.spells.push(Spell { phase, from, to: at });
            }
        }
    }
}

// === impl Timeline ===

impl Timeline {
    /// Total time by phase, without phases that the call never entered.
    pub(crate) fn spent(&self) -> impl Iterator<Item = (Phase, Duration)> {
        Phase::ALL.into_iter().zip(self.spent).filter_map(|(phase, spent)| Some((phase, spent?)))
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(2);

    #[test]
    fn time_is_summed_by_phase_and_phases_do_not_overlap() {
        let phases = Phases::begin(true);
        sleep(MOMENT);
        for phase in [Phase::Queue, Phase::Plug, Phase::Dataplane, Phase::Plug, Phase::Plug] {
            phases.enter(phase);
            sleep(MOMENT);
        }
        let timeline = phases.end().unwrap();
        let order: Vec<_> = timeline.spells.iter().map(|spell| spell.phase).collect();
        assert_eq!(
            order,
            [Phase::Queue, Phase::Plug, Phase::Dataplane, Phase::Plug],
            "entering the current phase again continues it"
        );
        for (one, next) in timeline.spells.iter().zip(timeline.spells.iter().skip(1)) {
            assert_eq!(one.to, next.from, "a spell begins where the previous one ends");
        }
        let spent: Vec<_> = timeline.spent().collect();
        let phases: Vec<_> = spent.iter().map(|(phase, _)| phase.as_str()).collect();
        assert_eq!(phases, ["queue", "plug", "dataplane"]);
        assert!(spent[0].1 >= MOMENT && spent[1].1 >= MOMENT * 3 && spent[2].1 >= MOMENT, "{spent:?}");
        let sum: Duration = spent.iter().map(|(_, spent)| *spent).sum();
        assert!(timeline.spells[0].from >= MOMENT && sum + MOMENT <= timeline.total, "{timeline:?}");
    }

    #[test]
    fn a_phase_knows_what_it_lacks_and_the_next_one_forgets_that() {
        let phases = Phases::begin(false);
        assert_eq!(phases.wait(), None);
        phases.enter(Phase::WaitForVif);
        assert_eq!(phases.wait().unwrap().0, None);
        phases.lacks("annotation");
        sleep(MOMENT);
        phases.enter(Phase::WaitForVif);
        let (lacks, since) = phases.wait().unwrap();
        assert_eq!(lacks, Some("annotation"));
        assert!(since >= MOMENT, "{since:?}");
        phases.enter(Phase::Plug);
        assert_eq!(phases.wait().unwrap().0, None);
        phases.end();
        assert_eq!(phases.wait(), None);
    }

    #[test]
    fn clones_on_other_threads_share_the_clock_until_it_stops() {
        let phases = Phases::begin(false);
        phases.enter(Phase::Queue);
        let there = phases.clone();
        std::thread::spawn(move || there.enter(Phase::Commit)).join().unwrap();
        let timeline = phases.clone().end().unwrap();
        assert_eq!(
            timeline.spent().map(|(phase, _)| phase).collect::<Vec<_>>(),
            [Phase::Queue, Phase::Commit]
        );
        assert!(timeline.spells.is_empty(), "spells were not requested");
        phases.enter(Phase::Undo);
        assert!(phases.end().is_none(), "the clock has stopped");
    }

    #[test]
    fn recorded_spells_are_bounded_and_their_sum_is_not() {
        let phases = Phases::begin(true);
        for _ in 0..MAX_SPELLS {
            phases.enter(Phase::Plug);
            phases.enter(Phase::Commit);
            sleep(Duration::from_micros(10));
        }
        let timeline = phases.end().unwrap();
        assert_eq!(timeline.spells.len(), MAX_SPELLS);
        let kept: Duration = timeline.spells.iter().map(|spell| spell.to - spell.from).sum();
        assert!(timeline.spent().map(|(_, spent)| spent).sum::<Duration>() > kept);
    }

    #[test]
    fn untracked_work_is_not_recorded() {
        let phases = Phases::untracked();
        phases.enter(Phase::Plug);
        assert!(phases.end().is_none());
    }
}
