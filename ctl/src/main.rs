//! `ferrulectl`: what an operator asks the agent.

#![forbid(unsafe_code)]

mod attachments;
mod client;

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
}

/// For people or for programs.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Output {
    #[default]
    Table,
    Json,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ferrulectl: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match args.question {
            Question::Attachments => attachments::ask(&args.socket, args.output).await,
        }
    })
}
