//! Everything that is checked without running it.

use anyhow::Result;

use crate::{
    ebpf,
    failure::Failure,
    run::say,
    tidy,
    toolchain::{self, Part},
    workspace::Workspace,
};

/// Checks the house rules, formatting, and clippy on both sides of the kernel boundary.
///
/// # Errors
/// At the first check that finds something.
pub(crate) fn lint(ws: &Workspace) -> Result<()> {
    tidy(ws)?;
    thin_shim(ws)?;
    toolchain::need(ws, &[Part::Rustfmt, Part::Clippy])?;
    ws.cargo("fmt", "checking the formatting", "run `cargo fmt --all`").args(["--all", "--check"]).run()?;
    // The agent's binary embeds the object, so that there is no checking it without.
    ebpf::build(ws)?;
    ebpf::clippy(ws)?;
    ws.cargo_host("clippy", "clippy on everything else, tests included", "do as clippy says")
        .args(["--workspace", "--exclude", "agent-ebpf", "--all-targets", "--", "-D", "warnings"])
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

fn tidy(ws: &Workspace) -> Result<()> {
    say("checking the house rules (xtask/src/tidy.rs)");
    let findings = tidy::check(&ws.root)?;
    if findings.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = findings.iter().map(|finding| format!("\n    {finding}")).collect();
    Err(Failure {
        attempted: "checking the house rules".to_owned(),
        why: format!("{} broken:{}", lines.len(), lines.concat()),
        remedy: "change those places; or, if a rule is wrong, the rule in xtask/src/tidy.rs".to_owned(),
    }
    .into())
}
