//! Every test there is, in the order of how soon it can fail.

use std::thread;

use anyhow::{Result, anyhow};

use crate::{dist, helm, leftovers, lint, run::Step, tools, workspace::Workspace};

/// Tests that need root wait more than they compute: for timers of the kernel, for agents that start.
const PRIVILEGED_THREADS: &str = "--test-threads=4";

/// Lints, checks the chart with helm, runs the unit tests, builds, runs the tests that need root, and checks
/// that they left nothing behind.
///
/// # Errors
/// At the first stage that fails.
pub(crate) fn test(ws: &Workspace) -> Result<()> {
    tools::need_root("running every test")?;
    tools::need(tools::TEST)?;
    tools::need(tools::RUNTIMES)?;
    tools::need_promtool(ws)?;
    dist::prepare(ws)?;
    lint::lint(ws)?;
    helm::check(ws)?;
    // Optimising a whole binary takes minutes of one core; all other builds and the unit tests fit beside it.
    thread::scope(|scope| {
        let shipped =
            thread::Builder::new().name("dist".to_owned()).spawn_scoped(scope, || dist::build(ws))?;
        let unoptimised = without_root(ws);
        let shipped =
            shipped.join().map_err(|_| anyhow!("building the release binaries: panicked, see above"))?;
        both(unoptimised, shipped)
    })?;
    privileged(ws)
}

/// Runs the unit tests, and builds what the tests that need root are made of.
fn without_root(ws: &Workspace) -> Result<()> {
    ws.cargo_host("test", "running the tests that need no root", "see which test failed, above").run()?;
    dist::build_crashing(ws)?;
    root_tests(ws, "building the tests that need root").arg("--no-run").run()
}

fn privileged(ws: &Workspace) -> Result<()> {
    let before = leftovers::look()?;
    let tests = root_tests(ws, "running the tests that need root").args(["--", PRIVILEGED_THREADS]);
    let tested = dist::tell(ws, tests).run();
    let clean = leftovers::check(&before);
    // What is left behind often tells how far a failed test came.
    both(tested, clean)
}

/// Both errors are worth knowing.
fn both(one: Result<()>, other: Result<()>) -> Result<()> {
    match (one, other) {
        (Err(one), Err(other)) => Err(anyhow!("{one:#}\nerror: {other:#}")),
        (one, other) => one.and(other),
    }
}

fn root_tests(ws: &Workspace, doing: &str) -> Step {
    // One run shows all that fails.
    ws.cargo_host("test", doing, "see the errors above").args([
        "--no-fail-fast",
        "--package",
        "ferrule-tests",
    ])
}
