//! Waves: a number of pods that are attached and then detached, with limited concurrency.

use std::{
    fs,
    sync::{
        Barrier, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{node::Node, pod::Pod, sys};

use crate::{
    stats::Series,
    target::{BRIDGE, Name, Target},
};

/// Number of pods of a wave, and number of concurrent calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) pods: usize,
    pub(crate) workers: usize,
}

/// Measurements of one target's waves.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measured {
    pub(crate) add: Verb,
    pub(crate) del: Verb,
    /// From the answer to the last DEL until the kernel has deleted all interfaces.
    pub(crate) gone: Series,
}

/// Measurements of ADD or DEL.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verb {
    /// Per call.
    pub(crate) took: Series,
    /// Per wave, divided by its pods.
    pub(crate) cpu: Series,
    /// Per wave, divided by its pods.
    pub(crate) pace: Series,
}

/// The kernel removes namespaces in the background; the pause keeps this out of the next sample.
const PAUSE: Duration = Duration::from_millis(60);
const GONE: Duration = Duration::from_secs(10);

/// Runs and measures one wave.
pub(crate) fn run(node: &Node, target: &Target, shape: Shape, into: &mut Measured) -> anyhow::Result<()> {
    let before = links()?;
    let mut pods = make(node, target.name, shape.pods)?;
    measure(target, &mut pods, shape.workers, &mut into.add, Target::add)?;
    measure(target, &mut pods, shape.workers, &mut into.del, |target, pod| target.del(pod))?;
    let answered = Instant::now();
    sys::wait_until("the interfaces are gone", GONE, || {
        let now = links()?;
        ensure!(now <= before, "{now} interfaces, expected at most {before}");
        Ok(true)
    })?;
    into.gone.push(answered.elapsed());
    pods.into_iter().try_for_each(Pod::remove)?;
    thread::sleep(PAUSE);
    Ok(())
}

/// Attaches pods that stay attached.
pub(crate) fn stay(node: &Node, target: &Target, count: usize) -> anyhow::Result<Vec<Pod>> {
    let mut pods = make(node, target.name, count)?;
    for pod in &mut pods {
        target.add(pod)?;
    }
    Ok(pods)
}

fn make(node: &Node, name: Name, count: usize) -> anyhow::Result<Vec<Pod>> {
    (0..count).map(|number| node.pod(&format!("{name}-{number}"))).collect()
}

/// Calls `one` for each pod, with limited concurrency, and measures the calls.
fn measure(
    target: &Target,
    pods: &mut [Pod],
    workers: usize,
    into: &mut Verb,
    call: impl Fn(&Target, &mut Pod) -> anyhow::Result<Duration> + Sync,
) -> anyhow::Result<()> {
    let count = u32::try_from(pods.len()).context("too many pods")?.max(1);
    let queue: Vec<_> = pods.iter_mut().map(Mutex::new).collect();
    let (next, together) = (AtomicUsize::new(0), Barrier::new(workers));
    let work = || -> anyhow::Result<(Vec<Duration>, Instant, Instant)> {
        let mut took = Vec::new();
        together.wait();
        let start = Instant::now();
        while let Some(pod) = queue.get(next.fetch_add(1, Ordering::Relaxed)) {
            took.push(call(target, &mut pod.lock().unwrap_or_else(PoisonError::into_inner))?);
        }
        Ok((took, start, Instant::now()))
    };
    let cpu_before = target.cpu()?;
    let results = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?
        };
        workers.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
    })?;
    into.cpu.push((target.cpu()?.saturating_sub(cpu_before)) / count);
    let start = results.iter().map(|(_, start, _)| *start).min();
    let end = results.iter().map(|(.., end)| *end).max();
    if let (Some(start), Some(end)) = (start, end) {
        into.pace.push((end - start) / count);
    }
    into.took.extend(results.into_iter().flat_map(|(took, ..)| took));
    Ok(())
}

/// The node's number of interfaces, without the permanent one.
fn links() -> anyhow::Result<usize> {
    let links = fs::read_to_string("/proc/thread-self/net/dev")?;
    Ok(links.lines().filter(|line| !line.trim_start().starts_with(BRIDGE)).count())
}
