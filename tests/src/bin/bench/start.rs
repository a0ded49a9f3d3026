//! Downtime of the agent after a crash: from the new process's start until it serves.

use std::{fmt, time::Instant};

use ferrule_tests::node::{self, Node};

use serde_json::{Value, json};

use crate::{markdown, results::Results, stats::Series};

/// Sizes and repetitions of the measurements.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Attached pods.
    #[arg(long, default_value_t = 250)]
    pods: usize,
    /// Crashes per number of pods.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
}

/// For numbers of attached pods, the times until an agent served.
pub(crate) struct Downtime([(usize, Series); 2]);

const TITLE: &str = "From process start after a crash until the agent serves (polled every 5 ms), ms";
const LEGEND: &str =
    "Before serving, the agent reconciles registry, kernel and maps. Pods' packets flow meanwhile.";
const PERCENTILES: [usize; 3] = [50, 90, 99];

/// Runs the measurements.
pub(crate) fn run(options: &Options) -> anyhow::Result<Downtime> {
    let [empty, full] = node::on_node(|node| {
        node.start_agent(&["10.244.0.0/16", node::POD_V6])?;
        let measure = |node: &mut Node| {
            let mut took = Series::default();
            for _ in 0..options.rounds {
                node.kill_agent()?;
                let start = Instant::now();
                node.start_again()?;
                took.push(start.elapsed());
            }
            anyhow::Ok(took)
        };
        let empty = measure(node)?;
        let _pods =
            (0..options.pods).map(|it| node.attach(&format!("p{it}"))).collect::<Result<Vec<_>, _>>()?;
        Ok([empty, measure(node)?])
    })?;
    Ok(Downtime([(0, empty), (options.pods, full)]))
}

// === impl Downtime ===

impl Results for Downtime {
    fn to_json(&self) -> Value {
        let row = |(pods, took): &(usize, Series)| {
            let [p50, p90, p99] = PERCENTILES.map(|percent| took.percentile(percent));
            json!({ "pods": pods, "samples": took.len(), "p50_ms": p50, "p90_ms": p90, "p99_ms": p99 })
        };
        self.0.iter().map(row).collect()
    }

    fn to_markdown(&self) -> String {
        let row = |(pods, took): &(usize, Series)| {
            let times = PERCENTILES.map(|percent| format!("{:.1}", took.percentile(percent)));
            [pods.to_string()].into_iter().chain(times).collect()
        };
        let table = markdown::table(&["pods", "p50, ms", "p90, ms", "p99, ms"], self.0.iter().map(row));
        format!("{TITLE}.\n\n{table}\n{LEGEND}\n")
    }
}

impl fmt::Display for Downtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}")?;
        writeln!(f, "{:>8} {:>8} {:>8} {:>8}", "pods", "p50", "p90", "p99")?;
        for (pods, took) in &self.0 {
            let [p50, p90, p99] = PERCENTILES.map(|percent| took.percentile(percent));
            writeln!(f, "{pods:>8} {p50:8.1} {p90:8.1} {p99:8.1}")?;
        }
        writeln!(f, "\n{LEGEND}")
    }
}
