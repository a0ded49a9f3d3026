//! The demo's output: chapters of verified facts, and a summary.

use std::{
    env,
    time::{Duration, Instant},
};

/// Names the build of the shown binaries, which their times depend on.
const BUILD_VARIABLE: &str = "FERRULE_BUILD";

/// Prints facts and collects them for the summary.
pub(crate) struct Report {
    start: Instant,
    facts: Vec<Fact>,
}

struct Fact {
    what: String,
    holds: bool,
    took: Duration,
}

// === impl Show ===

impl Default for Report {
    fn default() -> Self {
        Self { start: Instant::now(), facts: Vec::new() }
    }
}

impl Report {
    /// Starts a chapter.
    pub(crate) fn chapter(&self, title: &str) {
        println!("\n── {title} {}", "─".repeat(96_usize.saturating_sub(title.chars().count())));
    }

    /// Verifies a fact and prints the outcome.
    ///
    /// # Errors
    /// If the fact does not hold.
    pub(crate) fn fact<T>(
        &mut self,
        what: &str,
        check: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let start = Instant::now();
        let result = check();
        let fact = Fact { what: what.to_owned(), holds: result.is_ok(), took: start.elapsed() };
        println!("{}", fact.line());
        self.facts.push(fact);
        result.map_err(|error| error.context(format!("failed: {what}")))
    }

    /// Prints a command and its output.
    pub(crate) fn output(&self, command: &str, output: &str) {
        println!("   # {command}");
        for line in output.trim_end().lines() {
            println!("   {line}");
        }
    }

    /// Prints all facts and the verdict. `is_complete`: no fact failed.
    pub(crate) fn summary(&self, is_complete: bool) {
        self.chapter("Summary");
        for fact in &self.facts {
            println!("{}", fact.line());
        }
        let holding = self.facts.iter().filter(|fact| fact.holds).count();
        let verdict = if is_complete {
            "Everything works, and nothing is left behind."
        } else {
            "A fact does not hold; see above."
        };
        let build = env::var(BUILD_VARIABLE).unwrap_or_else(|_| "unknown".to_owned());
        println!(
            "\n{verdict} {holding} of {} facts hold, in {:.1} s. The times are those of {build} binaries.",
            self.facts.len(),
            self.start.elapsed().as_secs_f64()
        );
    }
}

impl Fact {
    fn line(&self) -> String {
        let mark = if self.holds { "✓" } else { "✗" };
        let millis = self.took.as_secs_f64() * 1e3;
        format!(" {mark} {:<82}{millis:>9.1} ms", self.what)
    }
}
