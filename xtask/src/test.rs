//! Every test there is, in the order of how soon it can fail.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::{
    commands, debug, dist, helm, kustomize, leftovers, lint, previous,
    progress::{Stages, beside, both},
    run::Step,
    second_try, tools,
    workspace::Workspace,
};

/// Tests that need root wait more than they compute: for timers of the kernel, for agents that start.
const PRIVILEGED_THREADS: &str = "--test-threads=4";

/// System tests that mostly wait, for one agent after another to start and die, for what must not happen, for
/// timers of minutes, or for the agent's memory to settle: they run beside the others, for as long.
const WAITING: [&str; 6] = ["crashes", "model", "monitor", "policy", "soak", "status"];
const FAILED: &str = "running failed tests alone";

/// The part of `cargo metadata` that names the tests.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
    /// Whether `cargo test` runs it.
    test: bool,
}

/// Lints, compiles for other architectures, checks the chart and the documents with helm and kubectl, runs
/// the unit tests, builds, runs the tests that need root, and checks that they left nothing behind. With
/// `previous`, also tests upgrades from that commit, or from the last release.
///
/// # Errors
/// At the first stage that fails.
pub(crate) fn test(ws: &Workspace, previous: Option<Option<&str>>) -> Result<()> {
    tools::need_root("running every test")?;
    let mut stages = Stages::of(if previous.is_some() { 6 } else { 5 });
    stages.run("installing what is missing", || {
        // At once: apt-get takes seconds each time.
        tools::need(&[tools::TEST, tools::RUNTIMES, tools::BUILD, tools::PIP].concat())?;
        tools::need_promtool(ws)?;
        dist::prepare(ws)?;
        dist::prepare_others(ws)
    })?;
    stages.run("checking what need not run", || {
        lint::lint(ws)?;
        dist::check_others(ws)
    })?;
    stages.run("checking what helm and kubectl are given", || {
        helm::check(ws)?;
        kustomize::check(ws)?;
        commands::check(ws)
    })?;
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
    // `--bins` would also build those that have no tests, of which the agent takes longest.
    let binaries = tested(ws, "bin")?;
    let binaries = || binaries.iter().flat_map(|name| ["--bin", name.as_str()]);
    let tests =
        |doing: &str| debug::test(ws, doing, remedy).args(["--no-fail-fast", "--lib"]).args(binaries());
    tests("building the unit tests").arg("--no-run").nice().run()?;
    second_try::run([tests("running the unit tests")], tests(FAILED), &[])?;
    // With the features of the agent that is built next, whose library is then compiled once.
    debug::test(ws, "running the examples in documentation", remedy)
        .args(dist::CRASHING)
        .arg("--doc")
        .run()?;
    dist::build_crashing(ws)?;
    system_tests(ws, "building the system tests", &["*"]).arg("--no-run").nice().run()
}

fn system(ws: &Workspace, has_previous: bool) -> Result<()> {
    let before = leftovers::look()?;
    let (waiting, busy): (Vec<_>, Vec<_>) =
        system_test_names(ws)?.into_iter().partition(|name| WAITING.contains(&name.as_str()));
    let steps = [
        system_tests(ws, "running the system tests", &busy),
        system_tests(ws, "running the system tests that mostly wait", &waiting).labelled("waiting: "),
    ];
    let steps = steps.map(|step| dist::tell(ws, step));
    let alone = dist::tell(ws, system_tests(ws, FAILED, &["*"]));
    let mut tested = second_try::run(steps, alone, &[PRIVILEGED_THREADS]);
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

fn system_tests(ws: &Workspace, doing: &str, names: &[impl AsRef<str>]) -> Step {
    // One run shows all that fails.
    let names = names.iter().flat_map(|name| ["--test", name.as_ref()]);
    debug::test(ws, doing, "see the errors above").arg("--no-fail-fast").args(names)
}

/// The names of all system tests.
fn system_test_names(ws: &Workspace) -> Result<BTreeSet<String>> {
    let names = tested(ws, "test")?;
    if let Some(gone) = WAITING.iter().find(|name| !names.contains(**name)) {
        bail!("finding the system tests: there is none named {gone} (xtask/src/test.rs)");
    }
    Ok(names)
}

/// The names of what `cargo test` runs of one kind, each once: two packages may have one of the same name.
fn tested(ws: &Workspace, kind: &str) -> Result<BTreeSet<String>> {
    let remedy = "run `cargo metadata --no-deps` and repair what it names";
    let doing = "finding the tests";
    let printed = ws.cargo("metadata", doing, remedy).args(["--format-version", "1", "--no-deps"]).ask()?;
    let Metadata { packages } = serde_json::from_str(&printed).context(doing)?;
    let is_tested = |package: &Package| !debug::ALL.contains(&package.name.as_str());
    let targets = packages.into_iter().filter(is_tested).flat_map(|package| package.targets);
    let targets = targets.filter(|target| target.test && target.kind == [kind]);
    Ok(targets.map(|target| target.name).collect())
}
