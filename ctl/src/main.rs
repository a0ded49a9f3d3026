//! `ferrulectl`: what an operator asks the agent.

#![forbid(unsafe_code)]

mod attachments;
mod client;
mod gc;
mod status;
mod verify;
mod vif;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand, ValueEnum};
use ferrule_proto::DEFAULT_SOCKET;

/// Asks the Ferrule agent of this node.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// The agent's socket.
    #[arg(long, global = true, env = "FERRULE_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// How to print the answer.
    #[arg(short, long, global = true, value_enum, default_value_t)]
    output: Output,
    #[command(subcommand)]
    question: Question,
}

#[derive(Debug, Subcommand)]
enum Question {
    /// Lists what is attached: which pod has which interface and addresses, and what happened to its packets.
    Attachments,
    /// Tells whether the agent is ready, and how its components are, since when and why. Fails if it is not ready.
    Status,
    /// Compares kernel and maps with what should be there, and lists every difference. Changes nothing. Exit code 0: none; 1: there
    /// are some; 2: the agent could not be asked.
    Verify,
    /// Tells which attachments may be dangling, with the proofs for and against, and what the agent will do.
    Gc(gc::Question),
    /// Looks at VIFs in manifests, without an agent.
    #[command(subcommand)]
    Vif(vif::Question),
}

/// For people or for programs.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Output {
    #[default]
    Table,
    Json,
}

/// What is printed, and what is wrong with what was asked about: each makes for a failure.
struct Answer {
    text: String,
    complaints: Vec<String>,
}

/// Nothing is known, not even whether anything is wrong.
const NOT_ASKED: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(Answer { text, complaints }) => {
            println!("{text}");
            for complaint in &complaints {
                eprintln!("ferrulectl: {complaint}");
            }
            if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("ferrulectl: {error:#}");
            match args.question {
                // Whoever asks often has to tell the two apart.
                Question::Verify => ExitCode::from(NOT_ASKED),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn run(args: &Args) -> anyhow::Result<Answer> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match &args.question {
            Question::Attachments => Ok(attachments::ask(&args.socket, args.output).await?.into()),
            Question::Status => status::ask(&args.socket, args.output).await,
            Question::Verify => verify::ask(&args.socket, args.output).await,
            Question::Gc(question) => Ok(gc::ask(question, &args.socket, args.output).await?.into()),
            Question::Vif(question) => vif::answer(question, args.output),
        }
    })
}

// === impl Answer ===

impl From<String> for Answer {
    fn from(text: String) -> Self {
        Self { text, complaints: Vec::new() }
    }
}
