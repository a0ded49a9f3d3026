//! The release before this one, built from git, for tests that upgrade from it and roll back to it.

use std::{fs, path::Path};

use anyhow::Result;

use crate::{
    dist,
    failure::OrFail as _,
    files,
    run::{Step, say},
    workspace::Workspace,
};

/// Tells the tests that the release is there.
const VARIABLE: &str = "FERRULE_PREVIOUS";

/// A commit whose binaries are in [`folder`].
#[derive(Debug)]
pub(crate) struct Previous {
    /// What was asked for: a tag, a branch or a commit.
    name: String,
}

/// Builds the commit that is named, or the newest release with a tag before this commit; `None` if there is
/// neither.
///
/// # Errors
/// If git does not know the name, or the commit does not build.
pub(crate) fn build(ws: &Workspace, named: Option<&str>) -> Result<Option<Previous>> {
    let Some(name) = named.map(ToOwned::to_owned).or_else(|| last_release(ws)) else {
        say(
            "no tag v* in this checkout: tests of upgrades use this agent with other maps as the previous release",
        );
        return Ok(None);
    };
    let remedy =
        "name a commit that this checkout has; a shallow clone has few: `git fetch --unshallow --tags`";
    let doing = format!("looking for the previous release {name}");
    let commit = git(ws, &doing, remedy, &["rev-parse", "--verify", &format!("{name}^{{commit}}")])?;
    let mark = folder(ws).join("commit");
    if fs::read_to_string(&mark).is_ok_and(|built| built == commit) {
        return Ok(Some(Previous { name }));
    }
    let sources = ws.root.join("target/previous");
    remove(ws, &sources)?;
    let path = sources.to_string_lossy();
    let add = ["worktree", "add", "--force", "--detach", &path, commit.trim_end()];
    git(ws, &format!("checking out {name} into {path}"), "remove target/previous", &add)?;
    let built = compile(ws, &sources, &name);
    remove(ws, &sources)?;
    built?;
    files::replace_if_changed(&mark, commit.as_bytes())?;
    Ok(Some(Previous { name }))
}

/// Tells the tests of the release.
pub(crate) fn tell(previous: Option<&Previous>, step: Step) -> Step {
    match previous {
        Some(Previous { name }) => step.env(VARIABLE, name),
        None => step,
    }
}

fn folder(ws: &Workspace) -> std::path::PathBuf {
    ws.dist().join("previous")
}

/// The newest tag of a release before this commit: the commit itself may have one.
fn last_release(ws: &Workspace) -> Option<String> {
    let args = ["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"];
    git(ws, "asking git for the last release", "", &args).ok().map(|tag| tag.trim_end().to_owned())
}

/// Builds as that commit does it, with this checkout's directory for crates that both use. Not optimised: the
/// tests judge what the release does, not how fast.
fn compile(ws: &Workspace, sources: &Path, name: &str) -> Result<()> {
    let remedy = "build that commit in a checkout of its own, and see what it needs";
    let cargo = |verb: &str, doing: &str| {
        Step::new("cargo", format!("{doing} of {name}"), remedy)
            .current_dir(sources)
            .env("CARGO_TARGET_DIR", ws.target())
            .arg(verb)
    };
    let mut programs = cargo("xtask", "building the eBPF programs").arg("build-ebpf");
    // Another toolchain needs another linker.
    let toolchain = "rust-toolchain.toml";
    let linker = ws.tools().join("bin/bpf-linker");
    if linker.is_file() && fs::read(sources.join(toolchain)).ok() == fs::read(ws.root.join(toolchain)).ok() {
        programs = programs.env("FERRULE_BPF_LINKER", linker);
    }
    programs.run()?;
    cargo("build", "building the binaries")
        .arg("--locked")
        .args(dist::packages().flat_map(|package| ["--package", package]))
        .arg("--bins")
        .run()?;
    for binary in dist::names() {
        files::copy(&ws.target().join("debug").join(binary), &folder(ws).join(binary))?;
    }
    Ok(())
}

/// Removes the checkout of an earlier run.
fn remove(ws: &Workspace, sources: &Path) -> Result<()> {
    if sources.exists() {
        fs::remove_dir_all(sources)
            .or_fail(format!("removing {}", sources.display()), "remove it by hand")?;
    }
    git(ws, "removing the checkout of the previous release", "", &["worktree", "prune"]).map(drop)
}

fn git(ws: &Workspace, doing: &str, remedy: &str, args: &[&str]) -> Result<String> {
    Step::new("git", doing, remedy).current_dir(&ws.root).args(args).ask()
}
