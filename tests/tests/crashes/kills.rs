//! Kills at random moments of a load of everything: rounds in which calls are made at once, or the agent starts, and is
//! killed meanwhile. After each round another agent has to bring all in order, and every call has to succeed when it is
//! tried again.

use std::{
    collections::BTreeSet,
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, ensure};
use fastrand::Rng;
use ferrule_tests::{node::on_node, pod::Pod, runtime::Runtime};

use crate::{scenario::PLAIN, world::World};

/// A call of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Add,
    Del,
    Check,
    Gc,
}

/// Pods that are added and deleted.
const SLOTS: usize = 4;
/// An ADD of the agent for tests takes a fifth of it.
const MOMENTS: u64 = 60;
/// A start takes this long, on a machine that has nothing else to do.
const START: u64 = 400;

/// Kills the agent as often as that.
///
/// # Errors
/// What was not as it should be, and in which round.
pub fn kill_often(kills: u64, seed: u64) -> anyhow::Result<()> {
    let began = Instant::now();
    on_node(|node| {
        let mut world = World::new(node, &PLAIN)?;
        for number in 0..SLOTS {
            let pod = world.node.pod(&format!("p{number}"))?;
            world.pods.push(pod);
        }
        for number in 0..kills {
            // Of its own, so that a round that failed can be seen again: it begins with what is attached, no more.
            let mut rng = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(number));
            round(&mut world, &mut rng).with_context(|| format!("round {number} of seed {seed}"))?;
        }
        for pod in world.pods.clone() {
            world.del(&pod)?;
        }
        world.clear()?;
        world.check()?;
        world.end()
    })?;
    println!("{kills} kills in {:.0?}", began.elapsed());
    Ok(())
}

fn round(world: &mut World<'_>, rng: &mut Rng) -> anyhow::Result<()> {
    if rng.u8(..3) == 0 {
        killed_at_start(world, rng)?;
    } else {
        killed_at_work(world, rng)?;
    }
    world.packets_flow().context("with a dead agent")?;
    world.node.start_again()?;
    world.find_out()?;
    world.check().context("with a new agent")?;
    for pod in &mut world.pods.clone() {
        let is_unsure = world.unsure.contains(&pod.container_id);
        if !is_unsure {
            continue;
        }
        // What the runtime does not know, it does again.
        match rng.u8(..3) {
            0 => world.add(pod)?,
            1 => world.del(pod)?,
            _ => {
                world.del(pod)?;
                world.add(pod)?;
            }
        }
    }
    world.unsure.clear();
    world.check().context("at the end")
}

fn killed_at_start(world: &mut World<'_>, rng: &mut Rng) -> anyhow::Result<()> {
    world.node.kill_agent()?;
    let pod = world.pods.get(rng.usize(..SLOTS)).cloned().context("no such pod")?;
    // Something for it to find, or nothing.
    world.del(&pod)?;
    if rng.u8(..3) == 0 {
        fs::remove_dir_all("/sys/fs/bpf/ferrule")?;
    }
    world.node.begin_start()?;
    thread::sleep(Duration::from_millis(rng.u64(..START)));
    world.node.kill_agent()
}

fn killed_at_work(world: &mut World<'_>, rng: &mut Rng) -> anyhow::Result<()> {
    let calls: Vec<(Pod, Call)> = world.pods.iter().map(|pod| (pod.clone(), choose(rng))).collect();
    let moment = Duration::from_micros(rng.u64(..MOMENTS * 1000));
    let (runtime, valid) = (&world.runtime, world.valid());
    let gc = runtime.clone().with("cni.dev/valid-attachments", valid);
    let node = &mut world.node;
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
    let mut unsure = BTreeSet::new();
    for ((pod, call), answer) in calls.iter().zip(answers) {
        let done = answer.with_context(|| format!("{call:?} of {}", pod.name))?;
        let attached = &mut world.attached;
        match (call, done) {
            _ if has_gc => drop(unsure.insert(pod.container_id.clone())),
            (Call::Add, true) => drop(attached.insert(pod.container_id.clone())),
            (Call::Del, true) => drop(attached.remove(&pod.container_id)),
            (Call::Del, false) => ensure!(false, "a DEL failed, and the runtime could only wait"),
            (Call::Check, _) => {}
            (Call::Add | Call::Gc, _) => drop(unsure.insert(pod.container_id.clone())),
        }
    }
    world.unsure.extend(unsure);
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

/// Says whether it succeeded.
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
    // An error has to be one by the specification.
    answer.into_error().map(|_| false)
}
