//! `UNDERLAY`: how packets of the tunnel, which the programs make, leave for other nodes.
//!
//! Like those of `NODES`, the rows follow from the nodes. Without a row, the kernel's tunnel device makes the
//! packets: an empty map costs time only.

use std::{collections::BTreeMap, path::Path};

use agent_common::{UnderlayEntry, UnderlayKey};
use aya::maps::{HashMap as BpfHashMap, IterableMap as _, MapData};

use super::table::{BPF_NOEXIST, MapFailure, MapSpec, Pressure, count_entries, insist, set_all};
use crate::{
    crash::{self, Step},
    metrics::MapMetrics,
};

/// The open map.
pub struct Underlay {
    map: BpfHashMap<MapData, UnderlayKey, UnderlayEntry>,
    pressure: Pressure,
}

pub const SPEC: MapSpec = MapSpec {
    name: "UNDERLAY",
    setting: "--max-node-entries",
    capacity: |capacities| capacities.node_entries,
    count: count_entries::<UnderlayKey, UnderlayEntry>,
};

/// Rows of one system call.
const BATCH: usize = 256;

// === impl Underlay ===

impl Underlay {
    pub fn open(pins: &Path, metrics: &MapMetrics) -> Result<Self, MapFailure> {
        let map = SPEC.open_pin(pins)?;
        let pressure = Pressure::of(SPEC, &map, metrics)?;
        Ok(Self { map: map.try_into().map_err(SPEC.failure("open"))?, pressure })
    }

    /// All rows. Those that are added or removed during the walk may be missing.
    pub fn rows(&self) -> Result<BTreeMap<UnderlayKey, UnderlayEntry>, MapFailure> {
        let rows = self.map.iter().take(self.pressure.walk_limit()).collect::<Result<BTreeMap<_, _>, _>>();
        let rows = rows.map_err(SPEC.failure("read"))?;
        self.pressure.observe(rows.len());
        Ok(rows)
    }

    /// Removes the rows that are not wanted, then replaces those that are wrong, then adds those that are
    /// missing: all that can be, whatever fails. A wrong row that cannot be replaced is removed, for packets
    /// would go astray.
    ///
    /// # Errors
    /// The first failure.
    pub fn set(&mut self, wanted: &BTreeMap<UnderlayKey, UnderlayEntry>) -> Result<(), MapFailure> {
        let actual = self.rows()?;
        let mut outcome = Ok(());
        for key in actual.keys().filter(|key| !wanted.contains_key(key)) {
            outcome = outcome.and(self.remove(key));
        }
        let differing = wanted.iter().filter(|(key, row)| actual.get(key) != Some(row));
        let (wrong, missing): (Vec<_>, Vec<_>) = differing.partition(|(key, _)| actual.contains_key(key));
        for (key, row) in wrong {
            let replaced = insist(|| self.map.insert(key, row, 0));
            crash::point(Step::MapWritten);
            if let Err(error) = replaced {
                let removed = self.remove(key);
                outcome = outcome.and(removed).and(Err(SPEC.failure("write to")(error)));
            }
        }
        for rows in missing.chunks(BATCH) {
            let (keys, values): (Vec<_>, Vec<_>) = rows.iter().map(|(key, row)| (**key, Some(**row))).unzip();
            if !set_all(self.map.map(), &keys, values) {
                outcome = rows.iter().fold(outcome, |outcome, (key, row)| outcome.and(self.add(key, row)));
            }
        }
        if outcome.is_ok() {
            self.pressure.observe(wanted.len());
        }
        outcome
    }

    fn add(&mut self, key: &UnderlayKey, row: &UnderlayEntry) -> Result<(), MapFailure> {
        let added = insist(|| self.map.insert(key, row, BPF_NOEXIST));
        let used = || self.map.keys().take(self.pressure.walk_limit()).flatten().count();
        self.pressure.added(added, used).map(drop)
    }

    fn remove(&mut self, key: &UnderlayKey) -> Result<(), MapFailure> {
        self.pressure.removed(self.map.remove(key))
    }
}
