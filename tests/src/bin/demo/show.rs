//! What the demo prints: chapters of facts, each of which was checked, and a summary.

use std::time::{Duration, Instant};

/// The demo's output.
pub(crate) struct Show {
    start: Instant,
    facts: Vec<Fact>,
}

struct Fact {
    what: String,
    is_so: bool,
    took: Duration,
}

// === impl Show ===

impl Default for Show {
    fn default() -> Self {
        Self { start: Instant::now(), facts: Vec::new() }
    }
}

impl Show {
    /// Begins a chapter.
    pub(crate) fn chapter(&self, title: &str) {
        println!("\n── {title} {}", "─".repeat(96_usize.saturating_sub(title.chars().count())));
    }

    /// Checks a fact and prints it.
    ///
    /// # Errors
    /// If it is not so.
    pub(crate) fn fact<T>(
        &mut self,
        what: &str,
        check: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let start = Instant::now();
        let result = check();
        let fact = Fact { what: what.to_owned(), is_so: result.is_ok(), took: start.elapsed() };
        println!("{}", fact.line());
        self.facts.push(fact);
        result.map_err(|error| error.context(format!("this is not so: {what}")))
    }

    /// Prints what a command answered, below the command.
    pub(crate) fn output(&self, command: &str, output: &str) {
        println!("   # {command}");
        for line in output.trim_end().lines() {
            println!("   {line}");
        }
    }

    /// Prints all facts once more, on one screen.
    pub(crate) fn summary(&self, all_told: bool) {
        self.chapter("Summary");
        for fact in &self.facts {
            println!("{}", fact.line());
        }
        let so = self.facts.iter().filter(|fact| fact.is_so).count();
        let verdict =
            if all_told { "All of it works, and nothing is left." } else { "It does not work; see above." };
        println!(
            "\n{verdict} {so} of {} facts hold, in {:.1} s.",
            self.facts.len(),
            self.start.elapsed().as_secs_f64()
        );
    }
}

impl Fact {
    fn line(&self) -> String {
        let mark = if self.is_so { "✓" } else { "✗" };
        let millis = self.took.as_secs_f64() * 1e3;
        format!(" {mark} {:<82}{millis:>9.1} ms", self.what)
    }
}
