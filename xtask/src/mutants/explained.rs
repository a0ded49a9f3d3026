//! The accepted survivors: xtask/mutants.toml.

use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use super::{mutant::Mutant, room::Room};
use crate::{failure::OrFail as _, files};

/// The list, in the order of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Explained {
    #[serde(default, rename = "survivor")]
    entries: Vec<Entry>,
}

/// One survivor, named so that edits around it do not matter.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) file: String,
    /// The change with the function's name.
    pub(super) change: String,
    /// The changed line. Without it, the entry stands for every place of the function with this change.
    becomes: Option<String>,
    /// For readers of the file, and demanded from its writers.
    #[serde(rename = "why")]
    _why: String,
}

/// The file, below the workspace's root.
pub(super) const FILE: &str = "xtask/mutants.toml";

// === impl Explained ===

impl Explained {
    /// Reads the list.
    ///
    /// # Errors
    /// If the file is missing or has another form.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let text = files::read(&root.join(FILE), "restore the file from git")?;
        Self::parse(&String::from_utf8_lossy(&text))
            .or_fail(format!("reading {FILE}"), "write entries `[[survivor]]` with file, change and why")
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// Whether an entry explains this survivor.
    pub(super) fn covers(&self, mutant: &Mutant) -> bool {
        self.entries.iter().any(|entry| entry.is(mutant))
    }

    /// The entries about `room`.
    pub(super) fn of<'a>(&'a self, room: &Room) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| room.has(&entry.file))
    }

    /// The entries about none of the `rooms`.
    pub(super) fn outside(&self, rooms: &[Room]) -> Vec<&Entry> {
        self.entries.iter().filter(|entry| !rooms.iter().any(|room| room.has(&entry.file))).collect()
    }
}

// === impl Entry ===

impl Entry {
    pub(super) fn is(&self, mutant: &Mutant) -> bool {
        self.file == mutant.file
            && self.change == mutant.change
            && self.becomes.as_ref().is_none_or(|becomes| *becomes == mutant.becomes)
    }
}
