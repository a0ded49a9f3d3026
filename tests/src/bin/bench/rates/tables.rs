//! Comparisons and goals, as text, as Markdown and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::{
    comparison::{Comparison, Measured},
    goal::Goal,
    load::Load,
};
use crate::markdown;

/// All rates, for a terminal.
pub(crate) fn text(f: &mut fmt::Formatter<'_>, comparison: &Comparison) -> fmt::Result {
    comparison.rows.iter().try_for_each(|row| rates(f, comparison, row))
}

/// The goals for ways that were measured, for a terminal.
pub(crate) fn goals_text(
    f: &mut fmt::Formatter<'_>,
    goals: &[Goal],
    comparisons: &[Comparison],
) -> fmt::Result {
    writeln!(f, "{:72} {:>8} {:>6} {:>6}", "Relative", "ratio", "bar", "aim")?;
    for goal in goals {
        let Some(ratio) = goal.ratio(comparisons) else { continue };
        let ([bar, aim], verdict) = (goal.limit_texts(), goal.verdict(ratio));
        writeln!(f, "{:72} {ratio:8.3} {bar:>6} {aim:>6}  {verdict}", goal.describe())?;
    }
    Ok(())
}

/// A table of the loads on one core: shares of the first way, and rates.
pub(crate) fn shares(comparison: &Comparison) -> String {
    let loads: Vec<_> = Load::ALL.iter().filter_map(|load| comparison.on_one_core(*load)).collect();
    let units = loads.iter().map(|row| format!("{}, {}", row.load.name(), row.unit().0));
    let head: Vec<_> = [comparison.title.to_owned()].into_iter().chain(units).collect();
    let head: Vec<_> = head.iter().map(String::as_str).collect();
    let rows = comparison.names.iter().enumerate().map(|(way, name)| {
        let cell = |row: &&Measured| format!("{:.3} ({:.1})", row.share(way), row.median(way) * row.unit().1);
        [(*name).to_owned()].into_iter().chain(loads.iter().map(cell)).collect()
    });
    markdown::table(&head, rows)
}

/// A table of the goals for ways that were measured.
pub(crate) fn goals_markdown(goals: &[Goal], comparisons: &[Comparison]) -> String {
    let rows = goals.iter().filter_map(|goal| {
        let ratio = goal.ratio(comparisons)?;
        let [bar, aim] = goal.limit_texts();
        Some(vec![goal.describe(), format!("{ratio:.3}"), bar, aim, goal.verdict(ratio).to_owned()])
    });
    markdown::table(&["relative", "ratio", "bar", "aim", "verdict"], rows)
}

pub(crate) fn json(comparison: &Comparison) -> Value {
    let rows = comparison.rows.iter().map(|row| {
        let ways = comparison.names.iter().enumerate().map(|(way, name)| {
            let value = json!({ "median": row.median(way), "rounds": row.rates.get(way) });
            ((*name).to_owned(), value)
        });
        let ways: serde_json::Map<_, _> = ways.collect();
        json!({ "load": row.load.name(), "cores": row.cores(), "per_second": ways })
    });
    json!({ "title": comparison.title, "rows": rows.collect::<Vec<_>>() })
}

/// All goals; the ratio of ways that were not measured is `null`.
pub(crate) fn goals_json(goals: &[Goal], comparisons: &[Comparison]) -> Value {
    let goal = |goal: &Goal| {
        let (bar, aim) = (goal.limits.map(|it| it.bar), goal.limits.map(|it| it.aim));
        let ratio = goal.ratio(comparisons);
        let verdict = ratio.map(|ratio| goal.verdict(ratio));
        json!({
            "load": goal.load.name(), "of": goal.of, "to": goal.to, "bar": bar, "aim": aim, "ratio": ratio,
            "verdict": verdict,
        })
    };
    goals.iter().map(goal).collect()
}

fn rates(f: &mut fmt::Formatter<'_>, comparison: &Comparison, row: &Measured) -> fmt::Result {
    let ((unit, scale), rounds) = (row.unit(), row.rates.first().map_or(0, Vec::len));
    let (title, load, cores) = (comparison.title, row.load.name(), row.cores());
    writeln!(f, "{title}: {load}, {cores} ({rounds} rounds), {unit}")?;
    let first = comparison.names.first().copied().unwrap_or_default();
    for (way, name) in comparison.names.iter().enumerate() {
        let (rate, share) = (row.median(way) * scale, row.share(way));
        writeln!(f, "  {name:24} {rate:10.2} {share:8.3} of {first}")?;
    }
    writeln!(f)
}
