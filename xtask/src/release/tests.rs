//! Both steps in a clone of this checkout, without a build.

use std::fs;

use tempfile::TempDir;

use super::*;

/// A clone of this checkout's commit, on its branch main. The files are those of the work tree, so that a
/// change is tested before its commit.
fn clone() -> (TempDir, Workspace) {
    let dir = tempfile::tempdir().unwrap();
    let ws = Workspace::at(dir.path());
    let from = Workspace::find().unwrap().root;
    git(&ws, &["init", "--quiet", "--initial-branch", "main"]);
    for file in ["Cargo.toml", "Cargo.lock", changelog::FILE, "docs/install.md"] {
        copy(&from.join(file), &ws.root.join(file));
    }
    for folder in ["chart", "chart/templates", "kustomize/base", "kustomize/uninstall"] {
        for entry in fs::read_dir(from.join("deploy").join(folder)).unwrap().flatten() {
            if entry.path().is_file() {
                copy(&entry.path(), &ws.root.join("deploy").join(folder).join(entry.file_name()));
            }
        }
    }
    fs::write(ws.root.join(".gitignore"), "/target\n").unwrap();
    commit(&ws, "Begin");
    (dir, ws)
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}

fn git(ws: &Workspace, args: &[&str]) -> String {
    let author = ["-c", "user.name=test", "-c", "user.email=test@example", "-c", "commit.gpgSign=false"];
    Step::new("git", "preparing a repository", "")
        .current_dir(&ws.root)
        .args(author)
        .args(args)
        .ask()
        .unwrap()
}

fn commit(ws: &Workspace, message: &str) {
    git(ws, &["add", "--all"]);
    git(ws, &["commit", "--quiet", "--message", message]);
}

fn step(ws: &Workspace, version: &str, prepare: bool, dry_run: bool) -> Result<()> {
    release(ws, &Options { version: version.parse().unwrap(), prepare, dry_run })
}

fn refused(ws: &Workspace, version: &str, prepare: bool) -> String {
    let before = git(ws, &["status", "--porcelain"]);
    let why = step(ws, version, prepare, false).unwrap_err().to_string();
    assert_eq!(git(ws, &["status", "--porcelain"]), before, "nothing is written");
    why
}

#[test]
fn a_release_is_prepared_committed_and_then_only_what_was_prepared_is_built() {
    let (_dir, ws) = clone();
    let early = refused(&ws, "90.0.0", false);
    assert!(early.contains("Cargo.toml") && early.contains("90.0.0"), "{early}");
    step(&ws, "90.0.0", true, true).unwrap();
    assert_eq!(git(&ws, &["status", "--porcelain"]), "", "a dry run writes nothing");

    step(&ws, "90.0.0", true, false).unwrap();
    let changed = git(&ws, &["status", "--porcelain"]);
    for file in ["CHANGELOG.md", "Cargo.lock", "Cargo.toml", "deploy/chart/Chart.yaml", "docs/install.md"] {
        assert!(changed.contains(file), "{file} in {changed}");
    }
    assert!(refused(&ws, "90.0.0", false).contains("changes without a commit"));
    commit(&ws, "Release 90.0.0");
    // Lists the artefacts.
    step(&ws, "90.0.0", false, true).unwrap();
    assert!(refused(&ws, "90.0.1", false).contains("90.0.1"));

    let path = ws.root.join(changelog::FILE);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("## [Unreleased]\n", "## [Unreleased]\n\n### Fixed\n\n* More.\n")).unwrap();
    commit(&ws, "More");
    assert!(refused(&ws, "90.0.0", false).contains("later changes"));
}

#[test]
fn what_speaks_against_a_release_is_named_and_nothing_written() {
    let (_dir, ws) = clone();
    assert!(refused(&ws, "0.0.1", true).contains("name a later version"));
    git(&ws, &["tag", "v91.0.0"]);
    // A tag on this commit may be built again; another commit's may not.
    fs::write(ws.root.join("more"), "").unwrap();
    assert!(refused(&ws, "92.0.0", true).contains("more"));
    commit(&ws, "More");
    for version in ["91.0.0", "90.0.0"] {
        let why = refused(&ws, version, true);
        assert!(why.contains("the release 91.0.0"), "{why}");
    }
    git(&ws, &["checkout", "--quiet", "-b", "feature"]);
    assert!(refused(&ws, "92.0.0", true).contains("feature is checked out"));
    git(&ws, &["checkout", "--quiet", "main"]);
    let path = ws.root.join(changelog::FILE);
    let text = fs::read_to_string(&path).unwrap();
    let (head, _) = text.split_once("## [Unreleased]").unwrap();
    fs::write(&path, format!("{head}## [Unreleased]\n")).unwrap();
    commit(&ws, "No changes");
    assert!(refused(&ws, "92.0.0", true).contains("no unreleased changes"));
}
