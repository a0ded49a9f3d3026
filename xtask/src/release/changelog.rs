//! The changelog, in the form of Keep a Changelog: `## [1.2.3] - 2026-01-31`, newest first, and `###` for
//! each kind of change.

use anyhow::{Context as _, Result, bail, ensure};

use super::version::Version;

/// A changelog, taken apart.
#[derive(Debug)]
pub(super) struct Changelog<'a> {
    /// Everything before the first section.
    head: &'a str,
    sections: Vec<Section<'a>>,
}

#[derive(Debug)]
struct Section<'a> {
    /// `None` for what is unreleased.
    release: Option<(Version, &'a str)>,
    body: &'a str,
}

pub(super) const FILE: &str = "CHANGELOG.md";
const UNRELEASED: &str = "[Unreleased]";
const KINDS: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

// === impl Changelog ===

impl<'a> Changelog<'a> {
    /// # Errors
    /// If a heading has another form, or the sections another order.
    pub(super) fn parse(text: &'a str) -> Result<Self> {
        let mut parts = text.split("\n## ");
        let head = parts.next().unwrap_or_default();
        let sections: Vec<Section<'_>> = parts.map(Section::parse).collect::<Result<_>>()?;
        let is_first = sections.first().is_some_and(|it| it.release.is_none());
        ensure!(is_first, "the first section is not `## {UNRELEASED}`");
        let released: Option<Vec<Version>> =
            sections.iter().skip(1).map(|it| it.release.map(|(version, _)| version)).collect();
        let released = released.with_context(|| format!("`## {UNRELEASED}` is there twice"))?;
        ensure!(released.is_sorted_by(|a, b| a > b), "the releases are not in order, newest first");
        Ok(Self { head, sections })
    }

    /// The changes of a release, as its notes have them; `None` without such a section.
    pub(super) fn of(&self, version: Version) -> Option<&'a str> {
        let is_it = |it: &&Section<'_>| it.release.is_some_and(|(of, _)| of == version);
        self.sections.iter().find(is_it).map(|it| it.body.trim())
    }

    /// The changes since the last release.
    pub(super) fn unreleased(&self) -> &'a str {
        self.sections.first().map(|it| it.body.trim()).unwrap_or_default()
    }

    /// The newest release.
    pub(super) fn newest(&self) -> Option<Version> {
        self.sections.iter().find_map(|it| it.release).map(|(version, _)| version)
    }

    /// The text in which what was unreleased is a release of `date`.
    pub(super) fn release(&self, version: Version, date: &str) -> String {
        let mut text =
            format!("{}\n## {UNRELEASED}\n\n## [{version}] - {date}\n\n{}\n", self.head, self.unreleased());
        for Section { release, body } in self.sections.iter().skip(1) {
            let Some((version, date)) = release else { continue };
            text.push_str(&format!("\n## [{version}] - {date}\n\n{}\n", body.trim()));
        }
        text
    }
}

// === impl Section ===

impl<'a> Section<'a> {
    /// Parses what follows `## `.
    fn parse(text: &'a str) -> Result<Self> {
        let (heading, body) = text.split_once('\n').unwrap_or((text, ""));
        for kind in body.lines().filter_map(|line| line.strip_prefix("### ")) {
            ensure!(KINDS.contains(&kind), "`### {kind}` is none of {}", KINDS.join(", "));
        }
        if heading == UNRELEASED {
            return Ok(Self { release: None, body });
        }
        let form = || format!("`## {heading}` is not of the form `## [1.2.3] - 2026-01-31`");
        let (version, date) =
            heading.strip_prefix('[').and_then(|it| it.split_once("] - ")).with_context(form)?;
        ensure!(is_date(date), form());
        if body.trim().is_empty() {
            bail!("the section {version} is empty");
        }
        Ok(Self { release: Some((version.parse().with_context(form)?, date)), body })
    }
}

/// Whether it has the form of a date.
fn is_date(text: &str) -> bool {
    let form = |(at, c): (usize, char)| if at == 4 || at == 7 { c == '-' } else { c.is_ascii_digit() };
    text.len() == 10 && text.chars().enumerate().all(form)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    const TEXT: &str = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n* a\n\n## [0.2.0] - 2026-02-03\n\n### Fixed\n\n* b\n\n\
                        ## [0.1.0] - 2026-01-31\n\n### Added\n\n* c\n";

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn refused(text: &str) -> String {
        format!("{:#}", Changelog::parse(text).unwrap_err())
    }

    #[test]
    fn sections_are_found_by_their_version() {
        let log = Changelog::parse(TEXT).unwrap();
        assert_eq!(log.of(version("0.1.0")), Some("### Added\n\n* c"));
        assert_eq!(log.of(version("0.2.0")), Some("### Fixed\n\n* b"));
        assert_eq!((log.of(version("0.3.0")), log.unreleased()), (None, "### Added\n\n* a"));
        assert_eq!(log.newest(), Some(version("0.2.0")));
    }

    #[test]
    fn a_release_takes_what_was_unreleased_and_leaves_an_empty_section() {
        let text = Changelog::parse(TEXT).unwrap().release(version("0.3.0"), "2026-03-04");
        let log = Changelog::parse(&text).unwrap();
        assert_eq!((log.of(version("0.3.0")), log.unreleased()), (Some("### Added\n\n* a"), ""));
        let rest = TEXT.split_once("## [0.2.0]").unwrap().1;
        assert!(
            text.ends_with(rest)
                && text.starts_with("# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-03-04\n")
        );
    }

    #[test]
    fn other_forms_and_orders_are_refused() {
        for (from, to, why) in [
            ("## [Unreleased]", "## Unreleased", "not of the form"),
            ("2026-02-03", "3 February", "`## [0.2.0] - 3 February` is not of the form"),
            ("[0.2.0]", "[v0.2.0]", "not of the form"),
            ("[0.2.0]", "[0.1.0]", "not in order"),
            ("[0.2.0]", "[0.0.9]", "not in order"),
            ("### Fixed\n\n* b\n", "", "the section 0.2.0 is empty"),
            ("### Fixed", "### Repaired", "`### Repaired` is none of Added"),
            ("## [0.2.0] - 2026-02-03", "## [Unreleased]", "there twice"),
            ("## [Unreleased]\n\n### Added\n\n* a\n\n", "", "the first section is not"),
        ] {
            assert!(TEXT.contains(from), "{from}");
            let found = refused(&TEXT.replacen(from, to, 1));
            assert!(found.contains(why), "{from} to {to}: {found}");
        }
    }

    #[test]
    fn the_changelog_of_the_workspace_is_one() {
        let text = std::fs::read_to_string(Workspace::find().unwrap().root.join(FILE)).unwrap();
        Changelog::parse(&text).unwrap();
    }
}
