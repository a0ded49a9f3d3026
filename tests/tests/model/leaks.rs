//! Leak check: after everything is deleted, the node has nothing that it did not have at the start.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{node::Node, sys};

use crate::observe::Observed;

/// Resources that could leak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baseline {
    /// Includes the registry.
    observed: Observed,
    namespaces: BTreeSet<String>,
    pins: BTreeSet<String>,
    /// The agent's open files, counted by kind.
    files: BTreeMap<String, usize>,
}

const TIMEOUT: Duration = Duration::from_secs(20);

const WATCH_LOGS: &str = "/run/ferrule/watch/";
/// Connections to the API server, one of each watch and one for Events. How many of them are open at the
/// start is chance.
const API_CONNECTIONS: usize = 4;

// === impl Baseline ===

impl Baseline {
    /// # Errors
    /// If a tool fails.
    pub fn take(node: &Node) -> anyhow::Result<Self> {
        Ok(Self {
            observed: Observed::collect(node, true)?,
            namespaces: sys::file_names("/run/netns")?,
            pins: sys::file_names(ferrule_tests::node::PINS)?,
            files: files(node.agent_pid().context("there is no agent")?)?,
        })
    }

    /// Waits until nothing exceeds the baseline: the kernel deletes interfaces asynchronously, and idle
    /// connections for Events close after a while.
    ///
    /// # Errors
    /// If resources have leaked.
    pub fn wait_until_restored(&self, node: &Node) -> anyhow::Result<()> {
        sys::wait_until("the node is back at its baseline", TIMEOUT, || {
            let now = Self::take(node)?;
            ensure!(
                now.observed == self.observed,
                "expected {:#?}\nfound {:#?}",
                self.observed,
                now.observed
            );
            ensure!(now.namespaces == self.namespaces, "namespaces: {:?}", now.namespaces);
            ensure!(now.pins == self.pins, "pins: {:?}", now.pins);
            let before = |kind: &String| {
                let open = self.files.get(kind).copied();
                match kind.as_str() {
                    "socket" => open.unwrap_or_default() + API_CONNECTIONS,
                    // A source opens its log with the first change.
                    log if log.starts_with(WATCH_LOGS) => 1,
                    _ => open.unwrap_or_default(),
                }
            };
            let more = |(kind, count): (&String, &usize)| before(kind) < *count;
            ensure!(
                !now.files.iter().any(more),
                "open files: {:?} at the start, {:?} now",
                self.files,
                now.files
            );
            Ok(true)
        })
    }
}

/// The open files of a process by kind; `socket:[1234]` is a `socket`.
fn files(pid: u32) -> anyhow::Result<BTreeMap<String, usize>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd"))? {
        // The descriptor of this directory listing is closed by now.
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        let target = target.to_string_lossy();
        let kind = target.split(":[").next().unwrap_or_default();
        *files.entry(kind.to_owned()).or_default() += 1;
    }
    Ok(files)
}
