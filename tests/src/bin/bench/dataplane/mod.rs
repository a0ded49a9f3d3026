//! Cost of the path between two pods of a node.
//!
//! All paths exist on one node at the same time, and each round measures every path once, so that other load
//! of the machine affects all of them. Many short rounds: each is over before the machine's speed changes
//! much.

mod flood;
mod flows;
mod goal;
mod path;
mod redirect;
mod report;
mod scale;

use std::time::Duration;

use anyhow::Context as _;
use ferrule_tests::node::{self, Node};

use self::{flood::Flood, report::Report};
use crate::rates::{
    comparison::Comparison,
    load::{Cores, Load},
    path::Path,
};

/// Sizes and repetitions of the measurements.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Rounds; the result is their median.
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    /// Milliseconds of each measurement.
    #[arg(long, default_value_t = 80)]
    milliseconds: u64,
    /// The most further pods on the node; the paths are measured without them.
    #[arg(long, default_value_t = 500)]
    pods: usize,
}

const POD_V4: &str = "10.244.0.0/16";

/// Runs the measurements.
pub(crate) fn run(options: &Options) -> anyhow::Result<Report> {
    node::on_node(|node| {
        node.start_agent(&[POD_V4, node::POD_V6])?;
        measure(node, options)
    })
}

fn measure(node: &mut Node, options: &Options) -> anyhow::Result<Report> {
    let paths = path::all(node)?;
    let ferrule = paths.iter().find(|it| it.name() == path::FERRULE).context("no path through Ferrule")?;
    let mut flood = Flood::new(node)?;

    let loads = Load::ALL.iter().flat_map(|load| [Cores::Same, Cores::Two].map(|cores| (*load, cores)));
    let names = paths.iter().map(Path::name).collect();
    let mut comparisons = [Comparison::new("Paths", names, loads), flows::comparison(), flood::comparison()];
    let duration = Duration::from_millis(options.milliseconds);
    for round in 0..=options.rounds {
        eprintln!("dataplane: round {round} of {}", options.rounds);
        let [of_paths, of_flows, of_flood] = &mut comparisons;
        let mut ways: Vec<_> = paths.iter().enumerate().collect();
        if round % 2 == 1 {
            ways.reverse();
        }
        for row in &mut of_paths.rows {
            for (way, path) in &ways {
                row.push(*way, row.load.measure(path, row.cores, duration)?);
            }
        }
        flood.round(ferrule, duration, of_flood)?;
        flows::round(node, ferrule, duration, round, of_flows)?;
        // The first round warms caches, neighbour entries and conntrack up.
        if round == 0 {
            comparisons.iter_mut().for_each(Comparison::clear);
        }
    }
    let of_pods = scale::measure(node, &paths, options.rounds, duration, options.pods)?;
    let comparisons = comparisons.into_iter().chain([of_pods]).collect();
    Ok(Report { comparisons, flood: flood.describe(node)? })
}
