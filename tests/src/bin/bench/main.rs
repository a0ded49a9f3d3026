//! `bench`: what Ferrule costs, beside what others cost, measured in one run on one node.
//!
//! It is started by `cargo xtask bench`, which builds what is measured. Nothing here fails for a time that passed: what
//! a machine needs is its own. Goals are told beside what was measured; for ADD, they are ratios.

mod add;
mod cpu;
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
    /// The cost of ADD and DEL, beside the reference plugins `bridge` and `ptp`.
    Add(add::Options),
    /// How long it takes from a crash until an agent serves again.
    Start(start::Options),
    /// The cost of following the API server: events, memory, lists, ADDs that wait.
    Watch(watch::Options),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().what {
        What::Add(options) => add::run(&options),
        What::Start(options) => start::run(&options),
        What::Watch(options) => watch::run(&options),
    }
}
