//! `cargo xtask kernels`: system tests on other kernels, in an emulator.
//!
//! A machine of QEMU boots the kernel of a Debian package with the files of this machine, read-only. Its
//! clock counts instructions: deadlines of tests hold, however slow the emulation is. Tests that a kernel
//! cannot pass are listed in xtask/kernels.toml.

mod known;
mod machine;
mod package;
mod results;
mod suite;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Args;

use self::{known::Known, machine::Machine, package::Package, results::Results, suite::Suite};
use crate::{
    failure::Failure,
    progress::Stages,
    run::say,
    tools::{self, Tool},
    workspace::Workspace,
};

/// The options of a run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Series of kernels, of those that apt offers [default: all that apt offers]
    #[arg(value_name = "SERIES")]
    series: Vec<String>,
    /// A kernel that apt does not offer: its Debian package, linux-image-*-amd64-unsigned_*.deb
    #[arg(long = "deb", value_name = "FILE")]
    debs: Vec<PathBuf>,
    /// A system test in tests/tests/, and no others; with NAME:FILTER only tests with this in their names
    #[arg(long = "test", value_name = "NAME")]
    tests: Vec<String>,
    /// End each machine after this time
    #[arg(long, value_name = "N", default_value_t = 90)]
    minutes: u64,
}

const TOOLS: &[Tool] = &[
    Tool::new("qemu-system-x86_64", "qemu-system-x86"),
    Tool::new("/bin/busybox", "busybox-static"),
    Tool::new("cpio", "cpio"),
    Tool::new("depmod", "kmod"),
    Tool::new("xz", "xz-utils"),
];

/// Builds the tests, runs them on each kernel, and prints a table of the results.
///
/// # Errors
/// If apt offers no such kernel, the tests do not build, or the emulator does not start.
pub(crate) fn kernels(ws: &Workspace, options: &Options) -> Result<ExitCode> {
    tools::need_root("running tests on other kernels")?;
    if std::env::consts::ARCH != "x86_64" {
        return Err(Failure {
            attempted: "running tests on other kernels".to_owned(),
            why: format!(
                "the machine has another architecture, {}, than the kernels",
                std::env::consts::ARCH
            ),
            remedy: "run the command on an x86_64 machine".to_owned(),
        }
        .into());
    }
    let known = Known::read(&ws.root)?;
    let mut stages = Stages::of(3);
    let packages = stages.run("fetching the kernels", || {
        tools::need(tools::TEST)?;
        tools::need(TOOLS)?;
        package::choose(ws, &options.series, &options.debs)
    })?;
    let suite = stages.run("building the tests", || Suite::build(ws, &options.tests))?;
    let results = stages.run("running the tests on each kernel", || {
        packages
            .into_iter()
            .map(|package| run(ws, package, &suite, options.minutes))
            .collect::<Result<Vec<_>>>()
    })?;
    println!("\n{}", results::table(&results, &known));
    let good = results.iter().all(|results| results.are_good(&known));
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A machine that does not come up is a result too: the other kernels are tried.
fn run(ws: &Workspace, package: Package, suite: &Suite, minutes: u64) -> Result<Results> {
    let machine = Machine::prepare(package, suite)?;
    let console = machine.run(minutes)?;
    let results = Results::read(machine.release(), suite, &console);
    if !results.came_to_the_end() {
        say(format!("{}: ended early, see {}", machine.release(), ws.show(&machine.console())));
    }
    Ok(results)
}
