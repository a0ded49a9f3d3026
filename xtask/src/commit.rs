//! The commit that is being built.

use anyhow::Result;

use crate::{failure::OrFail as _, run::Step, workspace::Workspace};

/// The commit that images and packages are of.
#[derive(Debug)]
pub(crate) struct Commit {
    /// With `-dirty`, if there is more than the commit.
    pub(crate) revision: String,
    /// In UTC, as SPDX and images write it.
    pub(crate) time: String,
    /// The same, since 1970.
    pub(crate) seconds: u64,
}

// === impl Commit ===

impl Commit {
    /// The commit that is checked out, and whether there is more than it.
    ///
    /// # Errors
    /// If git does not know.
    pub(crate) fn of(ws: &Workspace) -> Result<Self> {
        let remedy = "an image says which commit it is of: build it in a git checkout that belongs to you";
        let git = |doing: &str, args: &[&str]| {
            Step::new("git", doing, remedy).env("TZ", "UTC0").current_dir(&ws.root).args(args).ask()
        };
        let commit = git("asking git for the commit", &["rev-parse", "HEAD"])?;
        let changes = git("asking git for changes", &["status", "--porcelain"])?;
        let (doing, format) =
            ("asking git for the time of the commit", "--date=format-local:%Y-%m-%dT%H:%M:%SZ");
        let time = git(doing, &["show", "--no-patch", "--format=%cd", format])?;
        let seconds = git(doing, &["show", "--no-patch", "--format=%ct"])?;
        let dirty = if changes.is_empty() { "" } else { "-dirty" };
        Ok(Self {
            revision: format!("{}{dirty}", commit.trim_end()),
            time: time.trim_end().to_owned(),
            seconds: seconds.trim_end().parse().or_fail(doing, remedy)?,
        })
    }
}
