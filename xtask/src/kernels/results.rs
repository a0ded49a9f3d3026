//! What the console of a machine says of the tests, and the table of it.

use std::fmt::Write as _;

use super::{known::Known, suite::Suite};

/// The results of one kernel.
#[derive(Debug)]
pub(super) struct Results {
    release: String,
    tests: Vec<Outcome>,
}

/// One binary of tests.
#[derive(Debug, Default)]
struct Outcome {
    name: String,
    passed: usize,
    /// By name.
    failed: Vec<String>,
    /// The binary's exit code; `None` if it has not ended.
    code: Option<i32>,
}

/// Begins each line of the machine that is no test's.
const MARK: &str = "==== ";
/// The exit code of libtest for failed tests.
const FAILED: i32 = 101;

// === impl Results ===

impl Results {
    /// Reads the console of a kernel on which `suite` was to run.
    pub(super) fn read(release: &str, suite: &Suite, console: &str) -> Self {
        let names = suite.entries.iter().map(|entry| entry.name.as_str());
        Self::parse(release, names, console)
    }

    fn parse<'a>(release: &str, names: impl Iterator<Item = &'a str>, console: &str) -> Self {
        let mut tests: Vec<_> =
            names.map(|name| Outcome { name: name.to_owned(), ..Outcome::default() }).collect();
        let mut running = None;
        for line in console.lines().map(str::trim) {
            if let Some(mark) = line.split_once(MARK).map(|(_, mark)| mark) {
                let mut words = mark.split_whitespace();
                let (event, name) = (words.next(), words.next());
                running = tests.iter_mut().find(|it| Some(it.name.as_str()) == name);
                if let (Some("end"), Some(outcome)) = (event, &mut running) {
                    outcome.code = words.next().and_then(|code| code.parse().ok());
                }
            } else if let (Some(test), Some(outcome)) = (line.strip_prefix("test "), &mut running) {
                if test.ends_with(" ... ok") {
                    outcome.passed += 1;
                } else if let Some(name) = test.strip_suffix(" ... FAILED") {
                    outcome.failed.push(format!("{}::{name}", outcome.name));
                }
            }
        }
        Self { release: release.to_owned(), tests }
    }

    /// Whether every binary of tests has ended.
    pub(super) fn came_to_the_end(&self) -> bool {
        self.tests.iter().all(|it| it.code.is_some())
    }

    /// Whether each test has passed, but for those that the kernel cannot pass.
    pub(super) fn are_good(&self, known: &Known) -> bool {
        self.tests.iter().all(|outcome| outcome.is_good(&self.release, known))
    }
}

// === impl Outcome ===

impl Outcome {
    fn is_good(&self, release: &str, known: &Known) -> bool {
        let is_known = |test: &String| known.why(release, test).is_some();
        match self.code {
            Some(0) => true,
            Some(FAILED) => !self.failed.is_empty() && self.failed.iter().all(is_known),
            _ => false,
        }
    }

    fn end(&self, release: &str, known: &Known) -> &'static str {
        match self.code {
            _ if self.is_good(release, known) => "as expected",
            Some(FAILED) => "FAILED",
            Some(124 | 137) => "TOO LATE",
            Some(_) => "BROKEN",
            None => "NOT ENDED",
        }
    }
}

/// Every kernel's results, then the failed tests.
pub(super) fn table(all: &[Results], known: &Known) -> String {
    let mut table = format!("{:<26} {:<14} {:>6} {:>6}  end\n", "kernel", "tests", "passed", "failed");
    let mut failures = String::new();
    for Results { release, tests } in all {
        for test in tests {
            let (name, passed, failed) = (&test.name, test.passed, test.failed.len());
            let end = test.end(release, known);
            // Writing to a String cannot fail.
            let _ = writeln!(table, "{release:<26} {name:<14} {passed:>6} {failed:>6}  {end}");
            for name in &test.failed {
                let why = known.why(release, name).unwrap_or("not expected");
                let _ = writeln!(failures, "{release}: {name}: {why}");
            }
        }
    }
    table + &failures
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSOLE: &str = "\
boot\u{1b}[2J==== up 5.10.0\r
==== begin one\r
test a::b ... ok\r
test a::c ... FAILED\r
failures:\r
==== end one 101\r
==== begin two\r
test d ... ok\r
";

    fn known(test: &str) -> Known {
        Known::parse(&format!("[[fails]]\ntest = \"{test}\"\nbefore = \"5.16\"\nwhy = \"too old\"\n"))
            .unwrap()
    }

    #[test]
    fn a_failure_is_good_only_if_the_kernel_cannot_pass_the_test() {
        let results = Results::parse("5.10.0-1", ["one"].into_iter(), CONSOLE);
        assert!(results.came_to_the_end());
        assert!(results.are_good(&known("one::a::c")));
        assert!(!results.are_good(&known("one::a::b")));
        assert!(table(&[results], &known("one::a::c")).ends_with("5.10.0-1: one::a::c: too old\n"));
    }

    #[test]
    fn a_test_that_does_not_end_is_no_success() {
        let results = Results::parse("6.1.0-9", ["two", "three"].into_iter(), CONSOLE);
        assert!(!results.came_to_the_end() && !results.are_good(&Known::default()));
        let table = table(&[results], &Known::default());
        assert!(
            table.lines().nth(1).unwrap().ends_with("two                 1      0  NOT ENDED"),
            "{table}"
        );
    }
}
