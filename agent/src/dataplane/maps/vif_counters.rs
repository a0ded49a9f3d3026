//! `VIF_COUNTERS`: drops per pod interface and CPU.

use std::path::Path;

use agent_common::{Dropped, VifKey};
use aya::maps::{MapData, PerCpuHashMap, PerCpuValues};

use super::table::{
    BPF_NOEXIST, Entry, MapFailure, MapSpec, Pressure, Rows, Table, count_per_cpu_entries, insist, zero,
};
use crate::{
    crash::{self, Step},
    metrics::MapMetrics,
    registry::Attachment,
};

/// The open map. The programs write the values; the agent adds and removes keys.
pub struct VifCounters {
    map: PerCpuHashMap<MapData, VifKey, Dropped>,
    pressure: Pressure,
}

/// Counts packets of interfaces without an entry in `VIFS`.
pub const UNKNOWN: VifKey = VifKey { ifindex: 0 };

// === impl VifCounters ===

impl Table for VifCounters {
    const SPEC: MapSpec = MapSpec {
        name: "VIF_COUNTERS",
        setting: "--max-vifs",
        // One more for UNKNOWN, and one for an interface that VIFS, which is written next, then rejects as
        // full.
        capacity: |capacities| capacities.vifs.saturating_add(2),
        count: count_per_cpu_entries::<VifKey, Dropped>,
    };
    type Key = VifKey;
    type Row = ();

    fn desired(ifindex: u32, _: &Attachment) -> impl Iterator<Item = (VifKey, ())> {
        [(VifKey { ifindex }, ())].into_iter()
    }

    fn entry(VifKey { ifindex }: VifKey) -> Entry {
        Entry::Counters(ifindex)
    }
}

impl VifCounters {
    pub fn open(pins: &Path, metrics: &MapMetrics) -> Result<Self, MapFailure> {
        let map = Self::SPEC.open_pin(pins)?;
        let pressure = Pressure::of(Self::SPEC, &map, metrics)?;
        Ok(Self { map: map.try_into().map_err(Self::SPEC.failure("open"))?, pressure })
    }

    /// The counts of each CPU; `None` if the interface has no entry.
    pub fn get(&self, key: VifKey) -> Result<Option<PerCpuValues<Dropped>>, MapFailure> {
        self.pressure.found(self.map.get(&key, 0))
    }

    /// Sets the counts of an interface.
    pub fn set(&mut self, key: VifKey, counts: PerCpuValues<Dropped>) -> Result<(), MapFailure> {
        let written = self.map.insert(&key, counts, 0);
        crash::point(Step::MapWritten);
        written.map_err(Self::SPEC.failure("write to"))
    }

    /// Entries that are added or removed during the walk may be missing.
    pub fn rows(&self) -> Rows<Self> {
        let rows: Rows<Self> =
            self.map.keys().take(self.pressure.walk_limit()).flatten().map(|key| (key, ())).collect();
        self.pressure.observe(rows.len());
        rows
    }

    /// Adds a zero entry. An existing entry keeps its counts.
    pub fn start(&mut self, key: VifKey) -> Result<(), MapFailure> {
        let added = insist(|| self.map.insert(&key, zero()?, BPF_NOEXIST));
        let used = || self.map.keys().take(self.pressure.walk_limit()).flatten().count();
        self.pressure.added(added, used).map(drop)
    }

    pub fn remove(&mut self, key: VifKey) -> Result<(), MapFailure> {
        self.pressure.removed(self.map.remove(&key))
    }

    /// Removes the entries whose keys are not wanted.
    pub fn retain(&mut self, is_wanted: impl Fn(&VifKey) -> bool) -> Result<(), MapFailure> {
        // Collected first: a walk over a hash map that changes meanwhile restarts.
        let keys: Vec<VifKey> = self.rows().into_keys().collect();
        keys.into_iter().filter(|key| !is_wanted(key)).try_for_each(|key| self.remove(key))
    }
}
