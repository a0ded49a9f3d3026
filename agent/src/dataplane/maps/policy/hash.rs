//! A hash map of policy rows.

use std::{collections::BTreeMap, path::Path};

use aya::{
    Pod,
    maps::{HashMap as BpfHashMap, IterableMap as _, MapData, MapError},
};

use super::{
    super::table::{BPF_NOEXIST, MapFailure, MapSpec, Pressure, insist, max_entries, set_all, walk_limit},
    walk::Walk,
};
use crate::{
    crash::{self, Step},
    metrics::MapMetrics,
};

/// The open map.
pub struct Hash<K: Pod, V: Pod> {
    map: BpfHashMap<MapData, K, V>,
    spec: MapSpec,
    pressure: Pressure,
}

// === impl Hash ===

impl<K: Pod + Ord, V: Pod + PartialEq> Hash<K, V> {
    pub fn open(spec: MapSpec, pins: &Path, metrics: &MapMetrics) -> Result<Self, MapFailure> {
        let map = spec.open_pin(pins)?;
        let pressure = Pressure::of(spec, &map, metrics)?;
        Ok(Self { map: map.try_into().map_err(spec.failure("open"))?, spec, pressure })
    }

    /// All rows. Those that are added or removed during the walk may be missing.
    pub fn rows(&self) -> Result<BTreeMap<K, V>, MapFailure> {
        let rows = read(&self.map, self.pressure.walk_limit()).map_err(self.spec.failure("read"))?;
        self.pressure.observe(rows.len());
        Ok(rows)
    }

    /// Goes on with a walk, and counts the rows that are not wanted. Returns whether more follow.
    pub fn walk(
        &mut self,
        walk: &mut Walk<K>,
        is_wanted: impl Fn(&K) -> bool,
        removes: bool,
    ) -> Result<bool, MapFailure> {
        if walk.is_over() {
            return Ok(false);
        }
        let stray = walk.step(self.map.map(), &self.pressure, is_wanted, removes);
        let stray = stray.map_err(self.spec.failure("read"))?;
        stray.iter().filter(|_| removes).try_for_each(|key| self.remove(*key))?;
        Ok(true)
    }

    /// A row, if there is one.
    pub fn get(&self, key: &K) -> Result<Option<V>, MapFailure> {
        self.pressure.found(self.map.get(key, 0))
    }

    /// Writes a row, or removes the row without a value.
    pub fn set(&mut self, key: K, row: Option<V>) -> Result<(), MapFailure> {
        let Some(row) = row else { return self.remove(key) };
        if self.add(key, row)? {
            return Ok(());
        }
        let replaced = insist(|| self.map.insert(&key, &row, 0));
        crash::point(Step::MapWritten);
        replaced.map_err(self.spec.failure("write to"))
    }

    /// Sets or removes all rows by one system call. Returns whether the kernel did so; otherwise, it may have
    /// changed some. Nothing is counted.
    pub fn set_all(&mut self, rows: impl Iterator<Item = (K, Option<V>)>) -> bool {
        let (keys, rows): (Vec<_>, Vec<_>) = rows.unzip();
        set_all(self.map.map(), &keys, rows)
    }

    /// Corrects the number of rows in the metrics.
    pub fn observe(&self, rows: usize) {
        self.pressure.observe(rows);
    }

    /// Removes the rows whose keys are not wanted.
    pub fn retain(&mut self, is_wanted: impl Fn(&K, &V) -> bool) -> Result<(), MapFailure> {
        // Collected first: a walk over a hash map that changes meanwhile restarts.
        let rows = self.rows()?;
        rows.into_iter().filter(|(key, row)| !is_wanted(key, row)).try_for_each(|(key, _)| self.remove(key))
    }

    /// Adds the rows of another map of this layout that are missing here.
    pub fn copy_from(&mut self, directory: &Path) -> Result<(), MapFailure> {
        let from = self.spec.open_pin(directory)?;
        let limit = walk_limit(max_entries(&from).map_err(self.spec.failure("read"))?);
        let from: BpfHashMap<_, K, V> = from.try_into().map_err(self.spec.failure("read"))?;
        let rows = read(&from, limit).map_err(self.spec.failure("read"))?;
        rows.into_iter().try_for_each(|(key, row)| self.add(key, row).map(drop))
    }

    /// Whether the row was added: `false` if the key was present.
    pub fn add(&mut self, key: K, row: V) -> Result<bool, MapFailure> {
        let added = insist(|| self.map.insert(&key, &row, BPF_NOEXIST));
        self.pressure.added(added, || self.map.keys().take(self.pressure.walk_limit()).flatten().count())
    }

    fn remove(&mut self, key: K) -> Result<(), MapFailure> {
        self.pressure.removed(self.map.remove(&key))
    }
}

fn read<K: Pod + Ord, V: Pod>(
    map: &BpfHashMap<MapData, K, V>,
    limit: usize,
) -> Result<BTreeMap<K, V>, MapError> {
    map.iter().take(limit).collect()
}
