//! `cargo xtask mutants`: changes one place of the code at a time, and checks that a test fails.
//!
//! cargo-mutants makes the changes (mutants) and runs the tests, room by room, in a copy of the workspace.
//! What it cannot change, such as constants, needs tests that state literals. Accepted survivors are listed
//! in xtask/mutants.toml.

mod explained;
mod mutant;
mod outcomes;
mod report;
mod room;
mod sample;
mod tree;

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::Args;

use self::{
    explained::Explained,
    mutant::Mutant,
    outcomes::Outcomes,
    report::{Report, Total},
    room::Room,
};
use crate::{
    cargo_tool::{CargoTool, UNOPTIMISED},
    failure::{Failure, OrFail as _},
    files,
    run::{Step, say},
    workspace::Workspace,
};

/// Unoptimised, which halves the time of the build.
const MUTANTS: CargoTool = CargoTool {
    name: "cargo-mutants",
    version: "27.1.0",
    options: UNOPTIMISED,
    ask_version: &["mutants", "--version"],
};

/// The options of a run.
#[derive(Debug, Args)]
pub(crate) struct Mutants {
    /// Modules of the agent, or shim, vif, ctl, ferrule-policy [default: those in xtask/src/mutants/room.rs]
    #[arg(value_name = "ROOM")]
    rooms: Vec<String>,
    /// The most mutants to test in each room; the same ones in each run
    #[arg(long, value_name = "N", default_value_t = 20)]
    sample: usize,
    /// Test every mutant
    #[arg(long, conflicts_with = "sample")]
    all: bool,
    /// Start no test after this time; the report then says how many mutants are untested
    #[arg(long, value_name = "N", default_value_t = 90)]
    minutes: u64,
    /// Fail for each survivor without an explanation, and for each stale explanation
    #[arg(long)]
    strict: bool,
}

/// The limit for the tests of one mutant: more than ten times what they need otherwise.
const TEST_SECONDS: &str = "120";
/// The limit for the build of one mutant.
const BUILD_SECONDS: &str = "600";
/// What cargo-mutants gets to end the running test and to write its outcomes.
const KILL_AFTER: &str = "--kill-after=30";

/// Tests the mutants of the rooms, and reports the survivors.
///
/// # Errors
/// If a room is unknown, or the tests fail without any mutant.
pub(crate) fn mutants(ws: &Workspace, options: &Mutants) -> Result<ExitCode> {
    let rooms = room::choose(&ws.root, &options.rooms)?;
    let explained = Explained::read(&ws.root)?;
    let limit = Limit::new(options.minutes);
    let lab = Lab { binary: MUTANTS.need(ws)?, tree: ws.target().join("mutants/tree"), ws };
    tree::copy(&ws.root, &lab.tree)?;

    let mut total = Total::default();
    for room in &rooms {
        let mutants = lab.list(room)?;
        let chosen =
            if options.all { mutants.iter().collect() } else { sample::take(&mutants, options.sample) };
        let outcomes = match limit.left() {
            Some(left) if !chosen.is_empty() => {
                lab.test(room, &chosen, chosen.len() < mutants.len(), left)?
            }
            _ => Outcomes::default(),
        };
        let report = Report::new(room, &mutants, &chosen, &outcomes, &explained);
        println!("{report}");
        total.add(&report);
    }
    total.add_strays(&explained.outside(&room::all(&ws.root)?));
    println!("{total}");
    let good = if options.strict { total.is_spotless() } else { total.is_good() };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// cargo-mutants on the copy of the workspace.
#[derive(Debug)]
struct Lab<'a> {
    binary: PathBuf,
    tree: PathBuf,
    ws: &'a Workspace,
}

/// The deadline of a run.
#[derive(Debug)]
struct Limit(Instant);

// === impl Lab ===

impl Lab<'_> {
    /// Every mutant of a room.
    fn list(&self, room: &Room) -> Result<Vec<Mutant>> {
        let doing = format!("listing the mutants of {}", room.name);
        let json = self
            .of(room, Step::new(&self.binary, doing.clone(), "see what cargo-mutants says"))
            .args(["--list", "--json"])
            .ask()?;
        mutant::parse(&json).or_fail(doing, "adapt xtask/src/mutants/mutant.rs to this cargo-mutants")
    }

    /// Tests `chosen`, for at most `left`.
    fn test(&self, room: &Room, chosen: &[&Mutant], is_sample: bool, left: Duration) -> Result<Outcomes> {
        let out = self.ws.target().join("mutants").join(&room.name);
        let doing = format!("testing {} mutants of {}", chosen.len(), room.name);
        let remedy = format!("see the logs in {}", self.ws.show(&out.join("mutants.out")));
        let timeout = Step::new("nice", doing.clone(), remedy.clone())
            // cargo-mutants has a limit for each mutant, but none for a run; it ends in order on SIGINT.
            .args([
                "--adjustment=5",
                "timeout",
                "--foreground",
                "--signal=INT",
                KILL_AFTER,
                &format!("{}s", left.as_secs()),
            ])
            .arg(&self.binary);
        let names = chosen.iter().map(|mutant| sample::exactly(&mutant.name));
        let step = self
            .of(room, timeout)
            // Of its own: cargo gives the packages of the copy the same names as the workspace's, and the
            // wait for another cargo would count as a mutant that hangs.
            .env("CARGO_TARGET_DIR", self.ws.target().join("mutants/build"))
            .args(["--in-place", "--no-times", "--colors=never", "--timeout", TEST_SECONDS])
            .args(["--build-timeout", BUILD_SECONDS, "--output"])
            .arg(&out)
            .args(if is_sample { names.map(|name| format!("--re={name}")).collect() } else { Vec::new() })
            .args(room.judges());
        match step.status()?.code() {
            // All caught; some missed; some timed out; the limit of the run.
            Some(0 | 2 | 3 | 124) => {}
            Some(4) => {
                let why = "the tests fail without any mutant".to_owned();
                return Err(Failure { attempted: doing, why, remedy }.into());
            }
            other => {
                let why = format!("cargo-mutants ended with {other:?}");
                return Err(Failure { attempted: doing, why, remedy }.into());
            }
        }
        let outcomes = out.join("mutants.out/outcomes.json");
        if !outcomes.exists() {
            // The limit came before the first mutant.
            return Ok(Outcomes::default());
        }
        let json = files::read(&outcomes, &remedy)?;
        Outcomes::parse(&json).or_fail(doing, "adapt xtask/src/mutants/outcomes.rs to this cargo-mutants")
    }

    /// The options that say which code to change, without further configuration.
    fn of(&self, room: &Room, step: Step) -> Step {
        let step = step.current_dir(&self.tree).args(["mutants", "--no-config", "--dir"]).arg(&self.tree);
        room.files()
            .iter()
            .fold(step.args(["--package", room.package]), |step, glob| step.arg("--file").arg(glob))
    }
}

// === impl Limit ===

impl Limit {
    fn new(minutes: u64) -> Self {
        Self(Instant::now() + Duration::from_secs(minutes.saturating_mul(60)))
    }

    /// What is left, if a mutant fits into it.
    fn left(&self) -> Option<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left < Duration::from_secs(60) {
            say("the time limit of this run is reached");
            return None;
        }
        Some(left)
    }
}

#[cfg(test)]
mod tests;
