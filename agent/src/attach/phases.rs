//! Where the time of a call goes: from its first phase to its answer, it is in one phase at a time.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// What a call is about to get done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its turn: to be admitted, the key's lock, and a thread.
    Queue,
    /// The decision about the VIF, and later for the VIF to become active.
    WaitForVif,
    /// Comparing what there is with what should be there.
    Verify,
    /// Looking at what is to be made, and setting addresses aside, durably.
    Intent,
    /// The kernel's network configuration.
    Plug,
    /// The entries in the maps.
    Dataplane,
    /// Making the outcome durable.
    Commit,
    /// Taking back what was done, after a failure.
    Undo,
}

/// A call on its way through its phases. It goes where the call goes, from thread to thread: clones are of the same call.
#[derive(Debug, Clone)]
pub(crate) struct Phases(Option<Arc<Mutex<Way>>>);

/// Where the time of a call has gone.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    pub(crate) began: SystemTime,
    pub(crate) total: Duration,
    /// The first [`MAX_SPELLS`], in order, if they were to be kept.
    pub(crate) spells: Vec<Spell>,
    spent: [Option<Duration>; Phase::ALL.len()],
}

/// A call's stay in a phase, in time since the call began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spell {
    pub(crate) phase: Phase,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

#[derive(Debug)]
struct Way {
    began: Instant,
    /// The phase that it is in, and since when.
    now: Option<(Phase, Duration)>,
    keep_spells: bool,
    so_far: Timeline,
    is_over: bool,
}

/// An ADD of one interface has ten; a GC of a full engine has hundreds, of which these tell enough.
const MAX_SPELLS: usize = 64;

// === impl Phase ===

impl Phase {
    const ALL: [Self; 8] = [
        Self::Queue,
        Self::WaitForVif,
        Self::Verify,
        Self::Intent,
        Self::Plug,
        Self::Dataplane,
        Self::Commit,
        Self::Undo,
    ];

    /// As in the metrics and the traces.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::WaitForVif => "wait_for_vif",
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
    /// Of a call that begins now. What it spent in each phase is summed up; `keep_spells` is whether to remember when,
    /// too.
    pub(crate) fn begin(keep_spells: bool) -> Self {
        let so_far = Timeline {
            began: SystemTime::now(),
            total: Duration::ZERO,
            spells: Vec::new(),
            spent: [None; Phase::ALL.len()],
        };
        let way = Way { began: Instant::now(), now: None, keep_spells, so_far, is_over: false };
        Self(Some(Arc::new(Mutex::new(way))))
    }

    /// Of no call, and keeps nothing: what the agent does by itself goes the same ways.
    pub(crate) fn untracked() -> Self {
        Self(None)
    }

    /// Ends the phase that the call is in and begins another one. In the same one it goes on.
    pub(crate) fn enter(&self, phase: Phase) {
        self.change(|way| way.turn(Some(phase)));
    }

    /// Ends the call. Nothing is kept of what goes on for it afterwards, with nobody waiting.
    pub(crate) fn end(&self) -> Option<Timeline> {
        self.change(|way| {
            way.turn(None);
            way.is_over = true;
            let spells = mem::take(&mut way.so_far.spells);
            Timeline { total: way.began.elapsed(), spells, ..way.so_far }
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Way) -> T) -> Option<T> {
        let mut way = self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        if way.is_over { None } else { Some(change(&mut way)) }
    }
}

// === impl Way ===

impl Way {
    fn turn(&mut self, next: Option<Phase>) {
        if self.now.map(|(phase, _)| phase) == next {
            return;
        }
        let at = self.began.elapsed();
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
    /// How long the call was in each phase, all its stays there together. Phases in which it never was are left out.
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
    fn a_call_is_in_one_phase_at_a_time_and_what_it_spent_in_each_is_summed_up() {
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
            "it goes on in the same one"
        );
        for (one, next) in timeline.spells.iter().zip(timeline.spells.iter().skip(1)) {
            assert_eq!(one.to, next.from, "one begins as the other ends");
        }
        let spent: Vec<_> = timeline.spent().collect();
        let phases: Vec<_> = spent.iter().map(|(phase, _)| phase.as_str()).collect();
        assert_eq!(phases, ["queue", "plug", "dataplane"]);
        assert!(spent[0].1 >= MOMENT && spent[1].1 >= MOMENT * 3 && spent[2].1 >= MOMENT, "{spent:?}");
        let sum: Duration = spent.iter().map(|(_, spent)| *spent).sum();
        assert!(timeline.spells[0].from >= MOMENT && sum + MOMENT <= timeline.total, "{timeline:?}");
    }

    #[test]
    fn it_goes_with_the_call_to_other_threads_and_ends_with_it() {
        let phases = Phases::begin(false);
        phases.enter(Phase::Queue);
        let there = phases.clone();
        std::thread::spawn(move || there.enter(Phase::Commit)).join().unwrap();
        let timeline = phases.clone().end().unwrap();
        assert_eq!(
            timeline.spent().map(|(phase, _)| phase).collect::<Vec<_>>(),
            [Phase::Queue, Phase::Commit]
        );
        assert!(timeline.spells.is_empty(), "they were not to be kept");
        phases.enter(Phase::Undo);
        assert!(phases.end().is_none(), "it is over");
    }

    #[test]
    fn spells_have_a_bound_and_their_sum_has_none() {
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
    fn what_is_done_for_no_call_is_not_kept() {
        let phases = Phases::untracked();
        phases.enter(Phase::Plug);
        assert!(phases.end().is_none());
    }
}
