//! A trie of policy rows: a look-up finds the longest prefix.

use std::{collections::BTreeMap, path::Path};

use aya::{
    Pod,
    maps::{IterableMap as _, LpmTrie, Map, MapData, MapError, lpm_trie::Key},
};

use super::{
    super::table::{BPF_NOEXIST, MapFailure, MapSpec, Pressure, insist, max_entries, set_all, walk_limit},
    walk::Walk,
};
use crate::{
    crash::{self, Step},
    metrics::MapMetrics,
};

/// The open map. `N`: the bytes behind the length of a prefix.
pub struct Trie<const N: usize, V: Pod> {
    map: Open<N, V>,
    spec: MapSpec,
    pressure: Pressure,
}

/// A prefix: its bits, and the bytes.
pub type Prefix<const N: usize> = (u32, [u8; N]);

/// A prefix in the kernel's form.
pub type TrieKey<const N: usize> = Key<[u8; N]>;

type Open<const N: usize, V> = LpmTrie<MapData, [u8; N], V>;

/// Counts the entries of a trie.
pub fn count_entries<const N: usize, V: Pod>(map: Map) -> Result<usize, MapError>
where
    [u8; N]: Pod,
{
    let limit = walk_limit(max_entries(&map)?);
    Ok(Open::<N, V>::try_from(map)?.keys().take(limit).flatten().count())
}

// === impl Trie ===

impl<const N: usize, V: Pod + PartialEq> Trie<N, V>
where
    [u8; N]: Pod,
{
    pub fn open(spec: MapSpec, pins: &Path, metrics: &MapMetrics) -> Result<Self, MapFailure> {
        let map = spec.open_pin(pins)?;
        let pressure = Pressure::of(spec, &map, metrics)?;
        Ok(Self { map: map.try_into().map_err(spec.failure("open"))?, spec, pressure })
    }

    /// All rows. Those that are added or removed during the walk may be missing.
    pub fn rows(&self) -> Result<BTreeMap<Prefix<N>, V>, MapFailure> {
        let rows = read(&self.map, self.pressure.walk_limit()).map_err(self.spec.failure("read"))?;
        self.pressure.observe(rows.len());
        Ok(rows)
    }

    /// Goes on with a walk, and counts the rows that are not wanted. Returns whether more follow.
    pub fn walk(
        &mut self,
        walk: &mut Walk<TrieKey<N>>,
        is_wanted: impl Fn(&Prefix<N>) -> bool,
        removes: bool,
    ) -> Result<bool, MapFailure> {
        if walk.is_over() {
            return Ok(false);
        }
        let of = |key: &TrieKey<N>| (key.prefix_len(), key.data());
        let stray = walk.step(self.map.map(), &self.pressure, |key| is_wanted(&of(key)), removes);
        let stray = stray.map_err(self.spec.failure("read"))?;
        stray.iter().filter(|_| removes).try_for_each(|key| self.remove(of(key)))?;
        Ok(true)
    }

    /// The row of the prefix, or of the longest one that contains it.
    pub fn get(&self, key: Prefix<N>) -> Result<Option<V>, MapFailure> {
        self.pressure.found(self.map.get(&trie_key(key), 0))
    }

    /// Writes a row, or removes the row without a value.
    pub fn set(&mut self, key: Prefix<N>, row: Option<V>) -> Result<(), MapFailure> {
        let Some(row) = row else { return self.remove(key) };
        if self.add(key, row)? {
            return Ok(());
        }
        let replaced = insist(|| self.map.insert(&trie_key(key), &row, 0));
        crash::point(Step::MapWritten);
        replaced.map_err(self.spec.failure("write to"))
    }

    /// Sets or removes all rows by one system call. Returns whether the kernel did so; otherwise, it may have
    /// changed some. Nothing is counted.
    pub fn set_all(&mut self, rows: impl Iterator<Item = (Prefix<N>, Option<V>)>) -> bool {
        let (keys, rows): (Vec<_>, Vec<_>) = rows.map(|(key, row)| (trie_key(key), row)).unzip();
        set_all(self.map.map(), &keys, rows)
    }

    /// Corrects the number of rows in the metrics.
    pub fn observe(&self, rows: usize) {
        self.pressure.observe(rows);
    }

    /// Removes the rows whose keys are not wanted.
    pub fn retain(&mut self, is_wanted: impl Fn(&Prefix<N>) -> bool) -> Result<(), MapFailure> {
        let keys: Vec<_> = self.rows()?.into_keys().collect();
        keys.into_iter().filter(|key| !is_wanted(key)).try_for_each(|key| self.remove(key))
    }

    /// Adds the rows of another map of this layout that are missing here.
    pub fn copy_from(&mut self, directory: &Path) -> Result<(), MapFailure> {
        let from = self.spec.open_pin(directory)?;
        let limit = walk_limit(max_entries(&from).map_err(self.spec.failure("read"))?);
        let from: Open<N, V> = from.try_into().map_err(self.spec.failure("read"))?;
        let rows = read(&from, limit).map_err(self.spec.failure("read"))?;
        rows.into_iter().try_for_each(|(key, row)| self.add(key, row).map(drop))
    }

    /// Whether the row was added: `false` if the key was present.
    fn add(&mut self, key: Prefix<N>, row: V) -> Result<bool, MapFailure> {
        let added = insist(|| self.map.insert(&trie_key(key), &row, BPF_NOEXIST));
        self.pressure.added(added, || self.map.keys().take(self.pressure.walk_limit()).flatten().count())
    }

    fn remove(&mut self, key: Prefix<N>) -> Result<(), MapFailure> {
        self.pressure.removed(self.map.remove(&trie_key(key)))
    }
}

fn read<const N: usize, V: Pod>(map: &Open<N, V>, limit: usize) -> Result<BTreeMap<Prefix<N>, V>, MapError>
where
    [u8; N]: Pod,
{
    map.iter().take(limit).map(|row| row.map(|(key, row)| ((key.prefix_len(), key.data()), row))).collect()
}

fn trie_key<const N: usize>((len, data): Prefix<N>) -> TrieKey<N>
where
    [u8; N]: Pod,
{
    Key::new(len, data)
}
