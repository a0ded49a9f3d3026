//! A demonstration on this machine, removed completely afterwards: a node in a cluster, its agent, a runtime that
//! executes the shim, pods and their traffic, an API server outage, and the operator's tools.

#![forbid(unsafe_code)]

mod api;
mod show;
mod story;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use ferrule_tests::{host::Footprint, node};
use show::Show;

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
    let mut show = Show::default();
    let told = tell(&mut show, args.standalone);
    if let Err(error) = &told {
        eprintln!("\n{error:?}");
    }
    show.summary(told.is_ok());
    if told.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tell(show: &mut Show, standalone: bool) -> anyhow::Result<()> {
    let before = Footprint::take()?;
    let story = if standalone { story::standalone::tell } else { story::cluster::tell };
    node::on_node(|node| story(node, show))?;
    show.chapter("Clean-up");
    show.fact("no link, namespace, pin, program or map remains on the machine", || before.wait_until_restored())
}
