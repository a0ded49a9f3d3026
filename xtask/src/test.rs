//! Every test there is, in the order of how soon it can fail.

use anyhow::Result;

use crate::{
    debug, dist, helm, leftovers, lint, previous,
    progress::{Stages, beside, both},
    run::Step,
    second_try, tools,
    workspace::Workspace,
};

/// Tests that need root wait more than they compute: for timers of the kernel, for agents that start.
const PRIVILEGED_THREADS: &str = "--test-threads=4";

/// Lints, checks the chart with helm, runs the unit tests, builds, runs the tests that need root, and checks
/// that they left nothing behind. With `previous`, also tests upgrades from that commit, or from the last
/// release.
///
/// # Errors
/// At the first stage that fails.
pub(crate) fn test(ws: &Workspace, previous: Option<Option<&str>>) -> Result<()> {
    tools::need_root("running every test")?;
    let mut stages = Stages::of(if previous.is_some() { 6 } else { 5 });
    stages.run("installing what is missing", || {
        tools::need(tools::TEST)?;
        tools::need(tools::RUNTIMES)?;
        tools::need_promtool(ws)?;
        dist::prepare(ws)
    })?;
    stages.run("checking what need not run", || lint::lint(ws))?;
    stages.run("checking the chart", || helm::check(ws))?;
    // Optimising a whole binary takes minutes of one core. If that begins early, all the other builds and the
    // unit tests fit beside it.
    stages.run("running the unit tests, and building what the other tests need", || {
        beside("building the release binaries", || dist::build(ws), || units(ws))
    })?;
    if let Some(named) = previous {
        stages.run("building the previous release", || previous::build(ws, named))?;
    }
    stages.run("running the system tests", || system(ws, previous.is_some()))
}

/// Runs the unit tests, and builds what the system tests are made of.
fn units(ws: &Workspace) -> Result<()> {
    let remedy = "see which test failed, above";
    let tests = |doing: &str| debug::test(ws, doing, remedy).args(["--no-fail-fast", "--lib", "--bins"]);
    tests("building the unit tests").arg("--no-run").nice().run()?;
    second_try::run("running the unit tests", tests, &[])?;
    debug::test(ws, "running the examples in documentation", remedy).arg("--doc").run()?;
    dist::build_crashing(ws)?;
    system_tests(ws, "building the system tests").arg("--no-run").nice().run()
}

fn system(ws: &Workspace, has_previous: bool) -> Result<()> {
    let before = leftovers::look()?;
    let tests = |doing: &str| dist::tell(ws, system_tests(ws, doing));
    let mut tested = second_try::run("running the system tests", tests, &[PRIVILEGED_THREADS]);
    if has_previous {
        tested = both(tested, upgrades(ws).run());
    }
    let clean = leftovers::check(&before);
    // What is left behind often tells how far a failed test came.
    both(tested, clean)
}

/// The tests that need the previous release, which other runs ignore.
fn upgrades(ws: &Workspace) -> Step {
    let step = debug::test(ws, "running the tests of upgrades", "see which test failed, above");
    dist::tell(ws, step).args(["--test", "upgrade", "--", "--ignored", "--nocapture", PRIVILEGED_THREADS])
}

fn system_tests(ws: &Workspace, doing: &str) -> Step {
    // One run shows all that fails.
    debug::test(ws, doing, "see the errors above").args(["--no-fail-fast", "--test", "*"])
}
