//! The book: the pages of `docs/SUMMARY.md`, built by mdBook into `target/book/html`.
//!
//! The sources stay where GitHub shows them. mdBook gets a copy with the same folders, so that no link needs
//! a change, and with each file that a page links to.

pub(crate) mod links;
pub(crate) mod shown;
mod site;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::{
    failure::{Failure, OrFail as _},
    files,
    finding::Finding,
    pip_tool::PipTool,
    run::{Step, say},
    workspace::Workspace,
};

/// The order of the pages, below the workspace's root.
const SUMMARY: &str = "docs/SUMMARY.md";
const CONFIG: &str = "docs/book.toml";
pub(crate) const MDBOOK: PipTool = PipTool { name: "mdbook", version: "0.5.4" };
const REMEDY: &str = "change the page, or docs/SUMMARY.md";

/// Builds the book, and checks every link between its pages.
///
/// # Errors
/// If mdBook cannot be installed or refuses a page, or a link leads nowhere.
pub(crate) fn build(ws: &Workspace) -> Result<()> {
    let mdbook = MDBOOK.need(ws)?;
    report(check(&ws.root)?, "checking the links of the documents")?;
    let folder = ws.root.join("target/book");
    stage(&ws.root, &folder).or_fail(format!("copying the pages to {}", folder.display()), REMEDY)?;
    Step::new(mdbook, "building the book", REMEDY).arg("build").arg(&folder).run()?;
    let html = folder.join("html");
    let doing = format!("checking the links of {}", ws.show(&html));
    report(site::check(&html).or_fail(&*doing, REMEDY)?, &doing)?;
    say(format!("the book is {}", ws.show(&html.join("index.html"))));
    Ok(())
}

/// Finds links of the documents that lead nowhere, and documents that are not in the book, or twice.
///
/// # Errors
/// If a document cannot be read.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let documents = links::documents(root)
        .or_fail(format!("reading the documents of {}", root.display()), "make them readable, and UTF-8")?;
    let mut findings = links::check(root, &documents);
    findings.extend(check_summary(&documents));
    Ok(findings)
}

fn check_summary(documents: &BTreeMap<PathBuf, String>) -> Vec<Finding> {
    let summary = Path::new(SUMMARY);
    let text = documents.get(summary).map_or("", String::as_str);
    let mut findings = Vec::new();
    let mut pages = BTreeSet::new();
    for link in links::links(text) {
        let page = link.target(summary).unwrap_or_default();
        if pages.contains(&page) {
            findings.push(Finding::new(summary, link.line, format!("{} is there already", page.display())));
        }
        pages.insert(page);
    }
    let absent = documents.keys().filter(|it| *it != summary && !pages.contains(*it));
    findings.extend(absent.map(|it| Finding::new(it, 1, format!("the page is not in {SUMMARY}: add it"))));
    findings
}

/// Makes `folder` what mdBook reads: its configuration, the pages, and the files that they link to.
fn stage(root: &Path, folder: &Path) -> Result<()> {
    let source = folder.join("src");
    if source.exists() {
        fs::remove_dir_all(&source)?;
    }
    let documents = links::documents(root)?;
    let mut copied: BTreeSet<PathBuf> = documents.keys().cloned().collect();
    for (document, text) in &documents {
        copied.extend(links::links(text).iter().filter_map(|link| link.target(document)));
    }
    copied.remove(Path::new(SUMMARY));
    for file in &copied {
        files::copy(&root.join(file), &source.join(file))?;
    }
    let summary = documents.get(Path::new(SUMMARY)).map_or("", String::as_str);
    files::replace_if_changed(&source.join("SUMMARY.md"), from_root(summary).as_bytes())?;
    files::copy(&root.join(CONFIG), &folder.join("book.toml"))
}

/// The summary with links from the workspace's root instead of from `docs/`.
fn from_root(summary: &str) -> String {
    summary.replace("](", "](docs/").replace("](docs/../", "](")
}

fn report(findings: Vec<Finding>, attempted: &str) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    let lines: String = findings.iter().map(|finding| format!("\n    {finding}")).collect();
    let why = format!("{} findings:{lines}", findings.len());
    Err(Failure { attempted: attempted.to_owned(), why, remedy: "change those places".to_owned() }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(list: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
        list.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect()
    }

    #[test]
    fn each_document_is_in_the_book_once() {
        let summary = "- [A](a.md)\n- [A again](a.md)\n- [Readme](../README.md)\n";
        let list = [(SUMMARY, summary), ("docs/a.md", ""), ("docs/b.md", ""), ("README.md", "")];
        let found: Vec<String> = check_summary(&documents(&list)).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "docs/SUMMARY.md:2: docs/a.md is there already",
                "docs/b.md:1: the page is not in docs/SUMMARY.md: add it"
            ]
        );
    }

    #[test]
    fn the_summary_of_the_copy_names_pages_from_the_root() {
        assert_eq!(from_root("[A](a.md)\n[R](../README.md)"), "[A](docs/a.md)\n[R](README.md)");
    }

    #[test]
    fn the_copy_has_the_files_that_pages_link_to() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("docs")).unwrap();
        for (path, text) in [
            (SUMMARY, "[A](a.md)"),
            (CONFIG, "[book]"),
            ("docs/a.md", "[c](../x/code.rs)"),
            ("x/code.rs", "fn f() {}"),
            ("x/other.rs", ""),
        ] {
            files::replace_if_changed(&root.join(path), text.as_bytes()).unwrap();
        }
        let folder = dir.path().join("book");
        stage(&root, &folder).unwrap();
        let text = |path: &str| fs::read_to_string(folder.join(path)).unwrap();
        assert_eq!(text("src/SUMMARY.md"), "[A](docs/a.md)");
        assert_eq!((text("book.toml"), text("src/x/code.rs")), ("[book]".into(), "fn f() {}".into()));
        assert!(!folder.join("src/x/other.rs").exists() && !folder.join("src/docs/SUMMARY.md").exists());
    }
}
