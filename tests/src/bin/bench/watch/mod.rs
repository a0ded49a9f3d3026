//! Cost of watching the API server: events, memory, waiting ADDs, relists and idle load.
//!
//! The API server runs in this process, on the same machine. Latencies include the server's work; the agent's
//! CPU time and memory do not.

mod add_wait;
mod burst;
mod idle;
mod relist;
mod table;
mod testbed;

use anyhow::Context as _;
use ferrule_tests::{apiserver::Switch, node::on_node};

use relist::ListMode;
use table::{Goal, Table};
use testbed::Testbed;

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
}

/// Runs the measurements.
pub(crate) fn run(options: &Options) -> anyhow::Result<Table> {
    let mut table = Table::default();
    on_node(|node| full_node(&mut Testbed::new(node, &[], options.events)?, options, &mut table))?;
    if options.many > 0 {
        on_node(|node| many_pods(&mut Testbed::new(node, &[], options.many)?, options, &mut table))?;
    }
    if options.waits > 0 {
        on_node(|node| {
            add_wait::measure(&mut Testbed::new(node, &add_wait::FLAGS, 0)?, options.waits, &mut table)
        })?;
    }
    Ok(table)
}

/// From an empty node to a full one.
fn full_node(testbed: &mut Testbed<'_>, options: &Options, table: &mut Table) -> anyhow::Result<()> {
    let pods = options.pods;
    testbed.start()?;
    if options.idle > 0 {
        idle::measure(testbed, options.idle, table)?;
    }
    testbed.measure_memory("no pods", Goal::at_most(12.0, 8.0), table)?;

    testbed.create(pods)?;
    testbed.measure_memory(
        &format!("{pods} pods of the node in the API"),
        Goal::at_most(18.0, 12.0),
        table,
    )?;
    relist::measure(testbed, ListMode::Streamed, options.lists, Goal::at_most(20.0, 20.0), table)?;
    if options.events > 0 {
        burst::measure(testbed, options.events, table)?;
        testbed.measure_memory(&format!("after {} events", 4 * options.events), None, table)?;
    }
    testbed.cluster.api.switch(Switch::WatchList { enabled: false });
    relist::measure(testbed, ListMode::Pages, options.lists, Goal::at_most(20.0, 20.0), table)?;

    testbed.attach(pods)?;
    testbed.measure_memory(&format!("{pods} pods in the API and attached"), None, table)?;
    Ok(())
}

/// More pods than a node has, as many as a whole cluster.
fn many_pods(testbed: &mut Testbed<'_>, options: &Options, table: &mut Table) -> anyhow::Result<()> {
    let many = options.many;
    testbed.create(many)?;
    testbed.start().context("with many pods")?;
    testbed.measure_memory(&format!("{many} pods"), Goal::at_most(60.0, 45.0), table)?;
    relist::measure(testbed, ListMode::Streamed, options.lists, Goal::at_most(500.0, 500.0), table)?;
    testbed.measure_memory(&format!("{many} pods, after relists"), Goal::at_most(60.0, 45.0), table)?;
    testbed.cluster.api.switch(Switch::WatchList { enabled: false });
    relist::measure(testbed, ListMode::Pages, options.lists, Goal::at_most(500.0, 500.0), table)
}
