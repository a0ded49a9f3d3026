//! The house rules that neither rustfmt nor clippy knows.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::failure::OrFail as _;

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    file: PathBuf,
    line: usize,
    what: String,
}

/// A file that is longer is about more than one thing.
const MAX_LINES: usize = 600;

/// Words that say: not finished. In two parts, so that this file may be checked too.
const UNFINISHED: [&str; 4] =
    [concat!("FIX", "ME"), concat!("X", "XX"), concat!("to", "do!"), concat!("db", "g!")];

/// Where somebody's own files are: no path in there means anything to anybody else.
const HOMES: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

/// Checks every Rust file below `root`.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut files = Vec::new();
    collect(root, &mut files).or_fail(
        format!("listing the Rust files of {}", root.display()),
        "see that all of the workspace can be read",
    )?;
    files.sort();
    for path in files {
        let text = fs::read_to_string(&path)
            .or_fail(format!("reading {}", path.display()), "see that it is there, and UTF-8")?;
        findings.extend(check_file(path.strip_prefix(root).unwrap_or(&path), &text));
    }
    Ok(findings)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type()?;
        if kind.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&entry.path(), files)?;
        } else if kind.is_file() && name.ends_with(".rs") {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn check_file(file: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line, what| findings.push(Finding { file: file.to_owned(), line, what });

    if !text.starts_with("//!") {
        found(1, "does not start with `//!` and what the module is for".to_owned());
    }
    let lines = text.lines().count();
    if lines > MAX_LINES {
        found(lines, format!("{lines} lines, and {MAX_LINES} are the most: split it by what it is about"));
    }
    for (number, line) in (1..).zip(text.lines()) {
        for word in UNFINISHED.into_iter().filter(|word| contains_word(line, word)) {
            found(number, format!("`{word}`: finish it"));
        }
        for home in HOMES.into_iter().filter(|home| contains_path(line, home)) {
            found(number, format!("a path in {home}, which is on one machine only"));
        }
    }
    for number in unexplained(text) {
        found(number, "a lint is switched off without `reason = \"…\"`".to_owned());
    }
    findings
}

/// Whether `word` is in `line`, and not as the end of a longer one (`assert_…!`, `XXXL`).
fn contains_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        let after = line.get(at + word.len()..).and_then(|after| after.chars().next());
        // Behind `!`, anything may follow.
        let goes_on = word.ends_with(char::is_alphabetic) && after.is_some_and(part_of_word);
        !goes_on && !before.is_some_and(part_of_word)
    })
}

/// Whether a path that starts with `home` is in `line`; not `/proc/1/root/`, not `{base}/home/`.
fn contains_path(line: &str, home: &str) -> bool {
    line.match_indices(home).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        before.is_none_or(|c| !c.is_alphanumeric() && !"}._-/*".contains(c))
    })
}

/// The lines at which an `allow` or `expect` starts that gives no reason.
fn unexplained(text: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    for start in ["#[allow(", "#![allow(", "#[expect(", "#![expect("] {
        for (at, _) in text.match_indices(start) {
            let (before, rest) = text.split_at(at);
            // An attribute starts its line; anything else is talk about attributes.
            let indent = before.rsplit('\n').next().unwrap_or_default();
            let attribute = rest.split(")]").next().unwrap_or_default();
            if indent.trim().is_empty() && !attribute.contains("reason = \"") {
                lines.push(before.matches('\n').count() + 1);
            }
        }
    }
    lines
}

// === impl Finding ===

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, what } = self;
        write!(f, "{}:{line}: {what}", file.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tidy_file_has_no_findings() {
        // In parts, as an attribute that starts its line is one for the rules, be it in a string.
        let text = concat!(
            "//! What for.\n\n",
            "#[expect(dead_code, reason = \"read by the kernel\")]\n",
            "#[expect(\n    clippy::panic,\n    reason = \"why\"\n)]\n",
            "fn f() {}\n"
        );
        assert_eq!(findings(text), [] as [&str; 0]);
    }

    #[test]
    fn every_rule_is_kept() {
        assert_eq!(
            findings("use std::fs;\n"),
            ["x.rs:1: does not start with `//!` and what the module is for"]
        );
        let [unfinished, ..] = UNFINISHED;
        assert_eq!(
            findings(&format!("//! x\n\n// {unfinished}\n")),
            [format!("x.rs:3: `{unfinished}`: finish it")]
        );
        let [home, ..] = HOMES;
        assert_eq!(
            findings(&format!("//! x\nconst A: &str = \"{home}me\";\n")),
            [format!("x.rs:2: a path in {home}, which is on one machine only")]
        );
        assert_eq!(
            findings("//! x\n\n    #[allow(dead_code)]\nfn f() {}\n"),
            ["x.rs:3: a lint is switched off without `reason = \"…\"`"]
        );
        let long = format!("//! x\n{}", "\n".repeat(MAX_LINES));
        assert_eq!(findings(&long).len(), 1);
    }

    #[test]
    fn look_alikes_are_left_alone() {
        let [_, threes, ..] = UNFINISHED;
        let [_, root, ..] = HOMES;
        assert!(!contains_word(&format!("S{threes}L"), threes));
        assert!(!contains_path(&format!("/proc/1{root}etc"), root));
        assert!(contains_path(&format!("see {root}.kube"), root));
        assert_eq!(findings("//! x\n// never `#[allow(dead_code)]`\n"), [] as [&str; 0]);
    }

    fn findings(text: &str) -> Vec<String> {
        check_file(Path::new("x.rs"), text).iter().map(ToString::to_string).collect()
    }
}
