//! A place that breaks a house rule.

use std::{
    fmt,
    path::{Path, PathBuf},
};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    file: PathBuf,
    line: usize,
    what: String,
}

// === impl Finding ===

impl Finding {
    pub(crate) fn new(file: &Path, line: usize, what: String) -> Self {
        Self { file: file.to_owned(), line, what }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, what } = self;
        write!(f, "{}:{line}: {what}", file.display())
    }
}
