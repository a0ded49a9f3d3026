//! Cost of watching the API server: events, memory, waiting ADDs, relists and idle load.
//!
//! The API server runs in this process, on the same machine. Latencies include the server's work; the agent's CPU time
//! and memory do not.

mod bed;
mod quiet;
mod release;
mod relist;
mod storm;
mod table;

use anyhow::Context as _;
use ferrule_tests::{apiserver::Switch, node::on_node};

use bed::Bed;
use relist::Way;
use table::{Goal, Table};

/// Sizes and repetitions of the measurements; 0 skips a part.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Pod changes in a burst of events.
    #[arg(long, default_value_t = 100_000)]
    events: usize,
    /// Pods on a full node.
    #[arg(long, default_value_t = 500)]
    pods: usize,
    /// Pods of an extreme node, as many as a whole cluster has.
    #[arg(long, default_value_t = 30_000)]
    many: usize,
    /// Pods whose ADD waits for its VIF; as many again whose ADD does not.
    #[arg(long, default_value_t = 200)]
    waits: usize,
    /// Lists of all pods, per list mode.
    #[arg(long, default_value_t = 5)]
    lists: usize,
    /// Seconds of idle time to measure.
    #[arg(long, default_value_t = 130)]
    idle: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the measurements and prints the results.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut table = Table::default();
    on_node(|node| full_node(&mut Bed::new(node, &[], options.events)?, options, &mut table))?;
    if options.many > 0 {
        on_node(|node| many_pods(&mut Bed::new(node, &[], options.many)?, options, &mut table))?;
    }
    if options.waits > 0 {
        on_node(|node| {
            release::measure(&mut Bed::new(node, &release::FLAGS, 0)?, options.waits, &mut table)
        })?;
    }
    if options.json {
        println!("{:#}", table.to_json());
    } else {
        print!("{table}");
    }
    Ok(())
}

/// From an empty node to a full one.
fn full_node(bed: &mut Bed<'_>, options: &Options, table: &mut Table) -> anyhow::Result<()> {
    let pods = options.pods;
    bed.start()?;
    if options.idle > 0 {
        quiet::measure(bed, options.idle, table)?;
    }
    bed.weigh("no pods", Goal::at_most(12.0, 8.0), table)?;

    bed.create(pods)?;
    bed.weigh(&format!("{pods} pods of the node in the API"), Goal::at_most(18.0, 12.0), table)?;
    relist::measure(bed, Way::Streamed, options.lists, Goal::at_most(20.0, 20.0), table)?;
    if options.events > 0 {
        storm::measure(bed, options.events, table)?;
        bed.weigh(&format!("after {} events", 4 * options.events), None, table)?;
    }
    bed.cluster.api.switch(Switch::WatchList { enabled: false });
    relist::measure(bed, Way::Pages, options.lists, Goal::at_most(20.0, 20.0), table)?;

    bed.attach(pods)?;
    bed.weigh(&format!("{pods} pods in the API and attached"), None, table)?;
    Ok(())
}

/// More pods than a node has, as many as a whole cluster.
fn many_pods(bed: &mut Bed<'_>, options: &Options, table: &mut Table) -> anyhow::Result<()> {
    let many = options.many;
    bed.create(many)?;
    bed.start().context("with many pods")?;
    bed.weigh(&format!("{many} pods"), Goal::at_most(60.0, 45.0), table)?;
    relist::measure(bed, Way::Streamed, options.lists, Goal::at_most(500.0, 500.0), table)?;
    bed.weigh(&format!("{many} pods, after relists"), Goal::at_most(60.0, 45.0), table)?;
    bed.cluster.api.switch(Switch::WatchList { enabled: false });
    relist::measure(bed, Way::Pages, options.lists, Goal::at_most(500.0, 500.0), table)
}
