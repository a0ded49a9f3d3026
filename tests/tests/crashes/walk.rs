//! Runs each scenario once without a crash, and then once for each step that the agent passed, with a crash
//! at that step, when the agent first passes it, or each time.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    str::FromStr,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::node::on_node;

use crate::{
    crash_points::{self, AGENT, DIRECTORY, Place, VARIABLE},
    fixture::Fixture,
    scenario::{SCENARIOS, Scenario},
};

/// Where the agent dies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deaths {
    /// At each step, the first time.
    First,
    /// At each step, each time.
    Every,
    At(Place),
}

/// Results of a scenario.
#[derive(Debug, Default)]
struct Coverage {
    steps: BTreeSet<String>,
    /// Number of deaths by step.
    died: BTreeMap<String, usize>,
    /// Steps that the agent did not reach a second time.
    missed: Vec<String>,
}

/// Concurrent scenarios, each on a node of its own.
const CONCURRENCY: usize = 3;
/// Time limit from arming a crash to the agent's death; covers the reaper and the garbage collector.
const DEATH: Duration = Duration::from_secs(15);
/// The last step of a graceful shutdown.
const LAST: &str = "stop.reaped";
/// Time for another round of the reaper, which finds nothing.
const REAPER: Duration = Duration::from_millis(200);

/// Runs all scenarios, or one, with these crashes.
///
/// # Errors
/// A violated invariant and the step that led to it, or a step that no scenario reaches.
pub fn walk_all(only: Option<String>, deaths: &Deaths) -> anyhow::Result<()> {
    let is_meant = |it: &&Scenario| only.as_ref().is_none_or(|only| it.name == only);
    let scenarios = Mutex::new(SCENARIOS.iter().filter(is_meant).collect::<VecDeque<_>>());
    let walked = Mutex::new(Coverage::default());
    // Collects all failures, so that each scenario reports its own.
    let failed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = scenarios.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(scenario) = next else { return };
            let began = Instant::now();
            let it = on_node(|node| {
                node.use_agent(AGENT, &[(VARIABLE, DIRECTORY)]);
                crash_points::arm(None)?;
                let mut fixture = Fixture::new(node, scenario)?;
                let walked = walk(&mut fixture, scenario, deaths)?;
                fixture.end().map(|()| walked)
            });
            match it {
                Ok(it) => {
                    let (name, deaths, missed) = (scenario.name, it.died.values().sum::<usize>(), &it.missed);
                    println!("{name}: {deaths} deaths in {:.0?}; missed: {missed:?}", began.elapsed());
                    walked.lock().unwrap_or_else(PoisonError::into_inner).take(it);
                }
                Err(error) => {
                    let text = format!("scenario `{}`: {error:?}", scenario.name);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push(text);
                }
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..CONCURRENCY).map(|_| scope.spawn(work)).collect();
        workers.into_iter().for_each(|it| it.join().unwrap_or_else(|it| std::panic::resume_unwind(it)));
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(failed.is_empty(), "{}", failed.join("\n\n"));
    let walked = walked.into_inner().unwrap_or_else(PoisonError::into_inner);
    let never: Vec<_> = walked.steps.iter().filter(|step| !walked.died.contains_key(*step)).collect();
    ensure!(
        only.is_some() || matches!(deaths, Deaths::At(_)) || never.is_empty(),
        "the agent never died at {never:?}; add a scenario to tests/tests/crashes/scenario.rs"
    );
    Ok(())
}

fn walk(fixture: &mut Fixture<'_>, scenario: &Scenario, deaths: &Deaths) -> anyhow::Result<Coverage> {
    let mut walked = Coverage::default();
    let steps = run_without_crash(fixture, scenario).context("without a crash")?;
    walked.steps.extend(crash_points::steps()?);
    let counts = |it: &&Place| (scenario.is_crash_point)(&it.step) && deaths.contains(it);
    for (number, place) in steps.iter().filter(counts).enumerate() {
        let what = || {
            let steps: Vec<_> = steps.iter().map(Place::to_string).collect();
            format!("death {number}, at {place} (steps: {})", steps.join(" "))
        };
        if run_with_crash(fixture, scenario, place, number).with_context(what)? {
            *walked.died.entry(place.step.clone()).or_default() += 1;
        } else {
            walked.missed.push(place.to_string());
        }
    }
    Ok(walked)
}

/// Runs a scenario without a crash; returns the steps that the agent passed.
fn run_without_crash(fixture: &mut Fixture<'_>, scenario: &Scenario) -> anyhow::Result<Vec<Place>> {
    (scenario.prepare)(fixture).context("set-up")?;
    crash_points::arm(None)?;
    (scenario.act)(fixture, false)?;
    if fixture.node.agent_pid().is_some() {
        fixture.resolve_unknown()?;
        fixture.check()?;
        thread::sleep(REAPER);
    }
    let steps = crash_points::passed()?;
    recover(fixture, scenario, 0)?;
    Ok(steps)
}

/// Runs a scenario with a crash at a place; returns whether the agent reached the place.
fn run_with_crash(
    fixture: &mut Fixture<'_>,
    scenario: &Scenario,
    place: &Place,
    number: usize,
) -> anyhow::Result<bool> {
    (scenario.prepare)(fixture).context("set-up")?;
    crash_points::arm(Some(place))?;
    (scenario.act)(fixture, true)?;
    let ended = fixture.node.wait_for_crash(DEATH).is_ok();
    let (passed, died) = (crash_points::passed()?, ended && crash_points::passed()?.last() == Some(place));
    // An agent that shuts down may end before it reaches the place again; other threads go on meanwhile.
    let has_stopped = passed.iter().any(|it| it.step == LAST);
    ensure!(died || !ended || has_stopped, "the agent ended at another step: {passed:?}");
    crash_points::arm(None)?;
    if died {
        fixture.ping_bystanders().context("without an agent")?;
        (scenario.meanwhile)(fixture, number).context("without an agent")?;
    }
    recover(fixture, scenario, number)?;
    Ok(died)
}

/// Starts another agent, checks the invariants, and lets the runtime retry.
fn recover(fixture: &mut Fixture<'_>, scenario: &Scenario, number: usize) -> anyhow::Result<()> {
    if fixture.node.agent_pid().is_none() {
        fixture.node.start_again()?;
    }
    fixture.resolve_unknown()?;
    fixture.unknown.clear();
    fixture.check().context("with a new agent")?;
    fixture.ping_bystanders().context("with a new agent")?;
    (scenario.retry)(fixture, number).context("retry by the runtime")?;
    fixture.clear()?;
    fixture.check().context("after the retry")
}

// === impl Deaths ===

impl Deaths {
    fn contains(&self, place: &Place) -> bool {
        match self {
            Self::First => place.is_first(),
            Self::Every => true,
            Self::At(only) => only == place,
        }
    }
}

impl FromStr for Deaths {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(if text == "every" { Self::Every } else { Self::At(text.parse()?) })
    }
}

// === impl Coverage ===

impl Coverage {
    fn take(&mut self, other: Self) {
        self.steps.extend(other.steps);
        self.missed.extend(other.missed);
        for (step, times) in other.died {
            *self.died.entry(step).or_default() += times;
        }
    }
}
