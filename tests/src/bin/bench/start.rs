//! Downtime of the agent after a crash: from the new process's start until it serves.

use std::{fmt, fs, time::Instant};

use ferrule_tests::node::{self, Node, PINS};

use serde_json::{Value, json};

use crate::{markdown, results::Results, stats::Series};

/// Sizes and repetitions of the measurements.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Attached pods.
    #[arg(long, default_value_t = 500)]
    pods: usize,
    /// Crashes per number of pods.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
}

/// The times until an agent served.
pub(crate) struct Downtime([Case; 4]);

struct Case {
    pods: usize,
    programs: Programs,
    took: Series,
}

/// What the new agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Programs {
    /// Those of its predecessor.
    Same,
    /// Newly verified ones, as after an upgrade.
    New,
}

const TITLE: &str = "From process start after a crash until the agent serves (polled every 5 ms), ms";
const LEGEND: &str = "Before serving, the agent reconciles registry, kernel and maps. Pods' packets flow meanwhile. \
                      Same programs: a restart; new ones: an upgrade, or another setting of the programs.";
const PERCENTILES: [usize; 3] = [50, 90, 99];

/// Runs the measurements.
pub(crate) fn run(options: &Options) -> anyhow::Result<Downtime> {
    let cases = node::on_node(|node| {
        node.start_agent(&["10.244.0.0/16", node::POD_V6])?;
        let measure = |node: &mut Node, pods, programs| {
            let mut took = Series::default();
            for _ in 0..options.rounds {
                node.kill_agent()?;
                if programs == Programs::New {
                    // Without the link, an agent does not use the pinned programs.
                    fs::remove_file(format!("{PINS}/programs"))?;
                }
                let start = Instant::now();
                node.start_again()?;
                took.push(start.elapsed());
            }
            anyhow::Ok(Case { pods, programs, took })
        };
        let empty = [measure(node, 0, Programs::Same)?, measure(node, 0, Programs::New)?];
        let _pods =
            (0..options.pods).map(|it| node.attach(&format!("p{it}"))).collect::<Result<Vec<_>, _>>()?;
        let full = [Programs::Same, Programs::New].map(|programs| measure(node, options.pods, programs));
        let ([same, new], [same_full, new_full]) = (empty, full);
        Ok([same, new, same_full?, new_full?])
    })?;
    Ok(Downtime(cases))
}

// === impl Programs ===

impl Programs {
    fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::New => "new",
        }
    }
}

// === impl Downtime ===

impl Results for Downtime {
    fn to_json(&self) -> Value {
        let row = |Case { pods, programs, took }: &Case| {
            let ([p50, p90, p99], samples) = (PERCENTILES.map(|it| took.percentile(it)), took.len());
            let programs = programs.as_str();
            json!({
                "pods": pods, "programs": programs, "samples": samples, "p50_ms": p50, "p90_ms": p90, "p99_ms": p99,
            })
        };
        self.0.iter().map(row).collect()
    }

    fn to_markdown(&self) -> String {
        let row = |Case { pods, programs, took }: &Case| {
            let times = PERCENTILES.map(|percent| format!("{:.1}", took.percentile(percent)));
            [pods.to_string(), programs.as_str().to_owned()].into_iter().chain(times).collect()
        };
        let columns = ["pods", "programs", "p50, ms", "p90, ms", "p99, ms"];
        let table = markdown::table(&columns, self.0.iter().map(row));
        format!("{TITLE}.\n\n{table}\n{LEGEND}\n")
    }
}

impl fmt::Display for Downtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}")?;
        writeln!(f, "{:>8} {:>8} {:>8} {:>8} {:>8}", "pods", "programs", "p50", "p90", "p99")?;
        for Case { pods, programs, took } in &self.0 {
            let [p50, p90, p99] = PERCENTILES.map(|percent| took.percentile(percent));
            writeln!(f, "{pods:>8} {:>8} {p50:8.1} {p90:8.1} {p99:8.1}", programs.as_str())?;
        }
        writeln!(f, "\n{LEGEND}")
    }
}
