//! Downtime of the agent after a crash: from the new process's start until it serves.

use std::time::Instant;

use ferrule_tests::node::{self, Node};

use crate::stats::Series;

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

/// Runs the measurements and prints the results.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
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
    println!("From process start after a crash until the agent serves (polled every 5 ms), ms");
    println!("{:>8} {:>8} {:>8} {:>8}", "pods", "p50", "p90", "p99");
    for (pods, took) in [(0, empty), (options.pods, full)] {
        println!("{pods:>8} {:8.1} {:8.1} {:8.1}", took.p50(), took.percentile(90), took.percentile(99));
    }
    println!(
        "\nBefore serving, the agent reconciles registry, kernel and maps. Pods' packets flow meanwhile."
    );
    Ok(())
}
