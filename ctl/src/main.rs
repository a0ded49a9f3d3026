//! `ferrulectl`: shows the state of the Ferrule agent of this node.

#![forbid(unsafe_code)]

mod args;
mod attachments;
mod bench;
mod bundle;
mod check;
mod client;
mod explain;
mod filter;
mod flows;
mod gc;
mod generate;
mod ipam;
mod log_level;
mod manifest;
mod nodes;
mod output;
mod paint;
mod plugin;
mod pod_arg;
mod policy;
#[cfg(test)]
#[path = "../../xtask/src/book/shown.rs"]
mod shown;
mod status;
mod table;
mod time;
mod top;
mod verify;
mod vif;
mod wishes;

use std::{
    env,
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser as _;

use args::{Args, Command};
use output::Report;

fn main() -> ExitCode {
    paint::begin();
    if plugin::is_called(env::args_os().next().as_deref()) {
        return plugin::main();
    }
    run_and_report(&Args::parse())
}

/// The whole program, for arguments that are valid.
fn run_and_report(args: &Args) -> ExitCode {
    match run(args) {
        Ok(Report { text, failures, notes, code }) => {
            notes.iter().for_each(|note| complain(note));
            let unprinted = finish(&text).err().map(|error| format!("cannot write the output: {error}"));
            let failures: Vec<_> = failures.into_iter().chain(unprinted).collect();
            failures.iter().for_each(|failure| complain(failure));
            ExitCode::from(if failures.is_empty() { code } else { args.command.failed() })
        }
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::from(args.command.unanswered())
        }
    }
}

/// Writes a line, or more, to standard output.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush())
}

/// Writes a report to standard output. A reader that has read enough (`| head -1`) is no failure.
fn finish(text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    match print(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Writes a failure to standard error; the exit code tells it too.
fn complain(failure: &str) {
    let _ = writeln!(io::stderr(), "{} {failure}", paint::bad_on_stderr("ferrulectl:"));
}

fn run(args: &Args) -> anyhow::Result<Report> {
    // A thread of its own for the connection, which answers the agent's pings while the output blocks.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (socket, output) = (&args.socket, args.output);
    runtime.block_on(async {
        match &args.command {
            Command::Attachments(filter) => Ok(attachments::run(filter, socket, output).await?.into()),
            Command::Status => status::run(socket, output).await,
            Command::Nodes(nodes) => nodes::run(nodes, socket, output).await,
            Command::Verify(filter) => verify::run(filter, socket, output).await,
            Command::Drops(drops) => flows::drops(drops, socket, output).await,
            Command::Flows(flows) => flows::flows(flows, socket, output).await,
            Command::Explain(pod) => explain::run(pod, socket, output).await,
            Command::Check(pod) => check::run(pod, socket, output).await,
            Command::Bench(command) => bench::run(command, socket, output).await,
            Command::Ipam(filter) => ipam::run(filter, socket, output).await,
            Command::Completion { shell } => Ok(generate::completion(*shell)?.into()),
            Command::Man { directory } => Ok(generate::man(directory)?.into()),
            Command::SupportBundle(bundle) => bundle::run(bundle, socket).await,
            Command::Top(top) => top::run(top, socket, output).await,
            Command::Gc(gc) => Ok(gc::run(gc, socket, output).await?.into()),
            Command::LogLevel(level) => Ok(log_level::run(level, socket, output).await?.into()),
            Command::Policy(command) => policy::run(command, socket, output).await,
            Command::Vif(command) => vif::run(command, output),
        }
    })
}
