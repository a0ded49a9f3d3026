//! The results, as a table and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::load::{Cores, Load};

pub(super) struct Report {
    pub(super) pods: usize,
    /// The names of the paths; loopback is the first.
    pub(super) paths: Vec<&'static str>,
    pub(super) measured: Vec<Measured>,
}

/// One load, over every path.
pub(super) struct Measured {
    pub(super) load: Load,
    pub(super) cores: Cores,
    /// Of each path, the rates of all rounds.
    pub(super) rates: Vec<Vec<f64>>,
}

/// A bar and an aim for Ferrule's rate, relative to another path.
struct Goal {
    load: Load,
    to: &'static str,
    bar: f64,
    aim: f64,
}

const FERRULE: &str = "ferrule";
/// On one core: across cores, the scheduler decides.
const GOALS: [Goal; 5] = [
    Goal { load: Load::RequestResponse, to: "loopback", bar: 0.91, aim: 0.94 },
    Goal { load: Load::RequestResponse, to: "bridge", bar: 1.18, aim: 1.22 },
    Goal { load: Load::ConnectRequestResponse, to: "loopback", bar: 0.86, aim: 0.90 },
    Goal { load: Load::ConnectRequestResponse, to: "bridge", bar: 1.20, aim: 1.27 },
    Goal { load: Load::Stream, to: "veth", bar: 0.97, aim: 1.0 },
];

const LEGEND: &str = "\
Medians of the rounds. On one core, client and server share it, so that the rate is the inverse of the path's CPU time:
compare these. On two cores, wake-ups between the cores dominate, and runs differ by tens of percent. \"Service\": the
client calls an address that nftables rules translate, as kube-proxy's do.
";

// === impl Measured ===

impl Measured {
    pub(super) fn new(load: Load, cores: Cores, paths: usize) -> Self {
        Self { load, cores, rates: vec![Vec::new(); paths] }
    }

    fn median(&self, path: usize) -> f64 {
        let mut sorted = self.rates.get(path).cloned().unwrap_or_default();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn cores(&self) -> &'static str {
        match self.cores {
            Cores::Same => "one core",
            Cores::Two => "two cores",
        }
    }

    fn unit(&self) -> (&'static str, f64) {
        if self.load == Load::Stream { ("Gbit/s", 8e-9) } else { ("1000/s", 1e-3) }
    }
}

// === impl Report ===

impl Report {
    /// The rate of Ferrule, relative to that of another path.
    fn ratio(&self, goal: &Goal) -> Option<f64> {
        let at = |name| self.paths.iter().position(|path| *path == name);
        let row = self.measured.iter().find(|it| it.load == goal.load && it.cores == Cores::Same)?;
        Some(row.median(at(FERRULE)?) / row.median(at(goal.to)?))
    }

    pub(super) fn to_json(&self) -> Value {
        let rows = self.measured.iter().map(|row| {
            let paths = self.paths.iter().enumerate().map(|(at, path)| {
                let value = json!({ "median": row.median(at), "rounds": row.rates.get(at) });
                ((*path).to_owned(), value)
            });
            let paths: serde_json::Map<_, _> = paths.collect();
            json!({ "load": row.load.name(), "cores": row.cores(), "per_second": paths })
        });
        let goals = GOALS.iter().map(|goal| {
            let Goal { load, to, bar, aim } = goal;
            json!({ "load": load.name(), "to": to, "bar": bar, "aim": aim, "ratio": self.ratio(goal) })
        });
        json!({
            "further_pods": self.pods,
            "rows": rows.collect::<Vec<_>>(),
            "goals": goals.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Traffic between two pods of a node with {} further pods.\n", self.pods)?;
        for row in &self.measured {
            let ((unit, scale), rounds) = (row.unit(), row.rates.first().map_or(0, Vec::len));
            writeln!(f, "{}, {} ({rounds} rounds), {unit}", row.load.name(), row.cores())?;
            for (at, path) in self.paths.iter().enumerate() {
                let (rate, to) = (row.median(at), row.median(at) / row.median(0));
                writeln!(f, "  {path:20} {:10.2} {to:8.3} of loopback", rate * scale)?;
            }
            writeln!(f)?;
        }
        writeln!(f, "{:44} {:>8} {:>6} {:>6}", "Ferrule relative to", "ratio", "bar", "aim")?;
        for goal in &GOALS {
            let Some(ratio) = self.ratio(goal) else { continue };
            let Goal { load, to, bar, aim } = goal;
            let verdict = match ratio {
                _ if ratio >= *aim => "reached",
                _ if ratio >= *bar => "within bar",
                _ => "missed",
            };
            writeln!(
                f,
                "{:44} {ratio:8.3} {bar:6.2} {aim:6.2}  {verdict}",
                format!("{}: {to}", load.name())
            )?;
        }
        writeln!(f, "\n{LEGEND}")
    }
}
