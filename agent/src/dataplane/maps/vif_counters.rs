//! `VIF_COUNTERS`: packets, bytes and drops per pod interface and CPU.

use std::path::Path;

use agent_common::{Counters, DropReason, Drops, Traffic, VifKey};
use aya::maps::{MapData, MapError, PerCpuHashMap, PerCpuValues};

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
    map: PerCpuHashMap<MapData, VifKey, Counters>,
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
        count: count_per_cpu_entries::<VifKey, Counters>,
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

    /// The sum over all CPUs; `None` if the interface has no entry.
    pub fn get(&self, key: VifKey) -> Result<Option<Counters>, MapFailure> {
        Ok(self.pressure.found(self.map.get(&key, 0))?.as_ref().map(sum))
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
        let added = insist(|| self.map.insert(key, zero()?, BPF_NOEXIST));
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

    /// Copies the counts of another map of this layout into entries that are still zero.
    ///
    /// Entries with counts were copied before, by an agent that did not complete its start.
    pub fn copy_from(&mut self, directory: &Path) -> Result<(), MapFailure> {
        let from = OldCounters::open(directory)?;
        for key in self.rows().into_keys() {
            let counted = self.pressure.found(from.get(key))?;
            let own = self.pressure.found(self.map.get(&key, 0))?;
            if let (Some(counted), Some(own)) = (counted, own)
                && sum(&own) == Counters::default()
            {
                let copied = self.map.insert(key, counted, 0);
                crash::point(Step::MapWritten);
                copied.map_err(Self::SPEC.failure("write to"))?;
            }
        }
        Ok(())
    }
}

/// Counters of earlier versions: both directions' packets and bytes, then the drops of both directions by
/// reason, of which there were fewer.
type V1 = [u64; 4 + 13];
type V2 = [u64; 4 + 16];
/// Counters of version 3: for each direction packets, bytes and drops, by fewer reasons.
type V3 = [u64; 2 * (2 + 16)];
/// The same of version 4.
type V4 = [u64; 2 * (2 + 20)];

/// The open map of another directory.
enum OldCounters {
    Same(PerCpuHashMap<MapData, VifKey, Counters>),
    V1(PerCpuHashMap<MapData, VifKey, V1>),
    V2(PerCpuHashMap<MapData, VifKey, V2>),
    V3(PerCpuHashMap<MapData, VifKey, V3>),
    V4(PerCpuHashMap<MapData, VifKey, V4>),
}

// === impl OldCounters ===

impl OldCounters {
    fn open(directory: &Path) -> Result<Self, MapFailure> {
        let open = || VifCounters::SPEC.open_pin(directory);
        // aya compares the sizes of key and value.
        if let Ok(first) = open()?.try_into() {
            return Ok(Self::V1(first));
        }
        if let Ok(second) = open()?.try_into() {
            return Ok(Self::V2(second));
        }
        if let Ok(third) = open()?.try_into() {
            return Ok(Self::V3(third));
        }
        if let Ok(fourth) = open()?.try_into() {
            return Ok(Self::V4(fourth));
        }
        Ok(Self::Same(open()?.try_into().map_err(VifCounters::SPEC.failure("open"))?))
    }

    fn get(&self, key: VifKey) -> Result<PerCpuValues<Counters>, MapError> {
        let all: Vec<Counters> = match self {
            Self::Same(map) => return map.get(&key, 0),
            Self::V1(map) => map.get(&key, 0)?.iter().map(|one| split(one)).collect(),
            Self::V2(map) => map.get(&key, 0)?.iter().map(|one| split(one)).collect(),
            Self::V3(map) => map.get(&key, 0)?.iter().map(|one| both(one)).collect(),
            Self::V4(map) => map.get(&key, 0)?.iter().map(|one| both(one)).collect(),
        };
        Ok(PerCpuValues::try_from(all)?)
    }
}

/// Counters of versions 3 and 4.
fn both(old: &[u64]) -> Counters {
    let (egress, ingress) = old.split_at(old.len() / 2);
    Counters { egress: traffic(egress), ingress: traffic(ingress) }
}

/// One direction, with the drops of the first reasons.
pub(super) fn traffic(old: &[u64]) -> Traffic {
    let [packets, bytes, drops @ ..] = old else { return Traffic::default() };
    let mut traffic = Traffic { packets: *packets, bytes: *bytes, drops: Drops::default() };
    DropReason::ALL.iter().zip(drops).for_each(|(reason, packets)| traffic.drops.add(*reason, *packets));
    traffic
}

/// Counters of an earlier version. Their drops were not split by direction: nearly all are the pod's own
/// packets.
fn split(old: &[u64]) -> Counters {
    let [egress @ .., _, _] = old.first_chunk::<4>().copied().unwrap_or_default();
    let (ingress, drops) = (old.get(2..4).unwrap_or_default(), old.get(4..).unwrap_or_default());
    let mut counters = Counters { egress: traffic(&egress), ingress: traffic(ingress) };
    for (reason, packets) in DropReason::ALL.iter().zip(drops) {
        match reason {
            DropReason::NotForPod => counters.ingress.drops.add(*reason, *packets),
            _ => counters.egress.drops.add(*reason, *packets),
        }
    }
    counters
}

fn sum(per_cpu: &PerCpuValues<Counters>) -> Counters {
    per_cpu.iter().fold(Counters::default(), |mut total, cpu| {
        total += cpu;
        total
    })
}
