//! `NODES`: the ranges and addresses of the cluster's nodes.
//!
//! The rows follow from the nodes, not from attachments: the caller knows all that are wanted.

use std::{collections::BTreeMap, path::Path};

use agent_common::{NodeEntry, NodeKey};
use aya::maps::{IterableMap as _, LpmTrie, Map, MapData, MapError, lpm_trie::Key};

use super::{
    node_index::{Index, Wanted},
    table::{
        BPF_NOEXIST, MapFailure, MapSpec, Pressure, insist, max_entries, rows_of_trie, set_all, walk_limit,
    },
};
use crate::{
    chain::chain,
    crash::{self, Step},
    metrics::MapMetrics,
};

/// The open map, and the index of its rows.
pub struct Nodes {
    map: Trie,
    pressure: Pressure,
    index: Index,
}

type Trie = LpmTrie<MapData, [u8; 16], NodeEntry>;

/// Rows of one system call.
const BATCH: usize = 256;

pub const SPEC: MapSpec = MapSpec {
    name: "NODES",
    setting: "--max-node-entries",
    capacity: |capacities| capacities.node_entries,
    count: count_entries,
};

// === impl Nodes ===

impl Nodes {
    pub fn open(pins: &Path, metrics: &MapMetrics) -> Result<Self, MapFailure> {
        let map = SPEC.open_pin(pins)?;
        let pressure = Pressure::of(SPEC, &map, metrics)?;
        let map = map.try_into().map_err(SPEC.failure("open"))?;
        Ok(Self { map, pressure, index: Index::open(pins, metrics)? })
    }

    /// All rows. Those that are added or removed during the walk may be missing.
    pub fn rows(&self) -> Result<BTreeMap<NodeKey, NodeEntry>, MapFailure> {
        let rows = read(&self.map, self.pressure.walk_limit())?;
        self.pressure.observe(rows.len());
        Ok(rows)
    }

    /// Writes the rows that are missing or wrong, then removes all others; returns the rows before. The rows
    /// are removed even if one cannot be written: a full map has room then. Without an index, the programs
    /// look up all rows in the trie, which costs time only.
    pub fn set(
        &mut self,
        wanted: &BTreeMap<NodeKey, NodeEntry>,
    ) -> Result<BTreeMap<NodeKey, NodeEntry>, MapFailure> {
        let actual = self.rows()?;
        let wrong = wanted.iter().filter(|(key, row)| actual.get(key) != Some(row));
        let wrong: Vec<_> = wrong.map(|(key, row)| (*key, Some(*row))).collect();
        let stray = actual.keys().filter(|key| !wanted.contains_key(key));
        let stray: Vec<_> = stray.map(|key| (*key, None)).collect();
        let change =
            |this: &mut Self, rows: &[_]| rows.chunks(BATCH).try_for_each(|rows| this.set_batch(rows));
        let index = Wanted::of(wanted);
        warn_unless(self.index.begin(&index));
        let written = change(self, &wrong);
        warn_unless(self.index.end(&index));
        change(self, &stray)?;
        written?;
        self.pressure.observe(wanted.len());
        Ok(actual)
    }

    /// Whether the index has what follows from these rows.
    pub fn are_indexed(&self, rows: &BTreeMap<NodeKey, NodeEntry>) -> Result<bool, MapFailure> {
        Ok(self.index.read()? == Wanted::of(rows))
    }

    /// Makes the index that of the rows: an earlier agent, which changed these, may have known of none.
    pub fn index(&mut self) -> Result<(), MapFailure> {
        match self.rows() {
            Ok(rows) => self.index.set(&Wanted::of(&rows)),
            Err(error) => self.index.disable().and(Err(error)),
        }
    }

    /// Adds the rows of another map of this layout that are missing here.
    pub fn copy_from(&mut self, directory: &Path) -> Result<(), MapFailure> {
        let from = SPEC.open_pin(directory)?;
        let limit = walk_limit(max_entries(&from).map_err(SPEC.failure("read"))?);
        let from: Trie = from.try_into().map_err(SPEC.failure("read"))?;
        let copied = read(&from, limit)?.into_iter().try_for_each(|(key, row)| self.add(key, row).map(drop));
        // Also of some rows: an index that lacks them would count as complete.
        self.index()?;
        copied
    }

    /// Sets rows, or removes them all, by one system call. Otherwise row by row: a full map takes some of
    /// them, and older kernels have no such call for tries.
    fn set_batch(&mut self, rows: &[(NodeKey, Option<NodeEntry>)]) -> Result<(), MapFailure> {
        let (keys, values): (Vec<_>, Vec<_>) = rows.iter().map(|(key, row)| (trie_key(*key), *row)).unzip();
        if set_all(self.map.map(), &keys, values) {
            return Ok(());
        }
        rows.iter().try_for_each(|(key, row)| match row {
            Some(row) => self.write(*key, *row),
            None => self.pressure.removed(self.map.remove(&trie_key(*key))),
        })
    }

    fn write(&mut self, key: NodeKey, row: NodeEntry) -> Result<(), MapFailure> {
        if self.add(key, row)? {
            return Ok(());
        }
        let replaced = insist(|| self.map.insert(&trie_key(key), &row, 0));
        crash::point(Step::MapWritten);
        replaced.map_err(SPEC.failure("write to"))
    }

    /// Whether the row was added: `false` if the key was present.
    fn add(&mut self, key: NodeKey, row: NodeEntry) -> Result<bool, MapFailure> {
        let added = insist(|| self.map.insert(&trie_key(key), &row, BPF_NOEXIST));
        let used = || self.map.keys().take(self.pressure.walk_limit()).flatten().count();
        self.pressure.added(added, used)
    }
}

fn warn_unless(indexed: Result<(), MapFailure>) {
    if let Err(error) = indexed {
        let error = chain(&error);
        tracing::warn!(error, "cannot index the addresses of nodes: a look-up of each packet takes longer");
    }
}

fn read(map: &Trie, limit: usize) -> Result<BTreeMap<NodeKey, NodeEntry>, MapFailure> {
    let rows = match rows_of_trie(map.map(), limit) {
        Some(rows) => rows,
        None => map.iter().take(limit).collect::<Result<_, _>>().map_err(SPEC.failure("read"))?,
    };
    let row =
        |(key, row): (Key<[u8; 16]>, _)| (NodeKey { prefix_len: key.prefix_len(), address: key.data() }, row);
    Ok(rows.into_iter().map(row).collect())
}

fn count_entries(map: Map) -> Result<usize, MapError> {
    let limit = walk_limit(max_entries(&map)?);
    Ok(Trie::try_from(map)?.keys().take(limit).flatten().count())
}

fn trie_key(NodeKey { prefix_len, address }: NodeKey) -> Key<[u8; 16]> {
    Key::new(prefix_len, address)
}
