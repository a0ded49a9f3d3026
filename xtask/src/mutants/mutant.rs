//! A change of the code in one place, as cargo-mutants lists it.

use std::fmt;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// One mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mutant {
    /// cargo-mutants' name: file, line, column and change.
    pub(super) name: String,
    pub(super) file: String,
    line: usize,
    /// The change with the function's name, such as "replace < with <= in Pool::take".
    pub(super) change: String,
    /// The first changed line, as the mutant has it: tells apart equal changes in one function.
    pub(super) becomes: String,
}

#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    file: String,
    diff: String,
    span: Span,
}

#[derive(Debug, Deserialize)]
struct Span {
    start: Position,
}

#[derive(Debug, Deserialize)]
struct Position {
    line: usize,
}

/// cargo-mutants' comment behind a replacement.
const MARKER: &str = "/* ~ changed by cargo-mutants ~ */";

/// Parses the output of `--list --json`.
///
/// # Errors
/// If it has another form.
pub(super) fn parse(json: &str) -> Result<Vec<Mutant>> {
    let listed: Vec<Listed> = serde_json::from_str(json)?;
    listed.into_iter().map(Mutant::try_from).collect()
}

// === impl Mutant ===

impl TryFrom<Listed> for Mutant {
    type Error = anyhow::Error;

    fn try_from(listed: Listed) -> Result<Self> {
        let Listed { name, file, diff, span } = listed;
        // `file:line:column: change`
        let change = name.split_once(": ").with_context(|| format!("no change in {name:?}"))?.1.to_owned();
        let changed = diff.lines().skip(2).find_map(|line| line.strip_prefix('+')).unwrap_or_default();
        let changed = changed.replace(MARKER, " ");
        let becomes = changed.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Self { name, file, line: span.start.line, change, becomes })
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, change, becomes, .. } = self;
        write!(f, "{file}:{line}: {change}\n      {becomes}")
    }
}
