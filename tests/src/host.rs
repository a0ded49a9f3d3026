//! Leak check of the machine that a test run used.

use std::{collections::BTreeSet, fs, time::Duration};

use agent_common::names;
use anyhow::ensure;

use crate::sys;

/// The machine's links, namespaces, pins, programs and maps, seen from outside all test nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footprint {
    links: BTreeSet<String>,
    netns: BTreeSet<String>,
    pins: BTreeSet<String>,
    /// By ID; the kernel never reuses them.
    programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
}

// === impl Footprint ===

impl Footprint {
    /// Records the current state.
    ///
    /// # Errors
    /// If a tool fails.
    pub fn take() -> anyhow::Result<Self> {
        let lines = |text: String| text.lines().map(str::to_owned).collect();
        let names = |path: &str| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        let programs = aya::programs::loaded_programs().filter_map(Result::ok);
        let maps = aya::maps::loaded_maps().filter_map(Result::ok);
        Ok(Self {
            links: lines(sys::run("ip -o link show")?),
            netns: names("/run/netns"),
            pins: names("/sys/fs/bpf"),
            programs: programs
                .filter(|it| it.name_as_str().is_some_and(names::is_program))
                .map(|it| it.id())
                .collect(),
            maps: maps.filter(|it| it.name_as_str().is_some_and(names::is_map)).map(|it| it.id()).collect(),
        })
    }

    /// Waits until nothing exists that did not exist before; the kernel removes namespaces in the background.
    /// Removals are ignored: they may belong to an earlier run.
    ///
    /// # Errors
    /// If something stays.
    pub fn wait_until_restored(&self) -> anyhow::Result<()> {
        sys::wait_until("the machine has no leftovers", Duration::from_secs(15), || {
            let left = Self::take()?.without(self);
            ensure!(left == Self::default(), "leftovers: {left:#?}");
            Ok(true)
        })
    }

    fn without(self, before: &Self) -> Self {
        Self {
            links: &self.links - &before.links,
            netns: &self.netns - &before.netns,
            pins: &self.pins - &before.pins,
            programs: &self.programs - &before.programs,
            maps: &self.maps - &before.maps,
        }
    }
}
