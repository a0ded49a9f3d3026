//! `LINK_COUNTERS`: packets, bytes and drops per CPU of the tunnel device and the uplinks.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use agent_common::{MAX_LINKS, Traffic, VifKey};
use aya::maps::{MapData, MapError, PerCpuHashMap, PerCpuValues};

use super::old_counters::traffic;
use super::table::{BPF_NOEXIST, MapFailure, MapSpec, Pressure, count_per_cpu_entries, insist, zero};
use crate::metrics::MapMetrics;

/// The open map. The programs write the values; the agent adds and removes keys.
pub struct LinkCounters {
    map: PerCpuHashMap<MapData, VifKey, Traffic>,
    pressure: Pressure,
}

pub const SPEC: MapSpec = MapSpec {
    name: "LINK_COUNTERS",
    setting: "MAX_LINKS of the build",
    capacity: |_| MAX_LINKS as u32,
    count: count_per_cpu_entries::<VifKey, Traffic>,
};

/// Counters of version 4: packets, bytes and drops, by fewer reasons.
type V4 = [u64; 2 + 20];

// === impl LinkCounters ===

impl LinkCounters {
    pub fn open(pins: &Path, metrics: &MapMetrics) -> Result<Self, MapFailure> {
        let map = SPEC.open_pin(pins)?;
        let pressure = Pressure::of(SPEC, &map, metrics)?;
        Ok(Self { map: map.try_into().map_err(SPEC.failure("open"))?, pressure })
    }

    /// The sums over all CPUs, by interface index.
    pub fn rows(&self) -> Result<BTreeMap<u32, Traffic>, MapFailure> {
        let mut rows = BTreeMap::new();
        for row in self.map.iter().take(self.pressure.walk_limit()) {
            let (VifKey { ifindex }, per_cpu) = row.map_err(SPEC.failure("read"))?;
            let sum: &mut Traffic = rows.entry(ifindex).or_default();
            per_cpu.iter().for_each(|one| *sum += *one);
        }
        self.pressure.observe(rows.len());
        Ok(rows)
    }

    /// Counts the packets of these interfaces, and of no others. Counts of interfaces that stay are kept.
    pub fn count(&mut self, wanted: &BTreeSet<u32>) -> Result<(), MapFailure> {
        let actual = self.rows()?;
        for ifindex in actual.keys().filter(|ifindex| !wanted.contains(ifindex)) {
            self.pressure.removed(self.map.remove(&VifKey { ifindex: *ifindex }))?;
        }
        let missing = wanted.iter().filter(|ifindex| !actual.contains_key(ifindex));
        missing.copied().try_for_each(|ifindex| self.add(ifindex, None))
    }

    /// Adds the counts of another map, of this layout or that of version 4, for interfaces that have none
    /// here.
    pub fn copy_from(&mut self, directory: &Path) -> Result<(), MapFailure> {
        let open = || SPEC.open_pin(directory);
        let failure = || SPEC.failure("read");
        // aya compares the sizes of key and value.
        if let Ok(fourth) = PerCpuHashMap::<MapData, VifKey, V4>::try_from(open()?) {
            for row in fourth.iter().take(self.pressure.walk_limit()) {
                let (VifKey { ifindex }, counts) = row.map_err(failure())?;
                let counts: Vec<_> = counts.iter().map(|one| traffic(one)).collect();
                let counts = PerCpuValues::try_from(counts).map_err(MapError::from).map_err(failure())?;
                self.add(ifindex, Some(counts))?;
            }
            return Ok(());
        }
        let from: PerCpuHashMap<MapData, VifKey, Traffic> = open()?.try_into().map_err(failure())?;
        for row in from.iter().take(self.pressure.walk_limit()) {
            let (VifKey { ifindex }, counts) = row.map_err(failure())?;
            self.add(ifindex, Some(counts))?;
        }
        Ok(())
    }

    /// Adds an entry with these counts, or zeros. An existing entry keeps its counts.
    fn add(&mut self, ifindex: u32, counts: Option<PerCpuValues<Traffic>>) -> Result<(), MapFailure> {
        let added = insist(|| {
            let counts = match &counts {
                Some(counts) => PerCpuValues::try_from(counts.to_vec())?,
                None => zero()?,
            };
            self.map.insert(&VifKey { ifindex }, counts, BPF_NOEXIST)
        });
        let used = || self.map.keys().take(self.pressure.walk_limit()).flatten().count();
        self.pressure.added(added, used).map(drop)
    }
}
