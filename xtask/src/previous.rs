//! The release before this one, built from git for the tests that upgrade from it and roll back to it.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use crate::{
    debug, dist,
    failure::OrFail as _,
    files,
    linker::{self, LINKER_VARIABLE},
    run::{Step, say},
    workspace::Workspace,
};

/// The previous release while no commit has a tag `v*`: a record holds all that it does in 0.1.0, and the
/// maps are of version 5.
const BEFORE_THE_FIRST_TAG: &str = "f9d5709f0dcc89fd76f9c014c2ccd96ed5440cdf";

/// Builds a commit into `target/dist/previous/`: the one that is named, or that of the newest tag `v*` before
/// this commit. Not optimised: the tests judge what the release does, not how fast.
///
/// # Errors
/// If git does not know the commit, or the commit does not build.
pub(crate) fn build(ws: &Workspace, named: Option<&str>) -> Result<()> {
    let name = named.map_or_else(|| last_release(ws), ToOwned::to_owned);
    let remedy =
        "name a commit that this checkout has; a shallow clone has few: `git fetch --unshallow --tags`";
    let verify = ["rev-parse", "--verify", "--end-of-options", &format!("{name}^{{commit}}")];
    let commit = git(ws, &format!("looking for the previous release {name}"), remedy, &verify)?;
    let commit = commit.trim_end();
    let to = ws.dist().join("previous");
    let mark = to.join("commit");
    if fs::read_to_string(&mark).is_ok_and(|built| built == commit) {
        say(format!("{}: has the binaries of {name}", ws.show(&to)));
        return Ok(());
    }
    let sources = ws.root.join("target/previous");
    check_out(ws, commit, &sources)?;
    let previous = Workspace::at(&sources);
    compile(ws, &previous, &name)?;
    for binary in dist::names() {
        files::copy(&debug::folder(&previous).join(binary), &to.join(binary))?;
    }
    remove(&sources)?;
    files::replace_if_changed(&mark, commit.as_bytes()).map(drop)
}

/// The newest tag of a release before this commit: the commit itself may have one.
fn last_release(ws: &Workspace) -> String {
    let args = ["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"];
    let tag = git(ws, "asking git for the last release", "", &args);
    tag.map_or_else(|_| BEFORE_THE_FIRST_TAG.to_owned(), |tag| tag.trim_end().to_owned())
}

/// Unpacks the files of a commit, without a work tree that git would have to forget.
fn check_out(ws: &Workspace, commit: &str, to: &Path) -> Result<()> {
    remove(to)?;
    fs::create_dir_all(to).or_fail(format!("creating {}", to.display()), "see the reason")?;
    let archive = to.with_extension("tar");
    let (from, remedy) = (archive.to_string_lossy(), "see the reason");
    git(ws, &format!("reading the files of {commit}"), remedy, &["archive", "--output", &from, commit])?;
    let doing = format!("unpacking the files of {commit}");
    Step::new("tar", doing, remedy).args(["--extract", "--file", &from]).current_dir(to).run()?;
    fs::remove_file(&archive).or_fail(format!("removing {from}"), "remove the file by hand")
}

/// Builds a checkout with its own toolchain, as the release was.
fn compile(ws: &Workspace, previous: &Workspace, name: &str) -> Result<()> {
    let remedy = "build that commit in a checkout of its own, and see what it needs";
    let [own, theirs] = [channel(&ws.root)?, channel(&previous.root)?];
    let mut programs = previous
        .cargo("xtask", format!("building the eBPF programs of {name}"), remedy)
        .arg("build-ebpf")
        .env("RUSTUP_TOOLCHAIN", &theirs);
    if own == theirs {
        programs = programs.env(LINKER_VARIABLE, linker::need(ws)?);
    }
    // The verifier refuses programs of incremental builds.
    programs.env("CARGO_TARGET_DIR", previous.target()).env("CARGO_INCREMENTAL", "0").run()?;
    let binaries: Vec<&str> = dist::names().collect();
    debug::build(previous, &format!("building the binaries of {name}"), &binaries)
        .arg("--locked")
        .env("RUSTUP_TOOLCHAIN", &theirs)
        .run()
}

/// The toolchain that a checkout names.
fn channel(folder: &Path) -> Result<String> {
    let path = folder.join("rust-toolchain.toml");
    let attempted = format!("looking for the toolchain in {}", path.display());
    let remedy = "write it as: channel = \"1.2.3\"";
    let text = fs::read_to_string(&path).or_fail(&attempted, remedy)?;
    let line = text.lines().find_map(|line| line.strip_prefix("channel = \""));
    let channel = line.and_then(|rest| rest.strip_suffix('"')).context("no channel");
    Ok(channel.or_fail(attempted, remedy)?.to_owned())
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .or_fail(format!("removing {}", folder.display()), "remove the folder by hand")?;
    }
    Ok(())
}

fn git(ws: &Workspace, doing: &str, remedy: &str, args: &[&str]) -> Result<String> {
    Step::new("git", doing, remedy).current_dir(&ws.root).args(args).ask()
}
