//! A demonstration on this machine, removed completely afterwards: a cluster of three nodes, their agents, a
//! runtime that executes the shim, pods and their traffic on the wire, an API server outage, and the
//! operator's tools.

#![forbid(unsafe_code)]

mod report;
mod walkthrough;

use std::process::ExitCode;

use clap::Parser;
use ferrule_tests::{fabric, host::Footprint, node};
use report::Report;

/// Demonstrates Ferrule on this machine and leaves nothing behind.
#[derive(Debug, Parser)]
struct Args {
    /// Demonstrate a node without Kubernetes instead.
    #[arg(long)]
    standalone: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut report = Report::default();
    let outcome = run(&mut report, args.standalone);
    if let Err(error) = &outcome {
        eprintln!("\n{error:?}");
    }
    report.summary(outcome.is_ok());
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(report: &mut Report, standalone: bool) -> anyhow::Result<()> {
    let before = Footprint::take()?;
    if standalone {
        node::on_node(|node| walkthrough::standalone::run(node, report))?;
    } else {
        fabric::on_fabric(|fabric| walkthrough::cluster::run(fabric, report))?;
    }
    report.chapter("Clean-up");
    report.fact("no link, namespace, pin, program or map remains on the machine", || {
        before.wait_until_restored()
    })
}
