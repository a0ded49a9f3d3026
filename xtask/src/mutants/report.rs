//! What a run found out.

use std::fmt;

use super::{
    explained::{Entry, Explained, FILE},
    mutant::Mutant,
    outcomes::{Outcome, Outcomes},
    room::Room,
};

/// The share of the mutants that tests should catch, in percent.
const GOAL: usize = 90;

/// One room.
#[derive(Debug)]
pub(super) struct Report<'a> {
    room: &'a str,
    mutants: usize,
    /// Of the chosen mutants.
    untested: usize,
    counts: Counts,
    seconds: f64,
    survivors: Vec<&'a Mutant>,
    explained: Vec<&'a Mutant>,
    stale: Vec<Stale<'a>>,
}

/// Outcomes by kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    caught: usize,
    timeouts: usize,
    missed: usize,
    unviable: usize,
}

/// An entry of the list that explains nothing.
#[derive(Debug, PartialEq, Eq)]
struct Stale<'a> {
    entry: &'a Entry,
    why: &'static str,
}

/// All rooms of a run.
#[derive(Debug, Default)]
pub(super) struct Total {
    counts: Counts,
    below_goal: Vec<String>,
    untested: usize,
    unexplained: usize,
    stale: usize,
    strays: Vec<String>,
}

// === impl Report ===

impl<'a> Report<'a> {
    pub(super) fn new(
        room: &'a Room,
        mutants: &'a [Mutant],
        chosen: &[&'a Mutant],
        outcomes: &Outcomes,
        list: &'a Explained,
    ) -> Self {
        let mut counts = Counts::default();
        let (mut survivors, mut explained) = (Vec::new(), Vec::new());
        // Not only the chosen ones: cargo-mutants 27.1 tests each deletion of a field, whatever is asked for.
        for mutant in mutants {
            match outcomes.of(&mutant.name) {
                Some(Outcome::Caught) => counts.caught += 1,
                Some(Outcome::Timeout) => counts.timeouts += 1,
                Some(Outcome::Unviable) => counts.unviable += 1,
                Some(Outcome::Missed) => {
                    counts.missed += 1;
                    if list.covers(mutant) { explained.push(mutant) } else { survivors.push(mutant) }
                }
                None => {}
            }
        }
        let stale = list.of(room).filter_map(|entry| Stale::find(entry, mutants, outcomes)).collect();
        Self {
            room: &room.name,
            mutants: mutants.len(),
            untested: chosen.iter().filter(|mutant| outcomes.of(&mutant.name).is_none()).count(),
            counts,
            seconds: outcomes.seconds,
            survivors,
            explained,
            stale,
        }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { room, mutants, untested, counts, seconds, survivors, explained, stale } = self;
        let tested = counts.tested();
        write!(f, "{room}: {counts}; tested {tested} of {mutants} mutants")?;
        if tested > 0 {
            #[expect(clippy::cast_precision_loss, reason = "some thousands at most")]
            let each = seconds / tested as f64;
            write!(f, ", {each:.1} s each")?;
        }
        if *untested > 0 {
            write!(f, "; {untested} of the sample untested, for lack of time")?;
        }
        writeln!(f)?;
        for mutant in survivors {
            writeln!(f, "  survivor: {mutant}")?;
        }
        for mutant in explained {
            writeln!(f, "  explained in {FILE}: {mutant}")?;
        }
        for Stale { entry: Entry { file, change, .. }, why } in stale {
            writeln!(f, "  stale in {FILE}, {why}: {file}: {change}")?;
        }
        Ok(())
    }
}

// === impl Counts ===

impl Counts {
    fn tested(self) -> usize {
        let Self { caught, timeouts, missed, unviable } = self;
        caught + timeouts + missed + unviable
    }

    /// The share of the mutants that compile which the tests notice, rounded down; none if there is no such
    /// mutant.
    fn share(self) -> Option<usize> {
        let Self { caught, timeouts, missed, .. } = self;
        let noticed = caught + timeouts;
        (noticed * 100).checked_div(noticed + missed)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { caught, timeouts, missed, unviable } = self;
        match self.share() {
            Some(share) => write!(f, "{share} % caught")?,
            None => f.write_str("nothing tested")?,
        }
        write!(f, " ({caught} caught, {timeouts} timeouts, {missed} missed, {unviable} unviable)")
    }
}

// === impl Stale ===

impl<'a> Stale<'a> {
    fn find(entry: &'a Entry, mutants: &[Mutant], outcomes: &Outcomes) -> Option<Self> {
        let named: Vec<&Mutant> = mutants.iter().filter(|mutant| entry.is(mutant)).collect();
        let caught = |mutant: &&Mutant| {
            matches!(outcomes.of(&mutant.name), Some(Outcome::Caught | Outcome::Timeout | Outcome::Unviable))
        };
        let why = if named.is_empty() {
            "no such mutant"
        } else if named.iter().all(caught) {
            "a test catches it"
        } else {
            return None;
        };
        Some(Self { entry, why })
    }
}

// === impl Total ===

impl Total {
    pub(super) fn add(&mut self, report: &Report<'_>) {
        let Counts { caught, timeouts, missed, unviable } = report.counts;
        self.counts.caught += caught;
        self.counts.timeouts += timeouts;
        self.counts.missed += missed;
        self.counts.unviable += unviable;
        self.untested += report.untested;
        self.unexplained += report.survivors.len();
        self.stale += report.stale.len();
        if !report.survivors.is_empty() && report.counts.share().is_some_and(|share| share < GOAL) {
            self.below_goal.push(report.room.to_owned());
        }
    }

    /// The entries of the list whose files belong to no room.
    pub(super) fn add_strays(&mut self, entries: &[&Entry]) {
        self.stale += entries.len();
        self.strays = entries.iter().map(|entry| format!("{}: {}", entry.file, entry.change)).collect();
    }

    /// Whether each room reaches the goal, or explains each of its survivors.
    pub(super) fn is_good(&self) -> bool {
        self.below_goal.is_empty()
    }

    /// Whether the whole sample was tested, every survivor is explained, and each explanation needed.
    pub(super) fn is_spotless(&self) -> bool {
        self.untested == 0 && self.unexplained == 0 && self.stale == 0
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counts, below_goal, unexplained, stale, strays, .. } = self;
        for stray in strays {
            writeln!(f, "stale in {FILE}, the file belongs to no room: {stray}")?;
        }
        write!(f, "total: {counts}; {unexplained} survivors unexplained, {stale} explanations stale")?;
        if !below_goal.is_empty() {
            write!(f, "\nbelow {GOAL} %: {}", below_goal.join(", "))?;
        }
        Ok(())
    }
}
