//! Cost of network policies: traffic between pods that policies judge, the time from an event until the pods'
//! packets are judged by it, and the agent's memory in a large cluster.
//!
//! The API server runs in this process, on the same machine.

mod bed;
mod burden;
mod changes;
mod goal;
mod host_rules;
mod large;
mod report;
mod rows;
mod rules;
mod stream;
mod traffic;

use std::time::Duration;

use ferrule_tests::node::on_node;

use self::{bed::Bed, report::Report};

/// Sizes and repetitions of the measurements; 0 skips a part.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Rounds of traffic; the result is their median.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Milliseconds of each measurement of traffic.
    #[arg(long, default_value_t = 200)]
    milliseconds: u64,
    /// Rules of a large policy, in each direction.
    #[arg(long, default_value_t = 10_000)]
    rules: usize,
    /// Changes of each kind whose time is measured.
    #[arg(long, default_value_t = 200)]
    events: usize,
    /// Large policies whose time is measured.
    #[arg(long, default_value_t = 20)]
    large: usize,
    /// Pods of a large cluster.
    #[arg(long, default_value_t = 30_000)]
    pods: usize,
    /// Namespaces of a large cluster.
    #[arg(long, default_value_t = 2_000)]
    namespaces: usize,
    /// Policies of a large cluster.
    #[arg(long, default_value_t = 1_000)]
    policies: usize,
    /// Pods of the large cluster that are attached on this node.
    #[arg(long, default_value_t = 500)]
    local: usize,
}

/// Runs the measurements.
pub(crate) fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new(options.rules);
    if options.rounds > 0 {
        let duration = Duration::from_millis(options.milliseconds);
        report.comparison =
            on_node(|node| traffic::measure(&Bed::new(node)?, options.rounds, duration, options.rules))?;
    }
    if options.events > 0 {
        let table = &mut report.table;
        on_node(|node| changes::measure(&Bed::new(node)?, options, table))?;
        on_node(|node| changes::of_peers(node, options, table))?;
    }
    if options.pods > 0 {
        let table = &mut report.table;
        on_node(|node| large::measure(node, options, table))?;
    }
    Ok(report)
}
