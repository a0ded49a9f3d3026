//! Kills at random times: in each round, the agent is killed during concurrent calls or during its start.
//! Afterwards a new agent must restore all invariants, and every call must succeed when retried.

use std::{
    collections::BTreeSet,
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, ensure};
use fastrand::Rng;
use ferrule_tests::{node::on_node, pod::Pod, runtime::Runtime};

use crate::{fixture::Fixture, scenario::DEFAULT};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Add,
    Del,
    Check,
    Gc,
}

/// Pods that are added and deleted.
const SLOTS: usize = 4;
/// Range of the time to the kill, in milliseconds. An ADD of the test build takes a fifth.
const MOMENTS: u64 = 60;
/// Duration of a start on an idle machine, in milliseconds.
const START: u64 = 400;

/// Kills the agent `kills` times.
///
/// # Errors
/// The round and what was wrong.
pub fn kill_often(kills: u64, seed: u64) -> anyhow::Result<()> {
    let began = Instant::now();
    on_node(|node| {
        let mut fixture = Fixture::new(node, &DEFAULT)?;
        for number in 0..SLOTS {
            let pod = fixture.node.pod(&format!("p{number}"))?;
            fixture.pods.push(pod);
        }
        for number in 0..kills {
            // Seeded per round, so that a failed round can be repeated alone.
            let mut rng = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(number));
            round(&mut fixture, &mut rng).with_context(|| format!("round {number} of seed {seed}"))?;
        }
        for pod in fixture.pods.clone() {
            fixture.del(&pod)?;
        }
        fixture.clear()?;
        fixture.check()?;
        fixture.end()
    })?;
    println!("{kills} kills in {:.0?}", began.elapsed());
    Ok(())
}

fn round(fixture: &mut Fixture<'_>, rng: &mut Rng) -> anyhow::Result<()> {
    if rng.u8(..3) == 0 {
        kill_during_start(fixture, rng)?;
    } else {
        kill_during_calls(fixture, rng)?;
    }
    fixture.ping_bystanders().context("without an agent")?;
    fixture.node.start_again()?;
    fixture.resolve_unknown()?;
    fixture.check().context("with a new agent")?;
    for pod in &mut fixture.pods.clone() {
        let is_unsure = fixture.unknown.contains(&pod.container_id);
        if !is_unsure {
            continue;
        }
        // The runtime retries calls of unknown outcome.
        match rng.u8(..3) {
            0 => fixture.add(pod)?,
            1 => fixture.del(pod)?,
            _ => {
                fixture.del(pod)?;
                fixture.add(pod)?;
            }
        }
    }
    fixture.unknown.clear();
    fixture.check().context("after the round")
}

fn kill_during_start(fixture: &mut Fixture<'_>, rng: &mut Rng) -> anyhow::Result<()> {
    fixture.node.kill_agent()?;
    let pod = fixture.pods.get(rng.usize(..SLOTS)).cloned().context("no such pod")?;
    // Leaves the start something to find, or nothing.
    fixture.del(&pod)?;
    if rng.u8(..3) == 0 {
        fs::remove_dir_all("/sys/fs/bpf/ferrule")?;
    }
    fixture.node.begin_start()?;
    thread::sleep(Duration::from_millis(rng.u64(..START)));
    fixture.node.kill_agent()
}

fn kill_during_calls(fixture: &mut Fixture<'_>, rng: &mut Rng) -> anyhow::Result<()> {
    let calls: Vec<(Pod, Call)> = fixture.pods.iter().map(|pod| (pod.clone(), choose(rng))).collect();
    let moment = Duration::from_micros(rng.u64(..MOMENTS * 1000));
    let (runtime, valid) = (&fixture.runtime, fixture.valid());
    let gc = runtime.clone().with("cni.dev/valid-attachments", valid);
    let node = &mut fixture.node;
    let answers: Vec<anyhow::Result<bool>> = thread::scope(|scope| {
        let made: Vec<_> = calls
            .iter()
            .map(|(pod, call)| {
                let runtime = if *call == Call::Gc { &gc } else { runtime };
                scope.spawn(move || make(*call, runtime, pod))
            })
            .collect();
        thread::sleep(moment);
        let killed = node.kill_agent();
        let answers = made.into_iter().map(|it| it.join().map_err(|_| anyhow!("a call panicked")).flatten());
        answers.chain([killed.map(|()| true)]).collect()
    });
    let has_gc = calls.iter().any(|(_, call)| *call == Call::Gc);
    let mut unknown = BTreeSet::new();
    for ((pod, call), answer) in calls.iter().zip(answers) {
        let done = answer.with_context(|| format!("{call:?} of {}", pod.name))?;
        let attached = &mut fixture.attached;
        match (call, done) {
            _ if has_gc => drop(unknown.insert(pod.container_id.clone())),
            (Call::Add, true) => drop(attached.insert(pod.container_id.clone())),
            (Call::Del, true) => drop(attached.remove(&pod.container_id)),
            (Call::Del, false) => ensure!(false, "DEL failed without an agent"),
            (Call::Check, _) => {}
            (Call::Add | Call::Gc, _) => drop(unknown.insert(pod.container_id.clone())),
        }
    }
    fixture.unknown.extend(unknown);
    Ok(())
}

fn choose(rng: &mut Rng) -> Call {
    match rng.u8(..10) {
        0..5 => Call::Add,
        5..8 => Call::Del,
        8 => Call::Check,
        _ => Call::Gc,
    }
}

/// Makes a call; returns whether it succeeded.
fn make(call: Call, runtime: &Runtime, pod: &Pod) -> anyhow::Result<bool> {
    let verb = match call {
        Call::Add => "ADD",
        Call::Del => "DEL",
        Call::Check => "CHECK",
        Call::Gc => "GC",
    };
    let answer = runtime.call(verb, pod)?;
    if answer.status.success() {
        return Ok(true);
    }
    // A failure must be a valid CNI error.
    answer.into_error().map(|_| false)
}
