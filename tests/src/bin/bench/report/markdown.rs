//! The results of ADD and DEL as a document: Ferrule's ratios first, then the figures of each plugin.

use super::{Filled, GROWTH, LEGEND, Part, Report, per_second};
use crate::{markdown::table, target::Name};

pub(super) fn document(report: &Report) -> String {
    let mut text = ratios(report);
    for part in &report.parts {
        text += &format!("\n{}\n\n{}", part.title(), figures(part));
    }
    if let Some(full) = &report.full {
        text += &format!("\n{}\n", growth(full, report.options.full));
    }
    format!("{text}\nPhases of a serial ADD inside the agent, mean, µs: {}\n\n{LEGEND}", report.phases)
}

fn ratios(report: &Report) -> String {
    let goals = report.parts.iter().flat_map(|part| {
        part.goals(report.options.existing).into_iter().map(move |goal| {
            let [bridge, ptp] = goal.ratios(part.measured());
            let ratios = [bridge, ptp].map(|it| format!("{it:.3}"));
            let limits = [goal.bar, goal.aim].map(|it| format!("{it:.2}"));
            let what = format!("{}: {}", part.title(), goal.what);
            let verdict = goal.verdict(bridge).to_owned();
            [what].into_iter().chain(ratios).chain(limits).chain([verdict]).collect()
        })
    });
    let head = ["add", "Ferrule / `bridge`", "Ferrule / `ptp`", "bar for `bridge`", "aim", "verdict"];
    table(&head, goals)
}

fn figures(part: &Part) -> String {
    let rows = Name::ALL.iter().zip(part.measured()).map(|(name, it)| {
        let [add, del] = [&it.add, &it.del];
        let times = [add.took.p50(), add.took.percentile(99), add.cpu.p50(), del.took.p50(), del.cpu.p50()];
        let times = times.map(|ms| format!("{ms:.2}"));
        let paces = [add, del].map(|verb| format!("{:.0}", per_second(verb.pace.p50())));
        [name.to_string()].into_iter().chain(times).chain(paces).collect()
    });
    let head =
        ["ms", "ADD, p50", "ADD, p99", "ADD, CPU", "DEL, p50", "DEL, CPU", "ADD, pods/s", "DEL, pods/s"];
    table(&head, rows)
}

fn growth(full: &Filled, pods: usize) -> String {
    let ((bar, aim), growth) = (GROWTH, full.growth());
    format!("Ferrule's ADD, p50, after {pods} more pods / before: {growth:.3} (bar {bar}, aim {aim}).")
}
