//! Links between documents, and from documents to files: each must lead somewhere.
//!
//! Links to other hosts are not followed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use crate::finding::Finding;

/// A link of a document.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link<'a> {
    pub(crate) line: usize,
    /// Without the anchor; empty for the document itself.
    path: &'a str,
    anchor: Option<&'a str>,
}

/// Finds links and images of `documents` (paths below `root`, and their texts) that lead nowhere.
pub(crate) fn check(root: &Path, documents: &BTreeMap<PathBuf, String>) -> Vec<Finding> {
    let anchors: BTreeMap<&Path, BTreeSet<String>> =
        documents.iter().map(|(path, text)| (path.as_path(), anchors(text))).collect();
    let mut findings = Vec::new();
    for (document, text) in documents {
        for link in links(text) {
            let mut found = |what| findings.push(Finding::new(document, link.line, what));
            let Some(target) = link.target(document) else {
                found(format!("the link to {} leaves the workspace", link.path));
                continue;
            };
            match (anchors.get(target.as_path()), link.anchor) {
                (Some(known), Some(anchor)) if !known.contains(anchor) => {
                    found(format!("{} has no heading with the anchor #{anchor}", target.display()));
                }
                (Some(_), _) => {}
                // Pages of the book keep their place, and a folder is no page.
                (None, _) if root.join(&target).is_file() => {}
                (None, _) => found(format!("{} is no file", target.display())),
            }
        }
    }
    findings
}

/// The links of a document within the workspace.
pub(crate) fn links(text: &str) -> Vec<Link<'_>> {
    let prose = without_code(text);
    let mut links = Vec::new();
    for (at, _) in prose.match_indices("](") {
        // Replaced code has the length of what it replaces.
        let Some(target) = text.get(at + 2..).and_then(|rest| rest.split([')', ' ', '\n']).next()) else {
            continue;
        };
        let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        links.extend(Link::parse(line, target));
    }
    links
}

/// The documents below `root` that readers find: those of the root, and those in `docs/`.
///
/// # Errors
/// If one cannot be read.
pub(crate) fn documents(root: &Path) -> std::io::Result<BTreeMap<PathBuf, String>> {
    let mut documents = BTreeMap::new();
    for folder in ["", "docs"] {
        for entry in fs::read_dir(root.join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "md") {
                let name = path.strip_prefix(root).unwrap_or(&path).to_owned();
                documents.insert(name, fs::read_to_string(&path)?);
            }
        }
    }
    Ok(documents)
}

// === impl Link ===

impl<'a> Link<'a> {
    /// `None` for a link to another host.
    pub(crate) fn parse(line: usize, target: &'a str) -> Option<Self> {
        if target.contains("://") || target.starts_with("mailto:") {
            return None;
        }
        let (path, anchor) = match target.split_once('#') {
            Some((path, anchor)) => (path, Some(anchor)),
            None => (target, None),
        };
        Some(Self { line, path, anchor })
    }

    pub(crate) fn anchor(&self) -> Option<&'a str> {
        self.anchor
    }

    /// The target below the workspace's root, if it is there.
    pub(crate) fn target(&self, document: &Path) -> Option<PathBuf> {
        if self.path.is_empty() {
            return Some(document.to_owned());
        }
        let mut target = document.parent().unwrap_or(Path::new("")).to_owned();
        for part in Path::new(self.path).components() {
            match part {
                Component::Normal(name) => target.push(name),
                Component::ParentDir if target.pop() => {}
                Component::CurDir => {}
                _ => return None,
            }
        }
        Some(target)
    }
}

/// The anchors of a document's headings, as GitHub and mdBook name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let blocks = without_blocks(text);
    for line in blocks.lines() {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let anchor = title.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-");
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = std::iter::once(anchor.clone()).chain(numbered);
        anchors.extend(names.find(|name| !anchors.contains(name)));
    }
    anchors
}

/// The text with spaces in the place of fenced blocks.
fn without_blocks(text: &str) -> String {
    let mut is_code = false;
    let keep = |line: &str| {
        let is_fence = line.trim_start().starts_with("```");
        let hidden = is_code || is_fence;
        is_code ^= is_fence;
        if hidden { blank(line) } else { line.to_owned() }
    };
    text.split_inclusive('\n').map(keep).collect()
}

/// The text with spaces in the place of fenced blocks and of code between backticks, byte by byte.
fn without_code(text: &str) -> String {
    let text = without_blocks(text);
    let mut prose = String::new();
    // Code may span lines, but not paragraphs.
    for paragraph in text.split_inclusive("\n\n") {
        for (number, part) in paragraph.split_inclusive('`').enumerate() {
            if number % 2 == 1 { prose += &blank(part) } else { prose += part }
        }
    }
    prose
}

fn blank(text: &str) -> String {
    text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str, other: &str) -> Vec<String> {
        let documents = [("docs/page.md", page), ("README.md", other)];
        let documents = documents.map(|(path, text)| (PathBuf::from(path), text.to_owned())).into();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        check(root, &documents).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_link_that_leads_somewhere_is_accepted() {
        let page = "# A page\n[a](../README.md#what-it-does) [b](../Cargo.toml) [c](#a-page)\n\
                    ![d](../src/main.rs) [e](https://example.org/#x) `[f](none.md)`\n```\n[g](none.md)\n```\n";
        assert_eq!(found(page, "## What `it` does\n"), [] as [&str; 0]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found_with_its_line() {
        assert_eq!(found("# A\n\n[a](none.md)", ""), ["docs/page.md:3: docs/none.md is no file"]);
        assert_eq!(found("![a](none.svg)", ""), ["docs/page.md:1: docs/none.svg is no file"]);
        assert_eq!(found("[a](../src)", ""), ["docs/page.md:1: src is no file"]);
        assert_eq!(
            found("[a](../../x.md)", ""),
            ["docs/page.md:1: the link to ../../x.md leaves the workspace"]
        );
        assert_eq!(
            found("# A\n[b](#b) [a](../README.md#a)", "# B"),
            [
                "docs/page.md:2: docs/page.md has no heading with the anchor #b",
                "docs/page.md:2: README.md has no heading with the anchor #a"
            ]
        );
    }

    #[test]
    fn code_across_lines_hides_no_link_after_it() {
        let text = "the `policy =\n\"off\"` and [a](none.md)\n\none ` only\n\n[b](none.md)";
        assert_eq!(found(text, "").len(), 2);
    }

    #[test]
    fn repeated_headings_have_numbered_anchors() {
        let names = anchors("# A b\n## A b\n```\n# no\n```\n#hash\n### A (b), c's\n");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a-b", "a-b-1", "a-b-cs"]);
    }
}
