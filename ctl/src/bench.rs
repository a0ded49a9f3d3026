//! `ferrulectl bench self`: this node's figures, as its own agent measures them.

use std::path::Path;

use ferrule_proto::agent::{BenchSelfRequest, BenchSelfResponse, Percentiles, ProgramRuns};

use crate::{
    client,
    output::{Output, Report},
    table::{plain, table},
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Measure for some seconds, while the node works as ever
    ///
    /// ADDs so far: those since the agent's start, of pods that still exist; none is made. Answers: from the
    /// first packet of a TCP connection of the node to the refusal by the pod, of up to 16 pods in turn, 200
    /// times a second at the most. Programs: what the kernel counts for all packets in this time; its
    /// readings of the clock are part of each run. Exit code 1: the agent cannot be reached, or measures
    /// already.
    #[command(name = "self")]
    Node {
        /// Seconds of the measurement
        #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=8))]
        seconds: u32,
    },
}

pub(crate) async fn run(command: &Command, socket: &Path, output: Output) -> anyhow::Result<Report> {
    let Command::Node { seconds } = command;
    let measured = client::connect(socket).await?.bench_self(BenchSelfRequest { seconds: *seconds }).await;
    let measured = measured.map_err(|status| client::unanswered(status, "bench"))?.into_inner();
    let notes = (measured.unanswered > 0).then(|| {
        let BenchSelfResponse { unanswered, unanswered_because, .. } = &measured;
        format!("{unanswered} connections had no answer; the last: {}", plain(unanswered_because))
    });
    let text = output.show(&measured, render)?;
    Ok(Report { text, notes: notes.into_iter().collect(), ..Report::default() })
}

fn render(measured: &BenchSelfResponse) -> String {
    let figures = [("ADDs so far", &measured.adds), ("pod answers node", &measured.answers)];
    let figures = figures.map(|(name, it)| figure(name, it.as_ref()));
    let mut text = table(["FIGURE", "COUNT", "P50", "P90", "P99", "MAX"], figures.into_iter());
    if measured.adds.is_none() {
        text += "\n\nno figures of ADD: no pod that still exists was attached since the agent's start";
    }
    if !measured.add_phases.is_empty() {
        let phase = |it: &ferrule_proto::agent::PhaseTime| {
            format!("{} {}", it.phase, time(it.took_us.saturating_mul(1000)))
        };
        let phases: Vec<_> = measured.add_phases.iter().map(phase).collect();
        text += &format!("\n\nmedian of the phases of ADD: {}", phases.join(", "));
    }
    text += "\n\n";
    if measured.programs.is_empty() {
        text += &format!("no figures of the programs: {}", plain(&measured.no_programs_because));
        return text;
    }
    let rows = measured.programs.iter().map(|it| program(it, measured.took_ms));
    text + &table(["PROGRAM", "ID", "RUNS", "RUNS/s", "ns/RUN"], rows)
}

fn figure(name: &str, it: Option<&Percentiles>) -> [String; 6] {
    let Some(Percentiles { count, p50_ns, p90_ns, p99_ns, max_ns }) = it else {
        return [name, "0", "-", "-", "-", "-"].map(str::to_owned);
    };
    [name.to_owned(), count.to_string(), time(*p50_ns), time(*p90_ns), time(*p99_ns), time(*max_ns)]
}

fn program(ProgramRuns { name, id, runs, run_ns }: &ProgramRuns, took_ms: u64) -> [String; 5] {
    let per_second = (runs * 1000).checked_div(took_ms).unwrap_or_default();
    let each = run_ns.checked_div(*runs).map_or_else(|| "-".to_owned(), |ns| ns.to_string());
    [plain(name), id.to_string(), runs.to_string(), per_second.to_string(), each]
}

fn time(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use ferrule_proto::agent::PhaseTime;

    use super::*;

    #[test]
    fn figures_phases_and_programs_are_shown_with_their_units() {
        let of = |ns: u64| Percentiles { count: 2, p50_ns: ns, p90_ns: ns, p99_ns: ns, max_ns: ns };
        let program =
            |name: &str, runs| ProgramRuns { name: name.to_owned(), id: 7, runs, run_ns: 300 * runs };
        let mut measured = BenchSelfResponse {
            took_ms: 2000,
            adds: Some(of(9_840_000)),
            add_phases: vec![PhaseTime { phase: "plug".to_owned(), took_us: 3012 }],
            answers: Some(of(41_250)),
            pods: 1,
            programs: vec![program("from_pod", 900), program("to_link", 0)],
            ..BenchSelfResponse::default()
        };
        let expected = "\
FIGURE            COUNT  P50      P90      P99      MAX
ADDs so far       2      9.8 ms   9.8 ms   9.8 ms   9.8 ms
pod answers node  2      41.2 µs  41.2 µs  41.2 µs  41.2 µs

median of the phases of ADD: plug 3.0 ms

PROGRAM   ID  RUNS  RUNS/s  ns/RUN
from_pod  7   900   450     300
to_link   7   0     0       -";
        assert_eq!(render(&measured), expected);
        measured =
            BenchSelfResponse { no_programs_because: "why".to_owned(), ..BenchSelfResponse::default() };
        let expected = "\
FIGURE            COUNT  P50  P90  P99  MAX
ADDs so far       0      -    -    -    -
pod answers node  0      -    -    -    -

no figures of ADD: no pod that still exists was attached since the agent's start

no figures of the programs: why";
        assert_eq!(render(&measured), expected);
        assert_eq!(time(1_500_000_000), "1.50 s");
    }
}
