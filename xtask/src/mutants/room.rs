//! What a run can test: the agent's rooms, and the crates around it.

use std::{fs, path::Path};

use anyhow::Result;

use crate::failure::{Failure, OrFail as _};

/// Code that is tested on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) name: String,
    pub(super) package: &'static str,
    /// Without the extension, for a room that is one file.
    folder: String,
}

/// The rooms of a run that names none: the goal is 90 % in the first eight.
const DEFAULT: [&str; 16] = [
    "registry",
    "watch",
    "attach",
    "reconcile",
    "heal",
    "ipam",
    "decide",
    "shim", // the goal
    "cluster",
    "cni",
    "desired",
    "events",
    "policy",
    "ferrule-policy",
    "vif",
    "ctl",
];
/// The crates with a goal of their own: their rooms, packages and folders. One room of the agent is `policy`.
const CRATES: [(&str, &str, &str); 4] = [
    ("shim", "ferrule-shim", "shim/src"),
    ("vif", "ferrule-vif", "vif/src"),
    ("ctl", "ferrulectl", "ctl/src"),
    ("ferrule-policy", "ferrule-policy", "policy/src"),
];
const AGENT: &str = "ferrule-agent";
/// Tests that wait or try much, by path: they judge only the rooms in their path.
const SLOW: [&str; 4] = ["api::", "observe::", "registry::store::", "trace::"];
/// Most tests that take long wait, so that more threads than processors help.
const THREADS: &str = "--test-threads=16";

/// The rooms with `names`, or the default ones.
///
/// # Errors
/// If a room does not exist.
pub(super) fn choose(root: &Path, names: &[String]) -> Result<Vec<Room>> {
    let all = all(root)?;
    let names: Vec<&str> =
        if names.is_empty() { DEFAULT.to_vec() } else { names.iter().map(String::as_str).collect() };
    names
        .into_iter()
        .map(|name| {
            all.iter().find(|room| room.name == name).cloned().ok_or_else(|| {
                let known = all.iter().map(|room| room.name.as_str()).collect::<Vec<_>>().join(", ");
                let attempted = format!("looking for the room {name}");
                let why = "neither agent/src nor the crates around the agent have it".to_owned();
                Failure { attempted, why, remedy: format!("name one of {known}") }.into()
            })
        })
        .collect()
}

/// Every room, by name.
///
/// # Errors
/// If the agent's sources cannot be listed.
pub(super) fn all(root: &Path) -> Result<Vec<Room>> {
    let sources = root.join("agent/src");
    let entries = fs::read_dir(&sources)
        .and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>())
        .or_fail(format!("listing {}", sources.display()), "run it inside the workspace")?;
    let mut rooms: Vec<Room> = entries
        .iter()
        .filter_map(|entry| entry.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()))
        .filter(|name| !matches!(name.as_str(), "lib" | "main"))
        .map(Room::of_agent)
        .collect();
    rooms.extend(CRATES.map(|(name, package, folder)| Room {
        name: name.to_owned(),
        package,
        folder: folder.to_owned(),
    }));
    rooms.sort_by(|a, b| a.name.cmp(&b.name));
    rooms.dedup();
    Ok(rooms)
}

// === impl Room ===

impl Room {
    fn of_agent(name: String) -> Self {
        Self { folder: format!("agent/src/{name}"), name, package: AGENT }
    }

    /// The files to change, as globs.
    pub(super) fn files(&self) -> [String; 2] {
        [format!("{}.rs", self.folder), format!("{}/**", self.folder)]
    }

    /// Whether `file` belongs to this room.
    pub(super) fn has(&self, file: &str) -> bool {
        file.strip_prefix(&self.folder).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    }

    /// The options that choose the tests which judge this room.
    pub(super) fn judges(&self) -> Vec<String> {
        if self.package != AGENT {
            return Vec::new();
        }
        let mut options = ["--cargo-arg=--lib", "--", "--", THREADS].map(str::to_owned).to_vec();
        let own = format!("{}::", self.name);
        for slow in SLOW.into_iter().filter(|slow| !slow.starts_with(&own)) {
            options.extend(["--skip".to_owned(), slow.to_owned()]);
        }
        options
    }
}
