//! `cargo xtask`: the only entry point for building, testing, showing and deploying Ferrule.
//!
//! Every step says in one line what it does; every failure says what was attempted, why it failed and what to
//! do about it. What a machine lacks is installed, or named: nothing is skipped.

#![forbid(unsafe_code)]

mod btf;
mod cargo_tool;
mod citations;
mod deploy;
mod dist;
mod ebpf;
mod failure;
mod files;
mod image;
mod leftovers;
mod lint;
mod manifests;
mod oci;
mod remap;
mod report;
mod rooms;
mod run;
mod show;
mod test;
mod tidy;
mod toolchain;
mod tools;
mod words;
mod workspace;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{deploy::Deploy, workspace::Workspace};

/// Builds, tests, shows and deploys Ferrule.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Build the eBPF programs into target/bpf/ferrule.o
    ///
    /// Adds rust-src to the pinned toolchain and installs bpf-linker into target/tools if they are missing.
    /// FERRULE_BPF_LINKER=PATH takes another bpf-linker; it must read the bitcode of the Rust that compiles.
    BuildEbpf,
    /// Install what is missing, and build the eBPF programs, and the release binaries (static) into
    /// target/dist/
    Build,
    /// Build, and pack an image for podman, docker and containerd; the same commit makes the same image
    Image {
        /// Where to write it [default: target/dist/ferrule-<version>.tar]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Apply the manifests in deploy/ to the cluster of your kubeconfig, with kubectl, and wait until they
    /// are in effect
    Deploy(Deploy),
    /// Install what is missing, build, and run the demo (as root)
    Demo {
        /// Passed on to the demo
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Install what is missing, lint, run every test (as root), and check that nothing is left behind
    Test,
    /// Install what is missing, build, and measure (as root)
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Check formatting, clippy on both sides of the kernel boundary, and the house rules
    Lint,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// How long ADD and DEL take
    Add {
        /// Passed on to the benchmark
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// How long it takes from a crash until an agent serves again
    Start {
        /// Passed on to the benchmark
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// What following the API server costs: events, memory, lists, ADDs that wait
    Watch {
        /// Passed on to the benchmark
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().verb) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("error: {failure:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    let ws = Workspace::find()?;
    match verb {
        Verb::BuildEbpf => {
            ebpf::build(&ws)?;
            ebpf::show(&ws)?;
        }
        Verb::Build => dist::build(&ws)?,
        Verb::Image { output } => image::image(&ws, output)?,
        Verb::Deploy(deploy) => deploy::deploy(&ws, deploy)?,
        Verb::Demo { args } => return show::demo(&ws, &args),
        Verb::Test => test::test(&ws)?,
        Verb::Bench { what: Bench::Add { args } } => return show::bench(&ws, "add", &args),
        Verb::Bench { what: Bench::Start { args } } => return show::bench(&ws, "start", &args),
        Verb::Bench { what: Bench::Watch { args } } => return show::bench(&ws, "watch", &args),
        Verb::Lint => lint::lint(&ws)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_of_the_demo_are_not_ours() {
        let cli = Cli::try_parse_from(["xtask", "demo", "--nodes", "3", "-v"]).unwrap();
        assert!(matches!(cli.verb, Verb::Demo { args } if args == ["--nodes", "3", "-v"]));
    }
}
