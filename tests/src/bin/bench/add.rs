//! Cost of ADD and DEL.
//!
//! All targets share one node and take turns, pod by pod, so that other load of the machine affects all of
//! them. Each call has its own sandbox, created before and removed after it.

use ferrule_tests::node::{self, Node};

use crate::{
    phases::Phases,
    report::{Filled, Part, Report},
    target::{BRIDGE, Name, Target},
    wave::{self, Measured, Shape},
};

/// Sizes and repetitions of the measurements.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Pods per plugin, one after another; the same number in groups afterwards.
    #[arg(long, default_value_t = 200)]
    pub(crate) iterations: usize,
    /// Pods that each plugin has attached beforehand and that stay attached. With none, each ADD pays what
    /// only the first pod of a node pays: the kernel patches its code for the first clsact qdisc, and patches
    /// the code back after the last.
    #[arg(long, default_value_t = 0)]
    pub(crate) existing: usize,
    /// Concurrent pods; 0 skips this part.
    #[arg(long, default_value_t = 8)]
    pub(crate) parallel: usize,
    /// Pods per burst; 0 skips this part.
    #[arg(long, default_value_t = 110)]
    pub(crate) burst: usize,
    /// Concurrent calls within a burst.
    #[arg(long, default_value_t = 10)]
    pub(crate) workers: usize,
    /// Bursts per plugin.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Pods that fill the node at the end, to measure ADD on a full node; 0 skips this part.
    #[arg(long, default_value_t = 500)]
    pub(crate) full: usize,
    /// Assign IPv4 addresses only, as the other plugins do, instead of both families.
    #[arg(long)]
    pub(crate) ipv4_only: bool,
}

/// Large enough for all pods of a run: released addresses stay in cooldown.
const POD_V4: &str = "10.244.0.0/16";
/// Not counted: the first calls read files from disk and create the bridge.
const WARM_UP: usize = 5;
/// Samples on the full node.
const ONE_MORE: usize = 100;

/// Runs the measurements.
pub(crate) fn run(options: &Options) -> anyhow::Result<Report> {
    node::on_node(|node| {
        let ranges: &[&str] = if options.ipv4_only { &[POD_V4] } else { &[POD_V4, node::POD_V6] };
        node.start_agent(ranges)?;
        measure(node, options)
    })
}

fn measure(node: &Node, options: &Options) -> anyhow::Result<Report> {
    let targets = Name::ALL.iter().map(|name| Target::new(*name)).collect::<anyhow::Result<Vec<_>>>()?;
    for target in &targets {
        wave::stay(node, target, options.existing)?;
    }
    let existing = node.kernel_state()?;

    let one = Shape { pods: 1, workers: 1 };
    rounds(node, &targets, one, WARM_UP)?;
    let before = Phases::of(node)?;
    let mut parts = vec![Part::Serial(rounds(node, &targets, one, options.iterations)?)];
    let phases = Phases::of(node)?.since(&before);
    if options.parallel > 0 {
        let group = Shape { pods: options.parallel, workers: options.parallel };
        let count = options.iterations.div_ceil(options.parallel);
        parts.push(Part::Parallel(group, rounds(node, &targets, group, count)?));
    }
    if options.burst > 0 {
        let burst = Shape { pods: options.burst, workers: options.workers.max(1) };
        parts.push(Part::Burst(burst, rounds(node, &targets, burst, options.rounds)?));
    }
    // The bridge interface stays; the plugin `bridge` owns it.
    let left: Vec<_> = node.kernel_state()?.into_iter().filter(|it| !existing.contains(it)).collect();
    anyhow::ensure!(left.iter().all(|it| it.contains(BRIDGE)), "leftovers in the kernel: {left:#?}");
    let full = if options.full > 0 { Some(fill(node, &targets, options.full)?) } else { None };
    Ok(Report { options: options.clone(), parts, phases, full })
}

/// Measures ADD before and after filling the node with Ferrule's pods.
fn fill(node: &Node, targets: &[Target], count: usize) -> anyhow::Result<Filled> {
    let mut filled = Filled::default();
    if let Some(ferrule) = targets.first() {
        let one_more = |into: &mut Measured| {
            (0..ONE_MORE).try_for_each(|_| wave::run(node, ferrule, Shape { pods: 1, workers: 1 }, into))
        };
        one_more(&mut filled.before)?;
        wave::stay(node, ferrule, count)?;
        one_more(&mut filled.after)?;
    }
    Ok(filled)
}

/// Waves of all targets in turn, rotating the first target to cancel order effects.
fn rounds(node: &Node, targets: &[Target], shape: Shape, count: usize) -> anyhow::Result<[Measured; 3]> {
    let mut measured: [Measured; 3] = Default::default();
    for round in 0..count {
        let turns = targets.iter().zip(0..).cycle().skip(round % targets.len().max(1)).take(targets.len());
        for (target, index) in turns {
            let Some(into) = measured.get_mut::<usize>(index) else { continue };
            wave::run(node, target, shape, into)?;
        }
    }
    Ok(measured)
}
