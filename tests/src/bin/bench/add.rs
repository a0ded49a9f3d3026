//! The cost of ADD and DEL.
//!
//! All targets run on one node and take turns, pod by pod, so that whatever else the machine does meets all of them.
//! Each call gets a sandbox of its own, which is made before it and removed after.

use ferrule_tests::node::{self, Node};

use crate::{
    phases::Phases,
    report::{Filled, Part, Report},
    target::{BRIDGE, Name, Target},
    wave::{self, Measured, Shape},
};

/// What to measure, and how often.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Pods for each plugin, one after another; as many come in groups afterwards.
    #[arg(long, default_value_t = 200)]
    pub(crate) iterations: usize,
    /// Pods that each plugin has attached beforehand, and that stay.
    #[arg(long, default_value_t = 0)]
    pub(crate) existing: usize,
    /// Pods that come at the same time; 0 leaves this part out.
    #[arg(long, default_value_t = 8)]
    pub(crate) parallel: usize,
    /// Pods in a burst; 0 leaves this part out.
    #[arg(long, default_value_t = 110)]
    pub(crate) burst: usize,
    /// Pods of a burst that come at the same time.
    #[arg(long, default_value_t = 10)]
    pub(crate) workers: usize,
    /// Bursts for each plugin.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Pods that fill the node at the end, to see what one more costs then; 0 leaves this part out.
    #[arg(long, default_value_t = 500)]
    pub(crate) full: usize,
    /// Let Ferrule give its pods IPv4 addresses only, as the others do, instead of both families.
    #[arg(long)]
    pub(crate) ipv4_only: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Room for all pods of a run: an address that was used is not given out again for a while.
const POD_V4: &str = "10.244.0.0/16";
/// Not counted: the first calls find files that were not read yet, and make the bridge.
const WARM_UP: usize = 5;
/// How often one more pod comes to a full node.
const ONE_MORE: usize = 100;

/// Measures, and prints what was measured.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let report = node::on_node(|node| {
        let ranges: &[&str] = if options.ipv4_only { &[POD_V4] } else { &[POD_V4, node::POD_V6] };
        node.start_agent(ranges)?;
        measure(node, options)
    })?;
    if options.json {
        println!("{:#}", report.to_json())
    } else {
        print!("{report}")
    }
    Ok(())
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
    // The bridge's own interface stays, and is not ours.
    let left: Vec<_> = node.kernel_state()?.into_iter().filter(|it| !existing.contains(it)).collect();
    anyhow::ensure!(left.iter().all(|it| it.contains(BRIDGE)), "this is left in the kernel: {left:#?}");
    let full = if options.full > 0 { Some(fill(node, &targets, options.full)?) } else { None };
    Ok(Report { options: options.clone(), parts, phases, full })
}

/// Fills the node with pods of Ferrule's, and measures one more before and after, in the same way.
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

/// Waves of all targets in turn. Another one is first each time, so that no one always comes after the same.
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
