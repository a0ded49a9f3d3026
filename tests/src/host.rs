//! What a run leaves on the machine that it ran on: nothing.

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::ensure;

use crate::sys;

/// What the machine has, seen from outside of all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    links: BTreeSet<String>,
    netns: BTreeSet<String>,
    pins: BTreeSet<String>,
    programs: usize,
    maps: usize,
}

const OUR_PROGRAMS: [&str; 2] = ["from_pod", "to_pod"];
const OUR_MAPS: [&str; 4] = ["VIFS", "ENDPOINTS", "VIF_COUNTERS", "AYA_LOGS"];

// === impl Footprint ===

impl Footprint {
    /// Looks at the machine.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn take() -> anyhow::Result<Self> {
        let lines = |text: String| text.lines().map(str::to_owned).collect();
        let names = |path: &str| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        let is_ours = |name: Option<&str>, ours: &[&str]| name.is_some_and(|name| ours.contains(&name));
        let programs = aya::programs::loaded_programs().filter_map(Result::ok);
        let maps = aya::maps::loaded_maps().filter_map(Result::ok);
        Ok(Self {
            links: lines(sys::run("ip -o link show")?),
            netns: names("/run/netns"),
            pins: names("/sys/fs/bpf"),
            programs: programs.filter(|program| is_ours(program.name_as_str(), &OUR_PROGRAMS)).count(),
            maps: maps.filter(|map| is_ours(map.name_as_str(), &OUR_MAPS)).count(),
        })
    }

    /// Waits until the machine is as it was: the kernel takes namespaces down in the background.
    ///
    /// # Errors
    /// If something stays.
    pub fn wait_until_restored(&self) -> anyhow::Result<()> {
        sys::wait_until("the machine is as it was", Duration::from_secs(15), || {
            let now = Self::take()?;
            ensure!(now == *self, "it was {self:#?}\nand is {now:#?}");
            Ok(true)
        })
    }

    /// How many of our programs and maps are loaded.
    pub fn loaded(&self) -> (usize, usize) {
        (self.programs, self.maps)
    }
}
