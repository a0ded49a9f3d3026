//! The demo and the benchmarks, which are binaries of the package `ferrule-tests`.

use std::{os::unix::process::ExitStatusExt as _, process::ExitCode};

use anyhow::Result;

use crate::{
    debug, dist, ebpf,
    progress::{Stages, beside},
    run::{Step, say},
    tools,
    workspace::Workspace,
};

/// Tells the demo how the binaries that it shows were built.
const BUILD_VARIABLE: &str = "FERRULE_BUILD";
/// What the demo shows, but the agent.
const CLIENTS: [&str; 3] = ["ferrule", "ferrulectl", "demo"];

/// Runs the demo, whose exit code is returned: of the release binaries, or of unoptimised ones.
///
/// # Errors
/// If it cannot be built or started.
pub(crate) fn demo(ws: &Workspace, release: bool, args: &[String]) -> Result<ExitCode> {
    tools::need_root("running the demo")?;
    let mut stages = Stages::of(3);
    stages.run("installing what is missing", || tools::need(tools::TEST))?;
    let (build, binaries) = if release { ("release", ws.dist()) } else { ("unoptimised", debug::folder(ws)) };
    let building = format!("building the demo and {build} binaries");
    stages.run(&building, || if release { with_release(ws) } else { without_optimisation(ws) })?;
    let step = Step::new(debug::folder(ws).join("demo"), "running the demo", "see its messages")
        .args(args)
        .env(BUILD_VARIABLE, build);
    stages.run("running the demo", || shown(dist::tell_of(ws, step, &binaries)))
}

/// Runs a benchmark, whose exit code is returned.
///
/// # Errors
/// If it cannot be built or started.
pub(crate) fn bench(ws: &Workspace, what: &str, args: &[String]) -> Result<ExitCode> {
    tools::need_root("measuring")?;
    let mut stages = Stages::of(3);
    stages.run("installing what is missing", || {
        tools::need(tools::TEST)?;
        tools::need(tools::BENCH)
    })?;
    stages.run("building what is measured", || dist::build(ws))?;
    let step = ws
        .cargo_host("run", format!("building and running the benchmark {what}"), "see what cargo says, above")
        .args(["--quiet", "--release", "--package", "ferrule-tests", "--bin", "bench", "--", what])
        .args(args);
    stages.run("measuring", || shown(dist::tell(ws, step)))
}

fn with_release(ws: &Workspace) -> Result<()> {
    dist::build(ws)?;
    debug::build(ws, "building the demo", &["demo"]).run()
}

fn without_optimisation(ws: &Workspace) -> Result<()> {
    // Both have parts that keep only one core busy. The agent embeds the programs.
    beside(
        "building the eBPF programs",
        || ebpf::build(ws),
        || debug::build(ws, "building the demo, plugin and client", &CLIENTS).run(),
    )?;
    debug::build(ws, "building the agent", &["ferrule-agent"]).run()
}

/// Runs a program whose messages are for the reader, and returns its exit code.
fn shown(step: Step) -> Result<ExitCode> {
    let status = step.status()?;
    if status.success() {
        return Ok(ExitCode::SUCCESS);
    }
    say(format!("{status}; its messages are above"));
    // As a shell reports it: 128 plus the signal.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
