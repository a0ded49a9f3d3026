//! The results, as a table, as Markdown, as JSON and as a picture.

use std::fmt;

use serde_json::{Value, json};

use super::{goal::GOALS, path};
use crate::{
    rates::{
        chart::{Bar, Chart, Group},
        comparison::Comparison,
        load::Load,
        tables,
    },
    results::Results,
};

pub(crate) struct Report {
    /// That of the paths is the first.
    pub(super) comparisons: Vec<Comparison>,
    /// How hard the floods were.
    pub(super) flood: String,
}

/// In the picture; on one core.
const CHART_LOADS: [Load; 2] = [Load::RequestResponse, Load::ConnectRequestResponse];
const CHART_PATHS: [&str; 6] = [path::LOOPBACK, "veth", path::REDIRECT, path::FERRULE, "ptp", "bridge"];

const SHARES: &str = "Client and server on one core: rates as shares of the first row's, and in parentheses.";
const LEGEND: &str = "\
Rates and ratios are medians of the rounds. On one core, client and server share it, so that the rate is the inverse of
the path's CPU time: compare these. On two cores, wake-ups between the cores dominate, and runs differ by tens of
percent. \"redirect\": a program of four instructions that only redirects to the other pod, the floor of such paths.
\"Service\": the client calls an address that nftables rules translate, as kube-proxy's do.
";

// === impl Report ===

impl Report {
    /// Relative to loopback.
    fn ratio(&self, load: Load, name: &str) -> Option<f64> {
        self.comparisons.first()?.ratio(load, name, path::LOOPBACK)
    }

    fn chart(&self) -> Chart {
        let group = |load: Load| {
            let bar = |name: &&str| {
                let share = self.ratio(load, name).unwrap_or(f64::NAN);
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
        json!({
            "flood": self.flood,
            "comparisons": self.comparisons.iter().map(tables::json).collect::<Vec<_>>(),
            "goals": tables::goals_json(&GOALS, &self.comparisons),
        })
    }

    fn to_markdown(&self) -> String {
        let ways: String = self.comparisons.iter().map(|it| format!("{}\n", tables::shares(it))).collect();
        let goals = tables::goals_markdown(&GOALS, &self.comparisons);
        format!("{SHARES}\n\n{ways}{goals}\nThe floods: {}.\n\n{LEGEND}", self.flood)
    }

    fn to_svg(&self) -> Option<String> {
        Some(self.chart().to_svg())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Traffic between two pods of a node.\n")?;
        self.comparisons.iter().try_for_each(|it| tables::text(f, it))?;
        writeln!(f, "The floods: {}.\n", self.flood)?;
        tables::goals_text(f, &GOALS, &self.comparisons)?;
        writeln!(f, "\n{LEGEND}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dataplane::{flood, flows},
        rates::load::Cores,
    };

    /// Each way is a tenth slower than the one before.
    fn report() -> Report {
        let loads = CHART_LOADS.map(|load| (load, Cores::Same));
        let paths = Comparison::new("Paths", CHART_PATHS.into(), loads);
        let mut comparisons = vec![paths, flows::comparison(), flood::comparison()];
        for row in comparisons.iter_mut().flat_map(|it| &mut it.rows) {
            for way in 0..row.rates.len() {
                row.push(way, 50_000.0 * (1.0 - way as f64 / 10.0));
            }
        }
        Report { comparisons, flood: "1 and 2".to_owned() }
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
