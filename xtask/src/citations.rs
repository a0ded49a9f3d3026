//! The sources and tests that SECURITY.md cites as evidence.

use std::path::Path;

use crate::finding::Finding;

/// The citing document, below the workspace's root.
pub(crate) const DOCUMENT: &str = "SECURITY.md";

/// Finds cited files that do not exist, and cited tests that no source defines. A citation is a path below
/// `tests/tests/`, or the name of a test, in backticks.
pub(crate) fn check(root: &Path, document: &str, sources: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(document.lines()) {
        // Text in backticks is every second part.
        for cited in line.split('`').skip(1).step_by(2) {
            let exists = if cited.starts_with("tests/") {
                root.join(cited).is_file()
            } else if is_test_name(cited) {
                let definition = format!("fn {cited}(");
                sources.iter().any(|source| source.contains(&definition))
            } else {
                true
            };
            if !exists {
                let what = format!("`{cited}` does not exist: cite the test that shows the behaviour");
                findings.push(Finding::new(Path::new(DOCUMENT), number, what));
            }
        }
    }
    findings
}

/// Whether a text has the form of a test's name: several words in snake case.
fn is_test_name(text: &str) -> bool {
    let is_snake_case = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.matches('_').count() >= 2 && text.chars().all(is_snake_case)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cited_tests_and_files_must_exist() {
        let sources = ["#[test]\nfn a_known_test() {}\n".to_owned()];
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let check = |line: &str| check(root, line, &sources).len();
        assert_eq!(check("| `a_known_test` | `cargo xtask lint` | `deny.toml` |"), 0);
        assert_eq!(check("`no_such_test`, `tests/tests/no_such.rs`"), 2);
    }
}
