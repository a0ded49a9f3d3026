//! What was measured, for people and for programs.

use std::fmt;

use serde_json::{Value, json};

/// Rows, in the order in which they were measured.
#[derive(Debug, Default)]
pub(super) struct Table(Vec<Row>);

#[derive(Debug)]
struct Row {
    what: String,
    value: f64,
    unit: &'static str,
    goal: Option<Goal>,
}

/// What must hold, and what we are after.
#[derive(Debug, Clone, Copy)]
pub(super) struct Goal {
    bar: f64,
    aim: f64,
}

const LEGEND: &str = "\
The goals are absolute, so that the verdict is on this machine, and on whatever else it did meanwhile. API server and
agent share it: times include the server's part. A pod is 4.5 kB of JSON, as the API server tells it. RSS is VmRSS of
the agent a few seconds after the last change.
30000 pods are more than any node has: their `spec.nodeName` is this one's, as if one agent followed a whole cluster.
Events: all are written while the watch is stalled; the time is from its end to the agent's own count of what it has
applied, the CPU time is the agent's, kernel included. \"server alone\" is the same watch read by a client that does
nothing with it.
Lists: from the arrival of the request at the server to the line `listed` in the agent's log, when registry and server
agree. The random wait before a list (up to 2 s) is before that. \"start\" is that of an agent that has kept nothing,
from exec on.
ADDs: from the moment at which the server has taken the annotation until the plugin's process has ended. A VIF that is
refused is one that is not plugged: what is left is the way of the event, and of the answer. Who asks once a second
instead, as Ferrule's ancestor, adds 500 ms at the median and 990 ms at p99, whatever the rest takes.
";

// === impl Table ===

impl Table {
    pub(super) fn add(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        goal: impl Into<Option<Goal>>,
    ) {
        let row = Row { what: what.into(), value, unit, goal: goal.into() };
        eprintln!("{row}");
        self.0.push(row);
    }

    pub(super) fn to_json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "what": row.what, "value": row.value, "unit": row.unit,
                "bar": row.goal.map(|it| it.bar), "aim": row.goal.map(|it| it.aim),
                "verdict": row.goal.map(|it| it.verdict(row.value)),
            })
        };
        self.0.iter().map(row).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "What following the API server costs\n")?;
        writeln!(f, "{:60} {:>10} {:9} {:>8} {:>8}", "", "", "", "bar", "aim")?;
        self.0.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        writeln!(f, "\n{LEGEND}")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, unit, goal } = self;
        let digits = if *value < 100.0 { 2 } else { 0 };
        write!(f, "{what:60} {value:10.digits$} {unit:9}")?;
        match goal {
            Some(goal) => write!(f, " {:8} {:8}  {}", goal.bar, goal.aim, goal.verdict(*value)),
            None => Ok(()),
        }
    }
}

// === impl Goal ===

impl Goal {
    pub(super) fn at_most(bar: f64, aim: f64) -> Self {
        Self { bar, aim }
    }

    /// The other way round: what is better is more.
    pub(super) fn at_least(bar: f64, aim: f64) -> Self {
        Self { bar, aim }
    }

    fn verdict(self, value: f64) -> &'static str {
        let more = self.aim > self.bar;
        let reaches = |limit| if more { value >= limit } else { value <= limit };
        match (reaches(self.aim), reaches(self.bar)) {
            (true, _) => "reached",
            (_, true) => "within bar",
            _ => "missed",
        }
    }
}
