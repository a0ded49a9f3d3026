//! The house rules that neither rustfmt nor clippy checks.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::{citations, failure::OrFail as _, finding::Finding, words};

/// A longer file holds more than one idea.
const MAX_LINES: usize = 600;

/// Markers of unfinished work; each in two parts, so that this file can be checked too.
const UNFINISHED: [&str; 4] =
    [concat!("FIX", "ME"), concat!("X", "XX"), concat!("to", "do!"), concat!("db", "g!")];

/// Directories that differ between machines, so that no source may name a path below them.
const HOMES: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

/// Where `unsafe` is allowed: by docs/architecture.md in the agent, and elsewhere for map types, programs and
/// the tests' children, sockets and shared memory. The tests of parsing compile the programs' files.
const UNSAFE: [&str; 11] = [
    "agent-common/src",
    "agent-common/tests/parsing",
    "agent-ebpf/src",
    "agent/src/dataplane",
    "agent/src/memory.rs",
    "agent/src/plug/carrier.rs",
    "agent/src/plug/netlink.rs",
    "agent/src/plug/netns.rs",
    "tests/src/sys.rs",
    "tests/src/wire.rs",
    "tests/tests/packets/tx_ring.rs",
];

/// Kinds of files whose language is checked.
const TEXTS: [&str; 6] = ["json", "md", "proto", "rs", "toml", "yaml"];

/// Checks every text file below `root`.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut files = Vec::new();
    collect(root, &mut files).or_fail(
        format!("listing the files of {}", root.display()),
        "check the permissions of the workspace's files",
    )?;
    files.sort();
    let mut sources = Vec::new();
    let mut cited = String::new();
    for path in files {
        let text = fs::read_to_string(&path)
            .or_fail(format!("reading {}", path.display()), "make the file readable, and UTF-8")?;
        let file = path.strip_prefix(root).unwrap_or(&path);
        if file.extension().is_some_and(|it| it == "rs") {
            findings.extend(check_file(file, &text));
        }
        findings.extend(homes(file, &text));
        findings.extend(words::check(file, &text));
        match file.extension() {
            Some(extension) if extension == "rs" => sources.push(text),
            _ if file == Path::new(citations::DOCUMENT) => cited = text,
            _ => {}
        }
    }
    findings.extend(citations::check(root, &cited, &sources));
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
        } else if kind.is_file()
            && entry.path().extension().is_some_and(|it| TEXTS.iter().any(|text| it == *text))
        {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn check_file(file: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line, what| findings.push(Finding::new(file, line, what));

    if !text.starts_with("//!") {
        found(1, "must start with `//!` and the purpose of the module".to_owned());
    }
    let lines = text.lines().count();
    if lines > MAX_LINES {
        found(lines, format!("{lines} lines, and {MAX_LINES} are the most: split the file by idea"));
    }
    for (number, line) in (1..).zip(text.lines()) {
        for word in UNFINISHED.into_iter().filter(|word| contains_word(line, word)) {
            found(number, format!("`{word}`: finish the work"));
        }
    }
    if !UNSAFE.iter().any(|place| file.starts_with(place)) {
        for number in attributes(text).filter(|(_, it)| it.contains("unsafe_code")).map(|(number, _)| number)
        {
            found(number, "`unsafe` outside the files that may have some".to_owned());
        }
    }
    for (number, _) in attributes(text).filter(|(_, it)| !it.contains("reason = \"")) {
        found(number, "a lint is disabled without `reason = \"…\"`".to_owned());
    }
    findings
}

/// Whether `line` has `word`, and not as part of a longer one (`assert_…!`, `XXXL`).
fn contains_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        let after = line.get(at + word.len()..).and_then(|after| after.chars().next());
        // Anything may follow a `!`.
        let goes_on = word.ends_with(char::is_alphabetic) && after.is_some_and(part_of_word);
        !goes_on && !before.is_some_and(part_of_word)
    })
}

/// Whether `line` has a path below `home`; not `/proc/1/root/`, not `{base}/home/`.
fn contains_path(line: &str, home: &str) -> bool {
    line.match_indices(home).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        before.is_none_or(|c| !c.is_alphanumeric() && !"}._-/*".contains(c))
    })
}

/// Finds paths that differ between machines.
fn homes(file: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for home in HOMES.into_iter().filter(|home| contains_path(line, home)) {
            let what = format!("a path below {home}, which differs between machines");
            findings.push(Finding::new(file, number, what));
        }
    }
    findings
}

/// The `allow` and `expect` attributes, and their lines.
fn attributes(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let starts = ["#[allow(", "#![allow(", "#[expect(", "#![expect("];
    starts.into_iter().flat_map(|start| text.match_indices(start)).filter_map(|(at, _)| {
        let (before, rest) = text.split_at(at);
        // An attribute starts its line; elsewhere the text only mentions one.
        let indent = before.rsplit('\n').next().unwrap_or_default();
        let attribute = rest.split(")]").next().unwrap_or_default();
        indent.trim().is_empty().then(|| (before.matches('\n').count() + 1, attribute))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_keeps_the_rules_has_no_findings() {
        // In parts: an attribute that starts its line counts, even inside a string.
        let text = concat!(
            "//! Purpose.\n\n",
            "#[expect(dead_code, reason = \"read by the kernel\")]\n",
            "#[expect(\n    clippy::panic,\n    reason = \"why\"\n)]\n",
            "fn f() {}\n"
        );
        assert_eq!(findings(text), [] as [&str; 0]);
    }

    #[test]
    fn a_violation_of_each_rule_is_found() {
        assert_eq!(
            findings("use std::fs;\n"),
            ["x.rs:1: must start with `//!` and the purpose of the module"]
        );
        let [unfinished, ..] = UNFINISHED;
        assert_eq!(
            findings(&format!("//! x\n\n// {unfinished}\n")),
            [format!("x.rs:3: `{unfinished}`: finish the work")]
        );
        assert_eq!(
            findings("//! x\n\n    #[allow(dead_code)]\nfn f() {}\n"),
            ["x.rs:3: a lint is disabled without `reason = \"…\"`"]
        );
        let long = format!("//! x\n{}", "\n".repeat(MAX_LINES));
        assert_eq!(findings(&long).len(), 1);
    }

    #[test]
    fn text_that_resembles_a_violation_is_accepted() {
        let [_, threes, ..] = UNFINISHED;
        let [_, root, ..] = HOMES;
        assert!(!contains_word(&format!("S{threes}L"), threes));
        assert!(!contains_path(&format!("/proc/1{root}etc"), root));
        assert!(contains_path(&format!("see {root}.kube"), root));
        assert_eq!(findings("//! x\n// never `#[allow(dead_code)]`\n"), [] as [&str; 0]);
    }

    #[test]
    fn paths_of_a_machine_are_found_in_files_of_every_kind() {
        for home in HOMES {
            for file in ["x.rs", "x.md", "x.toml", "x.yaml", "x.json"] {
                assert_eq!(
                    shown(&homes(Path::new(file), &format!("a\n\"{home}me\"\n"))),
                    [format!("{file}:2: a path below {home}, which differs between machines")]
                );
            }
        }
    }

    #[test]
    fn unsafe_code_is_found_outside_the_files_that_may_have_some() {
        let text = concat!("//! x\n\n", "#[expect(unsafe_code, reason = \"why\")]\nfn f() {}\n");
        let found = |file: &str| shown(&check_file(Path::new(file), text));
        for file in
            ["agent/src/attach/add.rs", "agent/src/plug/veth.rs", "agent/src/dataplane_tools.rs", "x.rs"]
        {
            assert_eq!(found(file), [format!("{file}:3: `unsafe` outside the files that may have some")]);
        }
        for file in ["agent/src/plug/netns.rs", "agent/src/dataplane/bpf.rs", "agent-common/src/vif.rs"] {
            assert_eq!(found(file), [] as [&str; 0], "{file}");
        }
    }

    fn findings(text: &str) -> Vec<String> {
        shown(&check_file(Path::new("x.rs"), text))
    }

    fn shown(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }
}
