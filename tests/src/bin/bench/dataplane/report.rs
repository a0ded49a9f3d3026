//! The results, as a table, as Markdown, as JSON and as a picture.

use std::fmt;

use serde_json::{Value, json};

use super::{
    chart::{Bar, Chart, Group},
    comparison::{Comparison, Measured},
    goal::{GOALS, Goal, Limits},
    load::Load,
    path,
};
use crate::{markdown, results::Results};

pub(crate) struct Report {
    pub(super) pods: usize,
    /// That of the paths is the first.
    pub(super) comparisons: [Comparison; 3],
    /// How hard the floods were.
    pub(super) flood: String,
}

/// In the picture; on one core.
const CHART_LOADS: [Load; 2] = [Load::RequestResponse, Load::ConnectRequestResponse];
const CHART_PATHS: [&str; 6] = ["loopback", "veth", path::REDIRECT, path::FERRULE, "ptp", "bridge"];

const SHARES: &str = "Client and server on one core: rates as shares of the first row's, and in parentheses.";
const LEGEND: &str = "\
Medians of the rounds. On one core, client and server share it, so that the rate is the inverse of the path's CPU time:
compare these. On two cores, wake-ups between the cores dominate, and runs differ by tens of percent. \"redirect\": a
program of four instructions that only redirects to the other pod, the floor of such paths. \"Service\": the client calls
an address that nftables rules translate, as kube-proxy's do.
";

// === impl Report ===

impl Report {
    fn ratio(&self, goal: &Goal) -> Option<f64> {
        goal.ratio(&self.comparisons)
    }

    fn chart(&self) -> Chart {
        let [paths, ..] = &self.comparisons;
        let group = |load: Load| {
            let bar = |name: &&str| {
                let share = paths.ratio(load, name, "loopback").unwrap_or(f64::NAN);
                Bar { name: (*name).to_owned(), share, is_ours: *name == path::FERRULE }
            };
            Group { name: load.name().to_owned(), bars: CHART_PATHS.iter().map(bar).collect() }
        };
        Chart {
            title: "Transactions per second between two pods on one core, as a share of loopback".to_owned(),
            groups: CHART_LOADS.map(group).into(),
        }
    }
}

impl Results for Report {
    fn to_json(&self) -> Value {
        let comparisons = self.comparisons.iter().map(|comparison| {
            let rows = comparison.rows.iter().map(|row| {
                let ways = comparison.names.iter().enumerate().map(|(way, name)| {
                    let value = json!({ "median": row.median(way), "rounds": row.rates.get(way) });
                    ((*name).to_owned(), value)
                });
                let ways: serde_json::Map<_, _> = ways.collect();
                json!({ "load": row.load.name(), "cores": row.cores(), "per_second": ways })
            });
            json!({ "title": comparison.title, "rows": rows.collect::<Vec<_>>() })
        });
        let goals = GOALS.iter().map(|goal| {
            let (bar, aim) = (goal.limits.map(|it| it.bar), goal.limits.map(|it| it.aim));
            let ratio = self.ratio(goal);
            let verdict = ratio.map(|ratio| goal.verdict(ratio));
            json!({
                "load": goal.load.name(), "of": goal.of, "to": goal.to, "bar": bar, "aim": aim, "ratio": ratio,
                "verdict": verdict,
            })
        });
        json!({
            "further_pods": self.pods,
            "flood": self.flood,
            "comparisons": comparisons.collect::<Vec<_>>(),
            "goals": goals.collect::<Vec<_>>(),
        })
    }

    fn to_markdown(&self) -> String {
        let tables = self.comparisons.iter().map(|it| format!("{}\n", shares(it)));
        let goals = GOALS.iter().filter_map(|goal| {
            let (what, ratio) = (describe(goal), self.ratio(goal)?);
            let [bar, aim] = limits(goal);
            Some(vec![what, format!("{ratio:.3}"), bar, aim, goal.verdict(ratio).to_owned()])
        });
        let goals = markdown::table(&["relative", "ratio", "bar", "aim", "verdict"], goals);
        let tables: String = tables.collect();
        format!("{SHARES}\n\n{tables}{goals}\nThe floods: {}.\n\n{LEGEND}", self.flood)
    }

    fn to_svg(&self) -> Option<String> {
        Some(self.chart().to_svg())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Traffic between two pods of a node with {} further pods.\n", self.pods)?;
        for comparison in &self.comparisons {
            comparison.rows.iter().try_for_each(|row| rates(f, comparison, row))?;
        }
        writeln!(f, "The floods: {}.\n", self.flood)?;
        writeln!(f, "{:72} {:>8} {:>6} {:>6}", "Relative", "ratio", "bar", "aim")?;
        for goal in &GOALS {
            let Some(ratio) = self.ratio(goal) else { continue };
            let ([bar, aim], verdict) = (limits(goal), goal.verdict(ratio));
            writeln!(f, "{:72} {ratio:8.3} {bar:>6} {aim:>6}  {verdict}", describe(goal))?;
        }
        writeln!(f, "\n{LEGEND}")
    }
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

/// A table of the loads on one core: shares of the first way, and rates.
fn shares(comparison: &Comparison) -> String {
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

fn describe(goal: &Goal) -> String {
    format!("{}: {} / {}", goal.load.name(), goal.of, goal.to)
}

fn limits(goal: &Goal) -> [String; 2] {
    let text = |limit: f64| format!("{limit:.2}");
    goal.limits.map_or_else(Default::default, |Limits { bar, aim }| [text(bar), text(aim)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::{flood, flows, load::Cores};

    /// Each way is a tenth slower than the one before.
    fn report() -> Report {
        let loads = CHART_LOADS.map(|load| (load, Cores::Same));
        let paths = Comparison::new("Paths", CHART_PATHS.into(), loads);
        let mut comparisons = [paths, flows::comparison(), flood::comparison()];
        for row in comparisons.iter_mut().flat_map(|it| &mut it.rows) {
            for way in 0..row.rates.len() {
                row.push(way, 50_000.0 * (1.0 - way as f64 / 10.0));
            }
        }
        Report { pods: 0, comparisons, flood: "1 and 2".to_owned() }
    }

    #[test]
    fn a_document_has_shares_rates_and_verdicts() {
        let text = report().to_markdown();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.contains(&"| ferrule | 0.700 (35.0) | 0.700 (35.0) |"), "{text}");
        assert!(
            lines.contains(&"| TCP request/response: ferrule / loopback | 0.700 | 0.91 | 0.94 | missed |"),
            "{text}"
        );
        assert!(lines.contains(&"| TCP request/response: ferrule / redirect | 0.875 |  |  |  |"), "{text}");
        assert!(
            lines.contains(&"| TCP request/response: flows on / flows off | 0.889 | 0.98 | 1.00 | missed |"),
            "{text}"
        );
    }

    #[test]
    fn json_has_every_goal_that_was_measured() {
        let json = report().to_json();
        let goals = json.get("goals").and_then(Value::as_array).unwrap();
        let flood = goals.iter().find(|it| it.get("of") == Some(&flood::SPOOFED.into())).unwrap();
        assert_eq!(flood.get("ratio").and_then(Value::as_f64), Some(0.9));
        assert_eq!(flood.get("verdict"), Some(&"missed".into()));
    }

    #[test]
    fn the_picture_shows_shares_of_loopback() {
        let chart = report().chart();
        let shares: Vec<_> = chart.groups[0].bars.iter().map(|it| (it.name.as_str(), it.share)).collect();
        assert_eq!(shares.first(), Some(&("loopback", 1.0)));
        assert_eq!(shares.last(), Some(&("bridge", 0.5)));
        assert!(chart.groups[1].bars.iter().all(|it| it.is_ours == (it.name == "ferrule")));
    }
}
