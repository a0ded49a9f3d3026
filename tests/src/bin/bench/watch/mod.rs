//! Cost of watching the API server: events, memory, waiting ADDs, relists and idle load.
//!
//! The API server runs in this process, on the same machine. Latencies include the server's work; the agent's
//! CPU time and memory do not.

mod add_wait;
mod burst;
mod idle;
mod relist;
mod testbed;

use anyhow::Context as _;
use ferrule_tests::{apiserver::Switch, node::on_node};

use relist::ListMode;
use testbed::Testbed;

use crate::table::{Goal, Table};

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

const LEGEND: &str = "\
The goals are absolute, so a verdict depends on this machine and its other load. API server and agent share the machine:
latencies include the server's part. A pod is 4.5 kB of JSON. RSS is VmRSS of the agent a few seconds after the last
change.
30000 pods exceed any real node: every pod's `spec.nodeName` is this node, as if one agent watched a whole cluster.
Events: all changes are written while the watch is stalled. The time runs from the end of the stall until the agent has
counted all events as applied; the CPU time is the agent's, including the kernel. \"API server alone\" is the same watch,
read by a client that discards the events.
Lists: from the arrival of the request at the server to the line `listed` in the agent's log, when the registry agrees
with the server. The random wait before a relist (up to 10 s) is not included. The agent start is the exec of an agent
without a checkpoint.
ADDs: from the server's response to the annotation until the exit of the plugin's process. A refused VIF is not plugged,
so only the latency of the event and of the answer remains. Polling once per second would add 500 ms at the median and
990 ms at p99.
";

/// Runs the measurements.
pub(crate) fn run(options: &Options) -> anyhow::Result<Table> {
    let mut table = Table::new("watch", "Cost of watching the API server", LEGEND);
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
