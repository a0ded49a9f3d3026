//! The results, as a table and as JSON.

use std::fmt;

use serde_json::{Value, json};

use crate::{markdown, results::Results};

/// Rows in the order of measurement.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Row>);

#[derive(Debug)]
struct Row {
    what: String,
    value: f64,
    unit: &'static str,
    goal: Option<Goal>,
}

/// `bar` must hold; `aim` is the target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Goal {
    bar: f64,
    aim: f64,
}

const LEGEND: &str = "\
The goals are absolute, so a verdict depends on this machine and its other load. API server and agent share the machine:
latencies include the server's part. A pod is 4.5 kB of JSON. RSS is VmRSS of the agent a few seconds after the last
change.
30000 pods exceed any real node: every pod's `spec.nodeName` is this node, as if one agent watched a whole cluster.
Events: all changes are written while the watch is stalled. The time runs from the end of the stall until the agent has
counted all events as applied; the CPU time is the agent's, including the kernel. \"API server alone\" is the same watch,
read by a client that discards the events.
Lists: from the arrival of the request at the server to the line `listed` in the agent's log, when the registry agrees
with the server. The random wait before a relist (up to 10 s) is not included. The agent start is the exec of an agent
without a checkpoint.
ADDs: from the server's response to the annotation until the exit of the plugin's process. A refused VIF is not plugged,
so only the latency of the event and of the answer remains. Polling once per second would add 500 ms at the median and
990 ms at p99.
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
}

impl Results for Table {
    fn to_json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "what": row.what, "value": row.value, "unit": row.unit,
                "bar": row.goal.map(|it| it.bar), "aim": row.goal.map(|it| it.aim),
                "verdict": row.goal.map(|it| it.verdict(row.value)),
            })
        };
        self.0.iter().map(row).collect()
    }

    fn to_markdown(&self) -> String {
        let rows = self.0.iter().map(|row| {
            let goal = row.goal.map_or_else(Default::default, |goal| {
                [goal.bar.to_string(), goal.aim.to_string(), goal.verdict(row.value).to_owned()]
            });
            let [bar, aim, verdict] = goal;
            vec![
                row.what.replacen("  ", "– ", 1),
                format!("{} {}", row.figure(), row.unit),
                bar,
                aim,
                verdict,
            ]
        });
        let table = markdown::table(&["watch", "measured", "bar", "aim", "verdict"], rows);
        format!("{table}\n{LEGEND}")
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Cost of watching the API server\n")?;
        writeln!(f, "{:60} {:>10} {:9} {:>8} {:>8}", "", "", "", "bar", "aim")?;
        self.0.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        writeln!(f, "\n{LEGEND}")
    }
}

// === impl Row ===

impl Row {
    fn figure(&self) -> String {
        let digits = if self.value < 100.0 { 2 } else { 0 };
        format!("{:.digits$}", self.value)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, unit, goal } = self;
        write!(f, "{what:60} {:>10} {unit:9}", self.figure())?;
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

    /// As [`Self::at_most`], for values where more is better.
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
