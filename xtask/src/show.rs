//! The demo and the benchmarks, which are binaries of the package `ferrule-tests`.

use std::{os::unix::process::ExitStatusExt as _, process::ExitCode};

use anyhow::Result;

use crate::{dist, run::say, tools, workspace::Workspace};

/// Runs the demo, whose exit code is returned.
///
/// # Errors
/// If it cannot be built or started.
pub(crate) fn demo(ws: &Workspace, args: &[String]) -> Result<ExitCode> {
    tools::need_root("running the demo")?;
    tools::need(tools::TEST)?;
    dist::build(ws)?;
    run(ws, "demo", args)
}

/// Runs a benchmark, whose exit code is returned.
///
/// # Errors
/// If it cannot be built or started.
pub(crate) fn bench(ws: &Workspace, what: &str, args: &[String]) -> Result<ExitCode> {
    tools::need_root("measuring")?;
    tools::need(tools::TEST)?;
    tools::need(tools::BENCH)?;
    dist::build(ws)?;
    run(ws, "bench", &[&[what.to_owned()], args].concat())
}

fn run(ws: &Workspace, binary: &str, args: &[String]) -> Result<ExitCode> {
    let step = ws
        .cargo_host("run", format!("running the {binary}"), "see what cargo says, above")
        .args(["--quiet", "--release", "--package", "ferrule-tests", "--bin", binary, "--"])
        .args(args);
    let status = dist::tell(ws, step).status()?;
    if status.success() {
        return Ok(ExitCode::SUCCESS);
    }
    say(format!("running the {binary}: {status}; its messages are above"));
    // As a shell reports it: 128 plus the signal.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
