//! A release's version, and every place of the sources that names it.

use std::{fmt, str::FromStr};

use anyhow::{Context as _, Result, ensure};

use crate::{failure::Failure, files, workspace::Workspace};

/// Three numbers, ordered. A pre-release (`1.2.3-rc.1`) would need an order of its own, and there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u64, u64, u64);

/// A file, and how it writes the version: `{}` stands for it.
struct Place {
    file: &'static str,
    patterns: &'static [&'static str],
}

/// A file with another content than in the checkout.
#[derive(Debug)]
pub(super) struct Edit {
    pub(super) file: &'static str,
    pub(super) content: String,
}

const LOCK: &str = "Cargo.lock";
const PLACES: [Place; 5] = [
    Place { file: "Cargo.toml", patterns: &["[workspace.package]\nversion = \"{}\"\n"] },
    Place { file: "deploy/chart/Chart.yaml", patterns: &["\nversion: {}\n", "\nappVersion: \"{}\"\n"] },
    Place { file: "deploy/kustomize/base/ferrule.yaml", patterns: &["\"ferrule:{}\""] },
    Place { file: "deploy/kustomize/uninstall/agent.yaml", patterns: &["\"ferrule:{}\""] },
    // The names of files and images in the examples.
    Place { file: "docs/install.md", patterns: &["ferrule:{}", "ferrule-{}", "ferrule_{}_"] },
];

/// Checks that all places have a version.
///
/// # Errors
/// At the first one that has not, or cannot be read.
pub(super) fn check(ws: &Workspace, version: Version) -> Result<()> {
    bump(ws, version, version).map(drop)
}

/// What to write so that all places have another version.
///
/// # Errors
/// If a place does not have the first version, or cannot be read.
pub(super) fn bump(ws: &Workspace, from: Version, to: Version) -> Result<Vec<Edit>> {
    let read = |file: &str| -> Result<String> {
        let bytes = files::read(&ws.root.join(file), "restore it from the repository")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let mut edits = Vec::new();
    for Place { file, patterns } in &PLACES {
        let mut content = read(file)?;
        for pattern in *patterns {
            let (old, new) = (filled(pattern, from), filled(pattern, to));
            if !content.contains(&old) {
                return Err(missing(file, &old).into());
            }
            content = content.replace(&old, &new);
        }
        edits.push(Edit { file, content });
    }
    let lock = read(LOCK)?;
    let content =
        bump_lock(&lock, from, to).ok_or_else(|| missing(LOCK, &format!("version = \"{from}\"")))?;
    edits.push(Edit { file: LOCK, content });
    Ok(edits)
}

fn filled(pattern: &str, version: Version) -> String {
    pattern.replace("{}", &version.to_string())
}

fn missing(file: &str, text: &str) -> Failure {
    Failure {
        attempted: format!("comparing the versions in {file}"),
        why: format!("the file has no {text:?}"),
        remedy:
            "let all places name one version, as after the last release: xtask/src/release/version.rs lists \
                 them"
                .to_owned(),
    }
}

/// The lock file with another version of the workspace's own packages, which have no source; `None` if one of
/// them has another version than `from`.
fn bump_lock(lock: &str, from: Version, to: Version) -> Option<String> {
    let (old, new) = (format!("\nversion = \"{from}\""), format!("\nversion = \"{to}\""));
    let mut packages = lock.split("\n\n").map(|package| {
        let is_own = package.starts_with("[[package]]") && !package.contains("\nsource = ");
        match is_own {
            true => package.contains(&old).then(|| package.replace(&old, &new)),
            false => Some(package.to_owned()),
        }
    });
    packages.by_ref().collect::<Option<Vec<_>>>().map(|all| all.join("\n\n"))
}

// === impl Version ===

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers = text.split('.').map(|number| {
            let is_plain = number == "0" || !number.starts_with(['0', '+']);
            ensure!(is_plain, "{number:?} is no number of a version");
            number.parse().with_context(|| format!("{number:?} is no number of a version"))
        });
        let numbers = numbers.collect::<Result<Vec<u64>>>();
        let numbers = numbers.with_context(|| format!("{text:?} is no version such as 1.2.3"))?;
        match numbers.as_slice() {
            [major, minor, patch] => Ok(Self(*major, *minor, *patch)),
            _ => anyhow::bail!("{text:?} is no version such as 1.2.3"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn versions_are_three_numbers_and_ordered_as_numbers() {
        assert!(version("0.9.0") < version("0.10.0") && version("0.10.1") < version("1.0.0"));
        assert_eq!(version("10.0.2").to_string(), "10.0.2");
        for wrong in ["", "1", "1.2", "1.2.3.4", "v1.2.3", "1.2.3-rc.1", "1.02.3", "1.+2.3", "1..3", "1.2.x"]
        {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_place_has_the_version_of_the_workspace_and_gets_another() {
        let ws = Workspace::find().unwrap();
        let now = version(crate::image::VERSION);
        check(&ws, now).unwrap();
        let edits = bump(&ws, now, version("98.7.6")).unwrap();
        assert_eq!(edits.len(), PLACES.len() + 1);
        for Edit { file, content } in &edits {
            assert!(content.contains("98.7.6"), "{file}");
            let own = [format!("ferrule:{now}"), format!("ferrule-{now}"), format!("appVersion: \"{now}\"")];
            assert!(!own.iter().any(|it| content.contains(it)), "{file}");
        }
        let wrong = check(&ws, version("98.7.6")).unwrap_err().to_string();
        assert!(wrong.contains("Cargo.toml") && wrong.contains("98.7.6"), "{wrong}");
    }

    #[test]
    fn only_own_packages_of_the_lock_file_change() {
        let own = |version: &str| format!("[[package]]\nname = \"a\"\nversion = \"{version}\"\n");
        let other = "[[package]]\nname = \"b\"\nversion = \"0.1.0\"\nsource = \"registry\"\n";
        let lock = |own: &str| format!("version = 4\n\n{own}\n{other}");
        let bumped = bump_lock(&lock(&own("0.1.0")), version("0.1.0"), version("0.2.0"));
        assert_eq!(bumped.unwrap(), lock(&own("0.2.0")));
        assert_eq!(bump_lock(&lock(&own("0.1.1")), version("0.1.0"), version("0.2.0")), None);
    }
}
