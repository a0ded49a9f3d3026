//! Figures with their units and goals, as a table and as JSON.

use std::fmt;

use serde_json::{Value, json};

use crate::{markdown, results::Results};

/// Rows in the order of measurement.
#[derive(Debug)]
pub(crate) struct Table {
    /// Of the first column, in documents.
    name: &'static str,
    /// Above the table, in terminals.
    title: &'static str,
    /// Below the table.
    legend: &'static str,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    what: String,
    value: f64,
    unit: &'static str,
    goal: Option<Goal>,
}

/// `bar` must hold; `aim` is the target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Goal {
    bar: f64,
    aim: f64,
}

// === impl Table ===

impl Table {
    pub(crate) fn new(name: &'static str, title: &'static str, legend: &'static str) -> Self {
        Self { name, title, legend, rows: Vec::new() }
    }

    pub(crate) fn add(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        goal: impl Into<Option<Goal>>,
    ) {
        let row = Row { what: what.into(), value, unit, goal: goal.into() };
        eprintln!("{row}");
        self.rows.push(row);
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
        self.rows.iter().map(row).collect()
    }

    fn to_markdown(&self) -> String {
        let rows = self.rows.iter().map(|row| {
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
        let table = markdown::table(&[self.name, "measured", "bar", "aim", "verdict"], rows);
        format!("{table}\n{}", self.legend)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        writeln!(f, "{:60} {:>10} {:9} {:>8} {:>8}", "", "", "", "bar", "aim")?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        writeln!(f, "\n{}", self.legend)
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
    pub(crate) const fn at_most(bar: f64, aim: f64) -> Self {
        Self { bar, aim }
    }

    /// As [`Self::at_most`], for values where more is better.
    pub(crate) const fn at_least(bar: f64, aim: f64) -> Self {
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
