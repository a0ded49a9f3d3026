//! A demonstration on this machine, removed completely afterwards: a node in a cluster, its agent, a runtime
//! that executes the shim, pods and their traffic, an API server outage, and the operator's tools.

#![forbid(unsafe_code)]

mod api;
mod report;
mod walkthrough;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use ferrule_tests::{host::Footprint, node};
use report::Report;

/// Demonstrates Ferrule on this machine and leaves nothing behind.
#[derive(Debug, Parser)]
struct Args {
    /// Demonstrate a node without Kubernetes instead.
    #[arg(long)]
    standalone: bool,
    /// Internal: run as the demo's API server.
    #[arg(long, hide = true, value_name = "FILE")]
    api_server: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(kept) = &args.api_server {
        return match api::serve(kept) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:?}");
                ExitCode::FAILURE
            }
        };
    }
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
    let walkthrough = if standalone { walkthrough::standalone::run } else { walkthrough::cluster::run };
    node::on_node(|node| walkthrough(node, report))?;
    report.chapter("Clean-up");
    report.fact("no link, namespace, pin, program or map remains on the machine", || {
        before.wait_until_restored()
    })
}
