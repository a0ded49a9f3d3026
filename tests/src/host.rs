//! Leak check of the machine that a test run used.

use std::{collections::BTreeSet, fs, time::Duration};

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

const OUR_PROGRAMS: [&str; 7] =
    ["from_pod", "to_pod", "from_tunnel", "from_uplink", "to_tunnel", "to_link", "set_subject"];
const OUR_MAPS: [&str; 31] = [
    "VIFS",
    "ENDPOINTS",
    "VIF_TRAFFIC",
    "VIF_COUNTERS",
    "STACK_FLOWS",
    "FLOW_RINGS",
    "NODES",
    "UNDERLAY",
    "TUNNEL_FLOWS",
    "LINK_COUNTERS",
    "EVENTS",
    "EVENT_BUDGETS",
    "FLOW_STATS",
    "FLOW_SAMPLING",
    "FLOW_ENDS",
    "FLOW_FACTS",
    "FLOW_PLACES",
    "NEW_FLOW",
    "PEERS",
    "BLOCKS",
    "RULESETS",
    "RULES",
    "NAMED",
    "PORTS",
    "POLICY_FLOWS",
    "POLICY_PENDING",
    "POLICY_PLACES",
    "POLICY_CASE",
    "POLICY_ALLOWED",
    "FRAGMENTS",
    "AYA_LOGS",
];

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
        let is_ours = |name: Option<&str>, ours: &[&str]| name.is_some_and(|name| ours.contains(&name));
        let programs = aya::programs::loaded_programs().filter_map(Result::ok);
        let maps = aya::maps::loaded_maps().filter_map(Result::ok);
        Ok(Self {
            links: lines(sys::run("ip -o link show")?),
            netns: names("/run/netns"),
            pins: names("/sys/fs/bpf"),
            programs: programs
                .filter(|it| is_ours(it.name_as_str(), &OUR_PROGRAMS))
                .map(|it| it.id())
                .collect(),
            maps: maps.filter(|it| is_ours(it.name_as_str(), &OUR_MAPS)).map(|it| it.id()).collect(),
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
