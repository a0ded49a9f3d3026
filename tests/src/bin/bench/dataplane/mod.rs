//! Cost of the path between two pods of a node.
//!
//! All paths exist on one node at the same time, and each round measures every path once, so that other load
//! of the machine affects all of them. The result of a path is the median of its rounds.

mod load;
mod path;
mod redirect;
mod report;

use std::time::Duration;

use ferrule_tests::node::{self, Node};

use self::{
    load::{Cores, Load},
    path::Path,
    report::{Measured, Report},
};

/// Sizes and repetitions of the measurements.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Rounds; the result is their median.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of each measurement.
    #[arg(long, default_value_t = 400)]
    milliseconds: u64,
    /// Further pods that Ferrule has attached on the node.
    #[arg(long, default_value_t = 0)]
    pods: usize,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

const POD_V4: &str = "10.244.0.0/16";

/// Runs the measurements and prints the results.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let report = node::on_node(|node| {
        node.start_agent(&[POD_V4, node::POD_V6])?;
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
    for number in 0..options.pods {
        node.attach(&format!("other-{number}"))?;
    }
    let paths = path::all(node)?;
    let mut measured: Vec<_> = Load::ALL
        .iter()
        .flat_map(|load| [Cores::Same, Cores::Two].map(|cores| Measured::new(*load, cores, paths.len())))
        .collect();
    let duration = Duration::from_millis(options.milliseconds);
    // The first round warms caches, neighbour entries and conntrack up.
    for round in 0..=options.rounds {
        for row in &mut measured {
            for (path, rates) in paths.iter().zip(&mut row.rates) {
                let rate = row.load.measure(path, row.cores, duration)?;
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
    }
    Ok(Report { pods: options.pods, paths: paths.iter().map(Path::name).collect(), measured })
}
