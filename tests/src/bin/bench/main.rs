//! `bench`: the cost of Ferrule and of reference plugins, measured in one run on one node.
//!
//! Started by `cargo xtask bench`, which builds the binaries. No measured time fails the run, because
//! absolute times depend on the machine; the goals are printed beside the results, for ADD as ratios.

mod add;
mod cpu;
mod dataplane;
mod phases;
mod report;
mod start;
mod stats;
mod target;
mod watch;
mod wave;

use clap::{Parser, Subcommand};

/// Measures Ferrule.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Cost of ADD and DEL, compared with the reference plugins `bridge` and `ptp`.
    Add(add::Options),
    /// Traffic between two pods of a node, compared with other paths.
    Dataplane(dataplane::Options),
    /// Downtime of the agent after a crash.
    Start(start::Options),
    /// Cost of watching the API server: events, memory, lists, waiting ADDs.
    Watch(watch::Options),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().what {
        What::Add(options) => add::run(&options),
        What::Dataplane(options) => dataplane::run(&options),
        What::Start(options) => start::run(&options),
        What::Watch(options) => watch::run(&options),
    }
}
