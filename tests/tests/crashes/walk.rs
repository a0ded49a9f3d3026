//! The walk: each scenario once as it should be, and then once for each step that the agent has passed, up to which it
//! lives.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::node::on_node;

use crate::{
    orders::{self, AGENT, DIRECTORY, Place, VARIABLE},
    scenario::{SCENARIOS, Scenario},
    world::World,
};

/// What was seen.
#[derive(Debug, Default)]
struct Walked {
    steps: BTreeSet<String>,
    /// At which the agent has died, and how often.
    died: BTreeMap<String, usize>,
    /// At which it was to die, and which it did not come by a second time.
    missed: Vec<String>,
}

/// Scenarios at once, each on a node of its own.
const AT_ONCE: usize = 3;
/// From an order to the agent's death: the reaper and the collector take their time.
const DEATH: Duration = Duration::from_secs(15);
/// Of an agent that was told to stop.
const LAST: &str = "stop.reaped";
/// In which the reaper comes by once more, and finds nothing.
const REAPER: Duration = Duration::from_millis(200);

/// Walks through all scenarios, or one, and dies at all steps, or at one place.
///
/// # Errors
/// What was not as it should be, and after which step; and if there is a step that no scenario comes by.
pub fn walk_all(only: Option<String>, at: Option<String>) -> anyhow::Result<()> {
    let is_meant = |it: &&Scenario| only.as_ref().is_none_or(|only| it.name == only);
    let scenarios = Mutex::new(SCENARIOS.iter().filter(is_meant).collect::<VecDeque<_>>());
    let walked = Mutex::new(Walked::default());
    let at = at.map(|at| at.parse::<Place>()).transpose()?;
    // All that there are, so that each scenario says what it has found.
    let failed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = scenarios.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(scenario) = next else { return };
            let began = Instant::now();
            let it = on_node(|node| {
                node.use_agent(AGENT, &[(VARIABLE, DIRECTORY)]);
                orders::give(None)?;
                let mut world = World::new(node, scenario)?;
                let walked = walk(&mut world, scenario, at.as_ref())?;
                world.end().map(|()| walked)
            });
            match it {
                Ok(it) => {
                    let (name, deaths, missed) = (scenario.name, it.died.values().sum::<usize>(), &it.missed);
                    println!("{name}: {deaths} deaths in {:.0?}; missed: {missed:?}", began.elapsed());
                    walked.lock().unwrap_or_else(PoisonError::into_inner).take(it);
                }
                Err(error) => {
                    let text = format!("in the scenario `{}`: {error:?}", scenario.name);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push(text);
                }
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().for_each(|it| it.join().unwrap_or_else(|it| std::panic::resume_unwind(it)));
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(failed.is_empty(), "{}", failed.join("\n\n"));
    let walked = walked.into_inner().unwrap_or_else(PoisonError::into_inner);
    let never: Vec<_> = walked.steps.iter().filter(|step| !walked.died.contains_key(*step)).collect();
    ensure!(
        only.is_some() || at.is_some() || never.is_empty(),
        "the agent never died at {never:?}: let a scenario of tests/tests/crashes/scenario.rs come by"
    );
    Ok(())
}

fn walk(world: &mut World<'_>, scenario: &Scenario, only: Option<&Place>) -> anyhow::Result<Walked> {
    let mut walked = Walked::default();
    let way = live(world, scenario).context("while nobody died")?;
    walked.steps.extend(orders::steps()?);
    let counts = |it: &&Place| (scenario.counts)(&it.step) && only.is_none_or(|only| only == *it);
    for (number, place) in way.iter().filter(counts).enumerate() {
        let what = || {
            let way: Vec<_> = way.iter().map(Place::to_string).collect();
            format!("death {number}, at {place} (the way is {})", way.join(" "))
        };
        if die(world, scenario, place, number).with_context(what)? {
            *walked.died.entry(place.step.clone()).or_default() += 1;
        } else {
            walked.missed.push(place.to_string());
        }
    }
    Ok(walked)
}

/// Once through a scenario, and the way that the agent takes.
fn live(world: &mut World<'_>, scenario: &Scenario) -> anyhow::Result<Vec<Place>> {
    (scenario.prepare)(world).context("preparing it")?;
    orders::give(None)?;
    (scenario.act)(world, false)?;
    if world.node.agent_pid().is_some() {
        world.find_out()?;
        world.check()?;
        thread::sleep(REAPER);
    }
    let way = orders::passed()?;
    go_on(world, scenario, 0)?;
    Ok(way)
}

/// Lets the agent die at a place; says whether it came by.
fn die(world: &mut World<'_>, scenario: &Scenario, place: &Place, number: usize) -> anyhow::Result<bool> {
    (scenario.prepare)(world).context("preparing it")?;
    orders::give(Some(place))?;
    (scenario.act)(world, true)?;
    let ended = world.node.wait_for_crash(DEATH).is_ok();
    let (passed, died) = (orders::passed()?, ended && orders::passed()?.last() == Some(place));
    // Told to stop, it may have come to its end without coming by that place again.
    let has_stopped = passed.last().is_some_and(|last| last.step == LAST);
    ensure!(died || !ended || has_stopped, "it ended elsewhere: {passed:?}");
    orders::give(None)?;
    if died {
        world.packets_flow().context("with a dead agent")?;
        (scenario.meanwhile)(world, number).context("with a dead agent")?;
    }
    go_on(world, scenario, number)?;
    Ok(died)
}

/// What another agent finds is made whole, and the runtime tries again.
fn go_on(world: &mut World<'_>, scenario: &Scenario, number: usize) -> anyhow::Result<()> {
    if world.node.agent_pid().is_none() {
        world.node.start_again()?;
    }
    world.find_out()?;
    world.unsure.clear();
    world.check().context("with a new agent")?;
    world.packets_flow().context("with a new agent")?;
    (scenario.retry)(world, number).context("trying again")?;
    world.clear()?;
    world.check().context("at the end")
}

// === impl Walked ===

impl Walked {
    fn take(&mut self, other: Self) {
        self.steps.extend(other.steps);
        self.missed.extend(other.missed);
        for (step, times) in other.died {
            *self.died.entry(step).or_default() += times;
        }
    }
}
