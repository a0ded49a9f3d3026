//! Tests that fail beside others run once more, alone: on a busy machine a deadline may be missed.

use std::{
    io,
    thread::{self, ScopedJoinHandle},
};

use anyhow::{Result, anyhow};

use crate::{
    progress::both,
    run::{Step, say},
};

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

/// Runs tests, each step beside the others. If few fail, only these run again, alone: by `alone`, which can
/// run any of them. A test that passes then is reported as flaky.
///
/// # Errors
/// If tests fail twice, if more than [`MAX`] fail, or if a test's process ends early.
pub(crate) fn run(steps: impl IntoIterator<Item = Step>, alone: Step, args: &[&str]) -> Result<()> {
    let ran = thread::scope(|scope| {
        let start = |step: Step| {
            let thread = thread::Builder::new().name("tests".to_owned());
            thread.spawn_scoped(scope, || first(step, args))
        };
        let started: Vec<_> = steps.into_iter().map(start).collect();
        let end = |run: io::Result<ScopedJoinHandle<'_, _>>| {
            run?.join().map_err(|_| anyhow!("reading what tests print: panicked, see above"))
        };
        started.into_iter().map(end).collect::<Result<Vec<_>>>()
    })?;
    let all = ran.into_iter().fold((Ok(()), Some(Vec::new())), |(result, names), (one, failures)| {
        let few = if one.is_ok() { Some(&[][..]) } else { failures.few() };
        let names = names.zip(few).map(|(names, few)| [&names, few].concat());
        (both(result, one), names.filter(|names| names.len() <= MAX))
    });
    let (Err(_), Some(names)) = all else { return all.0 };
    let listed = names.join(", ");
    say(format!("failed beside others, run once more, alone: {listed}"));
    alone.args(["--", "--exact", "--test-threads=1"]).args(names).run_reading(|_| ())?;
    say(format!("FLAKY: failed beside others and passed alone, to be repaired: {listed}"));
    Ok(())
}

fn first(step: Step, args: &[&str]) -> (Result<()>, Failures) {
    let mut failures = Failures::default();
    (step.arg("--").args(args).run_reading(|line| failures.read(line)), failures)
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
        let step = |script: &str| Step::new("sh", "trying", "").args(["-c", script]);
        let output = "echo running 1 test; echo 'test a ... FAILED'; \
                      echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored'; ";
        let always = format!("{output} exit 101");
        assert!(run([step(&always)], step(&always), &["--test-threads=4"]).is_err());
        // The arguments of the second try follow `sh -c script`.
        let once = format!("{output} case \"$*\" in *--exact*a) exit 0;; esac; exit 101");
        run([step(&once)], step(&once), &["--test-threads=4"]).unwrap();
        let passes = || step("echo running 0 tests; echo 'test result: ok. 0 passed; 0 failed'");
        run([passes(), step(&once)], step(&once), &[]).unwrap();
        let (four, crashes) = (output.repeat(4) + "exit 101", "echo running 1 test; exit 101");
        for bad in [&four, crashes] {
            assert!(run([step(&once), step(bad)], step(&once), &[]).is_err(), "{bad}");
        }
        let two = output.repeat(2) + "exit 101";
        assert!(run([step(&two), step(&two)], step(&once), &[]).is_err(), "four in all");
    }
}
