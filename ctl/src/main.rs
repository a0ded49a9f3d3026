//! `ferrulectl`: shows the state of the Ferrule agent of this node.

#![forbid(unsafe_code)]

mod attachments;
mod client;
mod flows;
mod gc;
mod log_level;
mod manifest;
mod nodes;
mod policy;
mod status;
mod table;
mod verify;
mod vif;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand, ValueEnum};
use ferrule_proto::DEFAULT_SOCKET;

/// Show the state of the Ferrule agent of this node
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Path of the agent's socket
    #[arg(long, global = true, env = "FERRULE_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Output format
    #[arg(short, long, global = true, value_enum, default_value_t)]
    output: Output,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List attachments: pod, container, interface, addresses, state and packet counters with drops
    Attachments,
    /// Show whether the agent is ready, and the state of each of its components
    ///
    /// Exit code 0: ready. 1: not ready, or running pods may lack connectivity, or the agent cannot be
    /// reached.
    Status,
    /// Show the nodes of the cluster, the way to each of their ranges, and what is refused
    ///
    /// Exit code 1: the agent does not know the nodes yet, or none of that name, or cannot be reached.
    Nodes(nodes::Args),
    /// Compare the kernel and the eBPF maps with the desired state, and list every deviation
    ///
    /// Read-only. Exit code 0: no deviations. 1: deviations found. 2: the agent cannot be reached.
    Verify,
    /// Show dropped packets: when, from which pod to which, and why
    ///
    /// With `-o json`, one object a line, as `hubble observe -o json` prints. Times are UTC. Exit code 1: the
    /// agent cannot be reached, refuses the request, or stops while --follow waits.
    Drops(flows::DropsArgs),
    /// Show dropped packets and flows, or choose with --sampling which flows are recorded
    ///
    /// The output is that of `drops`. A flow has a record when it begins, at most one a minute while packets
    /// pass, and one when TCP closes it.
    Flows(flows::FlowsArgs),
    /// Explain garbage collection: which attachments may be orphaned, the proofs for and against, and the
    /// agent's verdict
    Gc(gc::Args),
    /// Show or set the filter of the agent's log, until the agent's next start
    LogLevel(log_level::Args),
    /// Show network policies, and which of them judge a pod or a packet; of a running agent, or of files
    #[command(subcommand)]
    Policy(policy::Command),
    /// Decode VIFs in manifests, without an agent
    #[command(subcommand)]
    Vif(vif::Command),
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Output {
    #[default]
    Table,
    Json,
}

/// The output of a command; empty if the command has printed it. Failures go to standard error and set the
/// exit code.
#[derive(Debug, Default)]
struct Report {
    text: String,
    failures: Vec<String>,
    /// Go to standard error, and are no failures.
    notes: Vec<String>,
    /// What the exit code is without failures.
    code: u8,
}

/// Exit code of `verify` and `policy trace` without an answer, to tell it apart from an unwelcome one.
const UNKNOWN: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(Report { text, failures, notes, code }) => {
            notes.iter().for_each(|note| complain(note));
            let unprinted = finish(&text).err().map(|error| format!("cannot write the output: {error}"));
            let failures: Vec<_> = failures.into_iter().chain(unprinted).collect();
            failures.iter().for_each(|failure| complain(failure));
            if failures.is_empty() { ExitCode::from(code) } else { args.command.failed() }
        }
        Err(error) => {
            complain(&format!("{error:#}"));
            match args.command {
                Command::Verify => ExitCode::from(UNKNOWN),
                command => command.failed(),
            }
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
    let _ = writeln!(io::stderr(), "ferrulectl: {failure}");
}

fn run(args: &Args) -> anyhow::Result<Report> {
    // A thread of its own for the connection, which answers the agent's pings while the output blocks.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        match &args.command {
            Command::Attachments => Ok(attachments::run(&args.socket, args.output).await?.into()),
            Command::Status => status::run(&args.socket, args.output).await,
            Command::Nodes(nodes) => nodes::run(nodes, &args.socket, args.output).await,
            Command::Verify => verify::run(&args.socket, args.output).await,
            Command::Drops(drops) => flows::drops(drops, &args.socket, args.output).await,
            Command::Flows(flows) => flows::flows(flows, &args.socket, args.output).await,
            Command::Gc(gc) => Ok(gc::run(gc, &args.socket, args.output).await?.into()),
            Command::LogLevel(level) => Ok(log_level::run(level, &args.socket, args.output).await?.into()),
            Command::Policy(command) => policy::run(command, &args.socket, args.output).await,
            Command::Vif(command) => vif::run(command, args.output),
        }
    })
}

// === impl Command ===

impl Command {
    /// The exit code of a failure.
    fn failed(&self) -> ExitCode {
        match self {
            Self::Policy(policy::Command::Trace(_)) => ExitCode::from(UNKNOWN),
            _ => ExitCode::FAILURE,
        }
    }
}

// === impl Report ===

impl From<String> for Report {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}
