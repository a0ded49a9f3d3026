//! A release, in two steps with a commit between them: `--prepare` writes version and changelog; the second
//! step builds everything that users get from the commit. `docs/releasing.md` is the whole procedure.

mod artefacts;
mod changelog;
mod repository;
mod version;

use anyhow::Result;
use clap::Args;

use self::{changelog::Changelog, repository::Repository, version::Version};
use crate::{
    failure::{Failure, OrFail as _},
    files::{self, Written},
    helm,
    image::VERSION,
    run::{Step, say},
    workspace::Workspace,
};

/// The options of a release.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Such as 1.2.3
    version: Version,
    /// Write the version and the changelog's section into the sources, to be committed
    #[arg(long)]
    prepare: bool,
    /// Check everything, and list what would be written
    #[arg(long)]
    dry_run: bool,
}

/// Does one of the two steps.
///
/// # Errors
/// If something speaks against the release; nothing is written then. If something does not build.
pub(crate) fn release(ws: &Workspace, options: &Options) -> Result<()> {
    let Options { version, prepare, dry_run } = *options;
    say(format!("checking that {version} can be released from {}", ws.root.display()));
    let repository = Repository::look(ws)?;
    repository.check(version)?;
    let text = files::read(&ws.root.join(changelog::FILE), "restore it from the repository")?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let remedy = "write it in the form of https://keepachangelog.com";
    let log = Changelog::parse(&text).or_fail(format!("reading {}", changelog::FILE), remedy)?;
    if prepare {
        write_sources(ws, &log, version, dry_run)
    } else {
        let notes = check_sources(ws, &log, version)?;
        build(ws, &notes, version, dry_run)
    }
}

/// The first step.
fn write_sources(ws: &Workspace, log: &Changelog<'_>, version: Version, dry_run: bool) -> Result<()> {
    let refuse = |why: String, remedy: &str| -> Result<()> {
        Err(Failure { attempted: format!("preparing {version}"), why, remedy: remedy.to_owned() }.into())
    };
    let now: Version = VERSION.parse()?;
    if version < now || log.newest().is_some_and(|newest| version <= newest) {
        let newest = log.newest().unwrap_or(now);
        return refuse(
            format!("the sources are of {now}, and the newest release is {newest}"),
            "name a later version",
        );
    }
    if log.unreleased().is_empty() {
        return refuse("the changelog has no unreleased changes".to_owned(), "describe what has changed");
    }
    let edits = version::bump(ws, now, version)?;
    let date = Step::new("date", "asking for the date", "install coreutils").args(["-u", "+%F"]).ask()?;
    let log = log.release(version, date.trim_end());
    let written = edits.iter().map(|edit| (edit.file, edit.content.as_str()));
    for (file, content) in written.chain([(changelog::FILE, log.as_str())]) {
        if dry_run {
            say(format!("would write {file}"));
            continue;
        }
        let written = match files::replace_if_changed(&ws.root.join(file), content.as_bytes())? {
            Written::Changed => "written",
            Written::Unchanged => "as it was",
        };
        say(format!("{file}: {written}"));
    }
    say(format!(
        "next: read `git diff`, `cargo xtask lint`, commit as \"Release {version}\", `cargo xtask release {version}`"
    ));
    Ok(())
}

/// Checks what the first step has written, and returns the notes of the release.
fn check_sources(ws: &Workspace, log: &Changelog<'_>, version: Version) -> Result<String> {
    version::check(ws, version)?;
    let Some(notes) = log.of(version) else {
        return Err(Failure {
            attempted: format!("looking for {version} in {}", changelog::FILE),
            why: format!(
                "the newest release in it is {}",
                log.newest().map_or("none".to_owned(), |it| it.to_string())
            ),
            remedy: format!("run `cargo xtask release {version} --prepare`, and commit the result"),
        }
        .into());
    };
    if log.newest() != Some(version) || !log.unreleased().is_empty() {
        return Err(Failure {
            attempted: format!("looking for {version} in {}", changelog::FILE),
            why: "the changelog has later changes, which the artefacts would contain too".to_owned(),
            remedy: "check out the commit of the release".to_owned(),
        }
        .into());
    }
    Ok(format!("{notes}\n"))
}

/// The second step.
fn build(ws: &Workspace, notes: &str, version: Version, dry_run: bool) -> Result<()> {
    let folder = ws.root.join(format!("target/release-{version}"));
    let names = artefacts::names(version);
    if dry_run {
        for name in names {
            println!("{}", ws.show(&folder.join(name)));
        }
        return Ok(());
    }
    helm::check(ws)?;
    artefacts::build(ws, &folder, notes, version)?;
    for name in names {
        println!("{}", ws.show(&folder.join(name)));
    }
    say(format!(
        "next: `git tag --annotate v{version} --message \"Ferrule {version}\"`, push commit and tag, publish the files"
    ));
    Ok(())
}

#[cfg(test)]
mod tests;
