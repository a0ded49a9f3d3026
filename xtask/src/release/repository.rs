//! What git says of the checkout that a release is made of.

use anyhow::Result;

use super::version::Version;
use crate::{failure::Failure, run::Step, workspace::Workspace};

/// The state of the checkout.
#[derive(Debug)]
pub(super) struct Repository {
    /// Empty without one.
    branch: String,
    /// Changes that no commit has, as git lists them.
    changes: String,
    /// The releases with a tag, and whether it is on the present commit.
    tags: Vec<(Version, bool)>,
}

/// The branch of releases.
const BRANCH: &str = "main";

// === impl Repository ===

impl Repository {
    /// # Errors
    /// If git fails.
    pub(super) fn look(ws: &Workspace) -> Result<Self> {
        let git = |doing: &str, args: &[&str]| {
            let remedy = "release from a git checkout that belongs to you";
            Step::new("git", doing, remedy).current_dir(&ws.root).args(args).ask()
        };
        let here = git("asking git for the tags of the commit", &["tag", "--points-at", "HEAD"])?;
        let all = git("asking git for the tags", &["tag", "--list", "v*"])?;
        let is_here = |tag: &str| here.lines().any(|it| it == tag);
        let tags = all.lines().filter_map(|tag| Some((tag.strip_prefix('v')?.parse().ok()?, is_here(tag))));
        Ok(Self {
            branch: git("asking git for the branch", &["branch", "--show-current"])?.trim_end().to_owned(),
            changes: git("asking git for changes", &["status", "--porcelain"])?,
            tags: tags.collect(),
        })
    }

    /// Checks that a version can be released from here.
    ///
    /// # Errors
    /// If there are changes without a commit, another branch, or a release of this or a later version.
    pub(super) fn check(&self, version: Version) -> Result<()> {
        let refuse = |why: String, remedy: &str| -> Result<()> {
            let attempted = format!("checking the checkout for {version}");
            Err(Failure { attempted, why, remedy: remedy.to_owned() }.into())
        };
        if !self.changes.is_empty() {
            let why = format!("there are changes without a commit:\n{}", self.changes.trim_end());
            return refuse(why, "commit, or remove them");
        }
        if self.branch != BRANCH {
            let here = if self.branch.is_empty() { "no branch" } else { &self.branch };
            return refuse(format!("{here} is checked out"), "check out the branch main");
        }
        match self.tags.iter().filter(|(of, is_here)| *of >= version && !(*of == version && *is_here)).max() {
            None => Ok(()),
            Some((later, _)) => refuse(
                format!("another commit is the release {later}, with the tag v{later}"),
                "name a later version, or check out the tagged commit",
            ),
        }
    }
}
