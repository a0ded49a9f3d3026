//! Tests that a kernel cannot pass: xtask/kernels.toml.

use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use crate::{failure::OrFail as _, files};

/// The list, in the order of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    #[serde(default, rename = "fails")]
    entries: Vec<Entry>,
}

/// A test that fails on old kernels.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The file or folder of `tests/tests/`, and the name there: `packets::budget::…`.
    test: String,
    /// The first release, as `5.16`, on which the test passes.
    before: String,
    why: String,
}

const FILE: &str = "xtask/kernels.toml";

// === impl Known ===

impl Known {
    /// Reads the list.
    ///
    /// # Errors
    /// If the file is missing or has another form.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let text = files::read(&root.join(FILE), "restore the file from git")?;
        Self::parse(&String::from_utf8_lossy(&text))
            .or_fail(format!("reading {FILE}"), "write entries `[[fails]]` with test, before and why")
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// Why this kernel cannot pass a test; `None` if the kernel should.
    pub(super) fn why(&self, release: &str, test: &str) -> Option<&str> {
        let is = |entry: &&Entry| entry.test == test && series(release) < series(&entry.before);
        self.entries.iter().find(is).map(|entry| entry.why.as_str())
    }
}

fn series(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|it| it.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_may_fail_on_kernels_before_the_one_of_its_entry() {
        let known = Known::parse("[[fails]]\ntest = \"a::b\"\nbefore = \"5.16\"\nwhy = \"x\"\n").unwrap();
        assert_eq!(known.why("5.10.0-46-amd64", "a::b"), Some("x"));
        for (release, test) in [("5.16.1", "a::b"), ("6.1.0-9-amd64", "a::b"), ("5.10.0", "a::c")] {
            assert_eq!(known.why(release, test), None, "{release} {test}");
        }
    }

    #[test]
    fn the_list_is_well_formed() {
        let root = crate::workspace::Workspace::find().unwrap().root;
        let known = Known::read(&root).unwrap();
        for entry in &known.entries {
            assert!(series(&entry.before).is_some() && !entry.why.is_empty(), "{entry:?}");
        }
    }
}
