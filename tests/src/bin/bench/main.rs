//! `bench`: what Ferrule costs, beside what others cost, measured in one run on one node.
//!
//! It is started by `cargo xtask bench`, which builds what is measured. Nothing here judges by a time that passed: what
//! a machine needs for a pod is its own, and only ratios are told beside the goals.

mod add;
mod cpu;
mod report;
mod stats;
mod target;
mod wave;

use clap::{Parser, Subcommand};

/// Measures Ferrule beside the reference plugins.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The cost of ADD and DEL, beside the reference plugins `bridge` and `ptp`.
    Add(add::Options),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().what {
        What::Add(options) => add::run(&options),
    }
}
