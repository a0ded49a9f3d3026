//! `VIF_TRAFFIC`: packets and bytes per pod interface and CPU, by the slot that is in the interface's row of
//! `VIFS`. Slots are reused.

use std::{collections::BTreeSet, path::Path};

use agent_common::{Passed, traffic_slots};
use aya::maps::{MapData, PerCpuArray, PerCpuValues};

use super::table::{MapFailure, MapSpec, max_entries, zero};
use crate::crash::{self, Step};

pub const SPEC: MapSpec = MapSpec {
    name: "VIF_TRAFFIC",
    setting: "--max-vifs",
    capacity: |capacities| traffic_slots(capacities.vifs),
    // All of an array's entries exist. A smaller array has room for all rows of `VIFS`, if that has.
    count: |_| Ok(0),
};

/// The open map. The programs write the values.
pub struct VifTraffic {
    map: PerCpuArray<MapData, Passed>,
    free: BTreeSet<u32>,
}

// === impl VifTraffic ===

impl VifTraffic {
    /// Opens the pinned map; some slots are taken.
    pub fn open(pins: &Path, taken: impl Iterator<Item = u32>) -> Result<Self, MapFailure> {
        let map = SPEC.open_pin(pins)?;
        let slots = max_entries(&map).map_err(SPEC.failure("read"))?;
        let mut free: BTreeSet<u32> = (1..slots).collect();
        for slot in taken {
            free.remove(&slot);
        }
        Ok(Self { map: map.try_into().map_err(SPEC.failure("open"))?, free })
    }

    /// A free slot, without counts. Without a free slot, 0: the packets are not counted.
    pub fn take(&mut self) -> Result<u32, MapFailure> {
        let Some(slot) = self.free.pop_first() else { return Ok(0) };
        let zeroed = zero().map_err(SPEC.failure("write to")).and_then(|zeros| self.set(slot, zeros));
        zeroed.inspect_err(|_| self.give_back(slot))?;
        Ok(slot)
    }

    pub fn give_back(&mut self, slot: u32) {
        if slot != 0 {
            self.free.insert(slot);
        }
    }

    /// The counts of each CPU; none for slot 0, which pods without a slot share.
    pub fn get(&self, slot: u32) -> Result<PerCpuValues<Passed>, MapFailure> {
        let counts = if slot == 0 { zero() } else { self.map.get(&slot, 0) };
        counts.map_err(SPEC.failure("read"))
    }

    pub fn set(&mut self, slot: u32, counts: PerCpuValues<Passed>) -> Result<(), MapFailure> {
        let written = self.map.set(slot, counts, 0);
        crash::point(Step::MapWritten);
        written.map_err(SPEC.failure("write to"))
    }
}
