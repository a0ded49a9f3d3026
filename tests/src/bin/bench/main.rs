//! `bench`: the cost of Ferrule and of reference plugins, measured in one run on one machine.
//!
//! Started by `cargo xtask bench`, which builds the binaries. No measured time fails the run, because
//! absolute times depend on the machine; the goals are printed beside the results, for ADD as ratios.

mod add;
mod all;
mod cpu;
mod dataplane;
mod machine;
mod markdown;
mod memory;
mod nodes;
mod phases;
mod policy;
mod rates;
mod report;
mod results;
mod start;
mod stats;
mod table;
mod target;
mod typical;
mod watch;
mod wave;

use clap::{Parser, Subcommand};

use self::results::Results;

/// Measures Ferrule.
#[derive(Debug, Parser)]
struct Args {
    /// Print JSON instead of tables; `all` writes both.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// All benchmarks, one after another, and one report.
    All(all::Options),
    #[command(flatten)]
    One(One),
}

#[derive(Debug, Subcommand)]
enum One {
    /// Cost of ADD and DEL, compared with the reference plugins `bridge` and `ptp`.
    Add(add::Options),
    /// Traffic between two pods of a node, compared with other paths.
    Dataplane(dataplane::Options),
    /// Traffic between pods of two nodes, compared with other paths, and the time to reach a new node.
    Nodes(nodes::Options),
    /// Cost of network policies: traffic, time from an event until enforced, memory.
    Policy(policy::Options),
    /// Downtime of the agent after a crash.
    Start(start::Options),
    /// Cost of watching the API server: events, memory, lists, waiting ADDs.
    Watch(watch::Options),
}

fn main() -> anyhow::Result<()> {
    let Args { json, what } = Args::parse();
    let results = match what {
        What::All(options) => return all::run(&options),
        What::One(one) => one.run()?,
    };
    if json {
        println!("{:#}", results.to_json());
    } else {
        print!("{results}");
    }
    Ok(())
}

// === impl One ===

impl One {
    fn run(&self) -> anyhow::Result<Box<dyn Results>> {
        Ok(match self {
            Self::Add(options) => Box::new(add::run(options)?),
            Self::Dataplane(options) => Box::new(dataplane::run(options)?),
            Self::Nodes(options) => Box::new(nodes::run(options)?),
            Self::Policy(options) => Box::new(policy::run(options)?),
            Self::Start(options) => Box::new(start::run(options)?),
            Self::Watch(options) => Box::new(watch::run(options)?),
        })
    }
}
