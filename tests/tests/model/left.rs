//! What is left on a node when everything is deleted: what it had at the beginning.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{node::Node, sys};

use crate::observe::Observed;

/// All that could grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Without the registry, which an agent that is just started has too.
    observed: Observed,
    namespaces: Vec<String>,
    pins: Vec<String>,
    /// Of the agent: how many of each kind.
    files: BTreeMap<String, usize>,
}

const SOON: Duration = Duration::from_secs(20);

// === impl Left ===

impl Left {
    /// # Errors
    /// If it cannot be looked at.
    pub fn look(node: &Node) -> anyhow::Result<Self> {
        Ok(Self {
            observed: Observed::look(node, true)?,
            namespaces: names("/run/netns")?,
            pins: names(ferrule_tests::node::PINS)?,
            files: files(node.agent_pid().context("there is no agent")?)?,
        })
    }

    /// Waits until there is no more than at the beginning: the kernel takes interfaces down at its leisure, and
    /// connections for events end when they are not used.
    ///
    /// # Errors
    /// If there is more.
    pub fn wait_until_restored(&self, node: &Node) -> anyhow::Result<()> {
        sys::wait_until("nothing is left", SOON, || {
            let now = Self::look(node)?;
            ensure!(
                now.observed == self.observed,
                "there was {:#?}\nand is {:#?}",
                self.observed,
                now.observed
            );
            ensure!(now.namespaces == self.namespaces, "namespaces: {:?}", now.namespaces);
            ensure!(now.pins == self.pins, "pins: {:?}", now.pins);
            let more = |(kind, count): (&String, &usize)| self.files.get(kind).unwrap_or(&0) < count;
            ensure!(!now.files.iter().any(more), "open files were {:?}, and are {:?}", self.files, now.files);
            Ok(true)
        })
    }
}

fn names(directory: &str) -> anyhow::Result<Vec<String>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot list {directory}"))?;
    let mut names: Vec<_> =
        entries.flatten().map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// The open files of a process, by what they are: `socket:[1234]` is a `socket`.
fn files(pid: u32) -> anyhow::Result<BTreeMap<String, usize>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd"))? {
        // The one by which we list them is gone by now.
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        let target = target.to_string_lossy();
        let kind = target.split(":[").next().unwrap_or_default();
        *files.entry(kind.to_owned()).or_default() += 1;
    }
    Ok(files)
}
