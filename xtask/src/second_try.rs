//! Tests that fail beside others run once more, alone: on a busy machine a deadline may be missed.

use anyhow::Result;

use crate::run::{Step, say};

/// More failures than these are no matter of a busy machine.
const MAX: usize = 3;

/// What libtest prints of the tests that failed.
#[derive(Debug, Default)]
struct Failures {
    begun: usize,
    ended: usize,
    failed: usize,
    names: Vec<String>,
}

/// Runs tests. If few fail, only these run again, alone; a test that passes then is reported as flaky.
///
/// # Errors
/// If tests fail twice, if more than [`MAX`] fail, or if a test's process ends early.
pub(crate) fn run(doing: &str, tests: impl Fn(&str) -> Step, args: &[&str]) -> Result<()> {
    let mut failures = Failures::default();
    let first = tests(doing).arg("--").args(args).run_reading(|line| failures.read(line));
    let (Err(_), Some(names)) = (&first, failures.few()) else { return first };
    let listed = names.join(", ");
    say(format!("failed beside others, run once more, alone: {listed}"));
    tests("running failed tests alone")
        .args(["--", "--exact", "--test-threads=1"])
        .args(names)
        .run_reading(|_| ())?;
    say(format!("FLAKY: failed beside others and passed alone, to be repaired: {listed}"));
    Ok(())
}

// === impl Failures ===

impl Failures {
    fn read(&mut self, line: &str) {
        if line.starts_with("running ") && (line.ends_with(" test") || line.ends_with(" tests")) {
            self.begun += 1;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.ended += 1;
            let mut parts = result.split("; ");
            let failed = parts.find_map(|part| part.strip_suffix(" failed")?.parse::<usize>().ok());
            self.failed += failed.unwrap_or_default();
        } else if let Some(test) = line.strip_prefix("test ")
            && let Some(name) = test.strip_suffix(" ... FAILED")
        {
            self.names.push(name.to_owned());
        }
    }

    /// The failed tests, if they are few and explain the whole failure.
    fn few(&self) -> Option<&[String]> {
        let is_all = self.begun == self.ended && self.failed == self.names.len();
        (is_all && (1..=MAX).contains(&self.names.len())).then_some(&self.names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "\
running 2 tests
test a::works ... ok
test a::is_late ... FAILED

failures:

---- a::is_late stdout ----
not within 10s

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 10.0s
";

    fn few(output: &str) -> Option<Vec<String>> {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.read(line));
        failures.few().map(<[_]>::to_vec)
    }

    #[test]
    fn few_failures_get_a_second_try() {
        assert_eq!(few(ONE), Some(vec!["a::is_late".to_owned()]));
        assert_eq!(few(&ONE.repeat(3)).map(|names| names.len()), Some(3));
    }

    #[test]
    fn many_failures_get_none() {
        assert_eq!(few(&ONE.repeat(4)), None);
    }

    #[test]
    fn a_process_that_ended_early_gets_none() {
        assert_eq!(few(&format!("{ONE}running 3 tests\ntest b::crashes ... ")), None);
        assert_eq!(few("running 3 tests\n"), None);
        assert_eq!(few(""), None);
    }

    #[test]
    fn a_failure_without_a_name_gets_none() {
        let output =
            ONE.replace("test a::is_late ... FAILED", "test a::is_late ... output of a child FAILED?");
        assert_eq!(few(&output), None);
    }

    #[test]
    fn a_test_that_fails_twice_fails_the_run() {
        let step = |script: &'static str| move |doing: &str| Step::new("sh", doing, "").args(["-c", script]);
        let output = "echo running 1 test; echo 'test a ... FAILED'; \
                      echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored'; ";
        let always: &'static str = Box::leak(format!("{output} exit 101").into_boxed_str());
        assert!(run("trying", step(always), &["--test-threads=4"]).is_err());
        // The arguments of the second try follow `sh -c script`.
        let once: &'static str = Box::leak(
            format!("{output} case \"$*\" in *--exact*a) exit 0;; esac; exit 101").into_boxed_str(),
        );
        run("trying", step(once), &["--test-threads=4"]).unwrap();
    }
}
