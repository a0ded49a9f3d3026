//! What became of the mutants: cargo-mutants' outcomes.json.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Deserialize;

/// The mutants by name, and the seconds that all of them took.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcomes {
    by_name: BTreeMap<String, Outcome>,
    pub(super) seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A test failed.
    Caught,
    /// A test did not end: as good as caught.
    Timeout,
    /// Every test passed.
    Missed,
    /// The mutant does not compile.
    Unviable,
}

#[derive(Debug, Deserialize)]
struct File {
    outcomes: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    scenario: Scenario,
    summary: String,
    phase_results: Vec<Phase>,
}

#[derive(Debug, Deserialize)]
enum Scenario {
    /// The tests without any mutant.
    Baseline,
    Mutant(Named),
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Phase {
    duration: f64,
}

// === impl Outcomes ===

impl Outcomes {
    /// Parses outcomes.json, which is complete after each mutant.
    ///
    /// # Errors
    /// If it has another form.
    pub(super) fn parse(json: &[u8]) -> Result<Self> {
        let file: File = serde_json::from_slice(json)?;
        let mut outcomes = Self::default();
        for Entry { scenario, summary, phase_results } in file.outcomes {
            let Scenario::Mutant(Named { name }) = scenario else { continue };
            let outcome = match summary.as_str() {
                "CaughtMutant" => Outcome::Caught,
                "Timeout" => Outcome::Timeout,
                "MissedMutant" => Outcome::Missed,
                "Unviable" => Outcome::Unviable,
                other => anyhow::bail!("unknown outcome {other:?} of {name}"),
            };
            outcomes.by_name.insert(name, outcome);
            outcomes.seconds += phase_results.iter().map(|phase| phase.duration).sum::<f64>();
        }
        Ok(outcomes)
    }

    /// The outcome of a mutant; none if the run ended before it was tested.
    pub(super) fn of(&self, name: &str) -> Option<Outcome> {
        self.by_name.get(name).copied()
    }
}
