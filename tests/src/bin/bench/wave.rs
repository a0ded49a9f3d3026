//! Pods that come and go together: one, a few at the same time, or a burst.

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

/// How many pods come together, and how many of them at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) pods: usize,
    pub(crate) workers: usize,
}

/// What the waves of one target took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measured {
    pub(crate) add: Verb,
    pub(crate) del: Verb,
    /// From the answer to the last DEL until all interfaces are gone.
    pub(crate) gone: Series,
}

/// One of the two verbs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verb {
    /// Of each call.
    pub(crate) took: Series,
    /// Of each wave, by pod.
    pub(crate) cpu: Series,
    /// Of each wave, by pod.
    pub(crate) pace: Series,
}

/// After a wave, the kernel takes namespaces down in the background: what is measured next shall not pay for it.
const PAUSE: Duration = Duration::from_millis(60);
const GONE: Duration = Duration::from_secs(10);

/// Lets a wave come and go, and measures it.
pub(crate) fn run(node: &Node, target: &Target, shape: Shape, into: &mut Measured) -> anyhow::Result<()> {
    let before = links()?;
    let mut pods = make(node, target.name, shape.pods)?;
    measure(target, &mut pods, shape.workers, &mut into.add, Target::add)?;
    measure(target, &mut pods, shape.workers, &mut into.del, |target, pod| target.del(pod))?;
    let answered = Instant::now();
    sys::wait_until("the interfaces are gone", GONE, || {
        let now = links()?;
        ensure!(now <= before, "there are {now} of them, and {before} before");
        Ok(true)
    })?;
    into.gone.push(answered.elapsed());
    pods.into_iter().try_for_each(Pod::remove)?;
    thread::sleep(PAUSE);
    Ok(())
}

/// Pods that come and stay.
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

/// Does the same with each of the pods, some at a time.
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

/// How many interfaces the node has, but for the one that stays.
fn links() -> anyhow::Result<usize> {
    let links = fs::read_to_string("/proc/thread-self/net/dev")?;
    Ok(links.lines().filter(|line| !line.trim_start().starts_with(BRIDGE)).count())
}
