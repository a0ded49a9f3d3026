//! What all maps have in common: a name, a capacity, desired rows, and how a row is read and written.

use std::{
    collections::HashMap,
    hash::Hash,
    io,
    net::IpAddr,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use aya::{
    Pod,
    maps::{HashMap as BpfHashMap, IterableMap as _, Map, MapData, MapError, PerCpuHashMap, PerCpuValues},
};
use nix::errno::Errno;
use prometheus_client::metrics::gauge::Gauge;

use super::super::{bpf, capacity::Capacities};
use crate::{
    crash::{self, Step},
    metrics::{MapMetrics, count},
    registry::Attachment,
};

/// The name of a pinned map, and the setting that limits its entries.
#[derive(Debug, Clone, Copy)]
pub struct MapSpec {
    pub name: &'static str,
    /// The flag that sets the capacity.
    pub setting: &'static str,
    pub capacity: fn(&Capacities) -> u32,
    /// Counts the entries of a map of this layout that a smaller successor would have to take over.
    pub count: fn(Map) -> Result<usize, MapError>,
}

/// A map whose rows follow from attachments.
pub trait Table {
    const SPEC: MapSpec;
    type Key: Pod + Eq + Hash;
    /// The part of a value that is compared with the desired state.
    type Row: Copy + PartialEq;

    /// The rows that an attachment needs.
    fn desired(ifindex: u32, attachment: &Attachment) -> impl Iterator<Item = (Self::Key, Self::Row)>;

    fn entry(key: Self::Key) -> Entry;

    /// A desired row with those parts of the actual one that do not follow from the attachment.
    fn keeping(desired: Self::Row, _actual: &Self::Row) -> Self::Row {
        desired
    }
}

/// An entry, by its map and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    Vif(u32),
    Endpoint(IpAddr),
    Counters(u32),
}

/// The rows of a table, read from the kernel.
pub type Rows<T> = HashMap<<T as Table>::Key, <T as Table>::Row>;

/// An open hash map whose values are rows.
pub struct HashTable<T: Table<Row: Pod>> {
    map: BpfHashMap<MapData, T::Key, T::Row>,
    pressure: Pressure,
}

/// Entries in use and capacity of an open map.
pub struct Pressure {
    spec: MapSpec,
    capacity: u32,
    /// Follows this agent's changes; [`Pressure::observe`] corrects changes by others.
    used: Gauge,
}

/// A map that cannot be opened, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum MapFailure {
    #[error("cannot add an entry to the map {map}: {used} of {capacity} entries are in use; raise {setting}")]
    Full { map: &'static str, used: usize, capacity: u32, setting: &'static str },
    #[error("cannot {action} the map {map}")]
    Access {
        action: &'static str,
        map: &'static str,
        #[source]
        source: Box<MapError>,
    },
}

/// Insert only if the key is absent (`BPF_NOEXIST` in `linux/bpf.h`).
pub const BPF_NOEXIST: u64 = 1;

/// The kernel takes a new entry of some maps from a small cache for each CPU, which a background task refills
/// (`kernel/bpf/memalloc.c`): ENOMEM can mean "not yet".
const REFILL: Duration = Duration::from_millis(1);
const RETRIES: usize = 50;
/// Rows that are read by one system call.
const READ: usize = 512;

/// Repeats an insertion for which the kernel has no memory yet.
pub fn insist(mut insert: impl FnMut() -> Result<(), MapError>) -> Result<(), MapError> {
    let mut inserted = insert();
    for _ in 0..RETRIES {
        if !inserted.as_ref().is_err_and(|error| errno(error) == Some(Errno::ENOMEM)) {
            break;
        }
        thread::sleep(REFILL);
        inserted = insert();
    }
    inserted
}

/// The rows of a trie, many by one system call; `None` if the kernel has no such call. The walk has at most
/// so many steps.
pub fn rows_of_trie<K: Pod, V: Pod>(map: &MapData, limit: usize) -> Option<Vec<(K, V)>> {
    all_rows::<K, V, K>(map, limit)
}

/// The rows of a hash map, many by one system call if possible. The walk has at most so many steps.
pub fn rows_of_hash<K: Pod, V: Pod>(
    map: &BpfHashMap<MapData, K, V>,
    limit: usize,
) -> Vec<Result<(K, V), MapError>> {
    match all_rows::<K, V, u32>(map.map(), limit) {
        Some(rows) => rows.into_iter().map(Ok).collect(),
        None => map.iter().take(limit).collect(),
    }
}

/// `P`: a place in the map.
fn all_rows<K: Pod, V: Pod, P: Pod>(map: &MapData, limit: usize) -> Option<Vec<(K, V)>> {
    let (mut rows, mut place) = (Vec::new(), None::<P>);
    loop {
        let found = bpf::look_up_batch(map.fd().as_fd(), place.as_ref(), READ).ok()?;
        rows.extend(found.rows);
        if found.next.is_none() || rows.len() >= limit {
            return Some(rows);
        }
        place = found.next;
    }
}

/// Sets rows or removes them, all by one system call. Returns whether the kernel did; otherwise, it may have
/// changed some.
pub fn set_all<K: Pod, V: Pod>(map: &MapData, keys: &[K], rows: Vec<Option<V>>) -> bool {
    let number = rows.len();
    let rows: Vec<V> = rows.into_iter().flatten().collect();
    match rows.len() {
        0 => {
            let removed = bpf::delete_batch(map.fd().as_fd(), keys);
            crash::point(Step::MapRemoved);
            removed.is_ok()
        }
        set if set == number => {
            let written = bpf::update_batch(map.fd().as_fd(), keys, &rows);
            crash::point(Step::MapWritten);
            written.is_ok()
        }
        _ => false,
    }
}

/// A zero for each CPU.
pub fn zero<V: Pod + Default>() -> Result<PerCpuValues<V>, MapError> {
    let cpus = aya::util::nr_cpus().map_err(|(_, error)| MapError::IoError(error))?;
    Ok(PerCpuValues::try_from(vec![V::default(); cpus.get() as usize])?)
}

/// The rows of an attachment that are missing or wrong in `actual`.
pub fn wrong<T: Table>(
    actual: &Rows<T>,
    ifindex: u32,
    attachment: &Attachment,
) -> impl Iterator<Item = Entry> {
    let desired = T::desired(ifindex, attachment);
    let is_right = |key: &T::Key, row: T::Row| actual.get(key).is_some_and(|it| *it == T::keeping(row, it));
    desired.filter(move |(key, row)| !is_right(key, *row)).map(|(key, _)| T::entry(key))
}

/// Counts the entries of a hash map or an LRU hash map.
pub fn count_entries<K: Pod, V: Pod>(map: Map) -> Result<usize, MapError> {
    let capacity = max_entries(&map)?;
    Ok(BpfHashMap::<_, K, V>::try_from(map)?.keys().take(walk_limit(capacity)).flatten().count())
}

/// Counts the entries of a per-CPU hash map.
pub fn count_per_cpu_entries<K: Pod, V: Pod>(map: Map) -> Result<usize, MapError> {
    let capacity = max_entries(&map)?;
    Ok(PerCpuHashMap::<_, K, V>::try_from(map)?.keys().take(walk_limit(capacity)).flatten().count())
}

/// Steps after which a walk ends. A walk restarts when its current key is deleted, so that it needs a bound.
pub fn walk_limit(capacity: u32) -> usize {
    2 * capacity as usize
}

// === impl MapSpec ===

impl MapSpec {
    pub fn path(&self, pins: &Path) -> PathBuf {
        pins.join(self.name)
    }

    pub fn failure(&self, action: &'static str) -> impl FnOnce(MapError) -> MapFailure {
        let map = self.name;
        move |source| MapFailure::Access { action, map, source: Box::new(source) }
    }

    /// Opens the pinned map.
    pub fn open_pin(&self, pins: &Path) -> Result<Map, MapFailure> {
        let found = MapData::from_pin(self.path(pins)).and_then(Map::from_map_data);
        found.map_err(self.failure("open"))
    }
}

// === impl Pressure ===

impl Pressure {
    pub fn of(spec: MapSpec, map: &Map, metrics: &MapMetrics) -> Result<Self, MapFailure> {
        let capacity = max_entries(map).map_err(spec.failure("read"))?;
        metrics.capacity(spec.name).set(capacity.into());
        Ok(Self { spec, capacity, used: metrics.entries(spec.name) })
    }

    pub fn walk_limit(&self) -> usize {
        walk_limit(self.capacity)
    }

    pub fn observe(&self, used: usize) {
        self.used.set(count(used));
    }

    /// Whether a new entry was added: `false` if the key was present.
    ///
    /// # Errors
    /// [`MapFailure::Full`] if the map is full; `used` counts its entries.
    pub fn added(
        &self,
        result: Result<(), MapError>,
        used: impl FnOnce() -> usize,
    ) -> Result<bool, MapFailure> {
        match result {
            Ok(()) => {
                crash::point(Step::MapWritten);
                self.used.inc();
                Ok(true)
            }
            Err(error) if errno(&error) == Some(Errno::EEXIST) => Ok(false),
            // Of a hash map and of a trie.
            Err(error) if matches!(errno(&error), Some(Errno::E2BIG | Errno::ENOSPC)) => {
                Err(MapFailure::Full {
                    map: self.spec.name,
                    used: used(),
                    capacity: self.capacity,
                    setting: self.spec.setting,
                })
            }
            Err(error) => Err(self.spec.failure("write to")(error)),
        }
    }

    /// Removing an absent entry succeeds.
    pub fn removed(&self, result: Result<(), MapError>) -> Result<(), MapFailure> {
        match result {
            Ok(()) => {
                crash::point(Step::MapRemoved);
                self.used.dec();
                Ok(())
            }
            Err(error) if errno(&error) == Some(Errno::ENOENT) => Ok(()),
            Err(error) => Err(self.spec.failure("remove from")(error)),
        }
    }

    /// The result of a look-up, with `None` for an absent key.
    pub fn found<V>(&self, result: Result<V, MapError>) -> Result<Option<V>, MapFailure> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(self.spec.failure("read")(error)),
        }
    }
}

// === impl HashTable ===

impl<T: Table<Row: Pod>> HashTable<T> {
    pub fn open(pins: &Path, metrics: &MapMetrics) -> Result<Self, MapFailure> {
        let map = T::SPEC.open_pin(pins)?;
        let pressure = Pressure::of(T::SPEC, &map, metrics)?;
        Ok(Self { map: BpfHashMap::try_from(map).map_err(T::SPEC.failure("open"))?, pressure })
    }

    pub fn get(&self, key: T::Key) -> Result<Option<T::Row>, MapFailure> {
        self.pressure.found(self.map.get(&key, 0))
    }

    /// Entries that are added or removed during the walk may be missing.
    pub fn rows(&self) -> Rows<T> {
        let rows: Rows<T> =
            rows_of_hash(&self.map, self.pressure.walk_limit()).into_iter().flatten().collect();
        self.pressure.observe(rows.len());
        rows
    }

    /// Writes the rows of an attachment that are missing or wrong.
    ///
    /// Right rows are not rewritten: the kernel reuses the memory of a replaced entry at once, for the next
    /// entry that is written, while a program on another CPU may still be reading it, and would then see
    /// another pod's entry.
    pub fn ensure(&mut self, ifindex: u32, attachment: &Attachment) -> Result<(), MapFailure> {
        T::desired(ifindex, attachment).try_for_each(|(key, row)| {
            let actual = self.get(key).ok().flatten();
            let row = actual.as_ref().map_or(row, |actual| T::keeping(row, actual));
            if actual == Some(row) { Ok(()) } else { self.write(key, row) }
        })
    }

    pub fn remove(&mut self, key: T::Key) -> Result<(), MapFailure> {
        self.pressure.removed(self.map.remove(&key))
    }

    /// Removes the rows whose keys are not wanted.
    pub fn retain(&mut self, is_wanted: impl Fn(&T::Key) -> bool) -> Result<(), MapFailure> {
        // Collected first: a walk over a hash map that changes meanwhile restarts.
        let keys: Vec<T::Key> = self.rows().into_keys().collect();
        keys.into_iter().filter(|key| !is_wanted(key)).try_for_each(|key| self.remove(key))
    }

    /// Copies the rows of another map of this layout, without replacing any.
    pub fn copy_from(&mut self, directory: &Path) -> Result<(), MapFailure> {
        self.rows_of(directory)?.into_iter().try_for_each(|(key, row)| self.add(key, row).map(drop))
    }

    /// The rows of another map of this layout.
    pub fn rows_of(&self, directory: &Path) -> Result<Rows<T>, MapFailure> {
        let from = T::SPEC.open_pin(directory)?;
        let failure = || T::SPEC.failure("read");
        let limit = walk_limit(max_entries(&from).map_err(failure())?);
        let from: BpfHashMap<_, T::Key, T::Row> = from.try_into().map_err(failure())?;
        Ok(rows_of_hash(&from, limit).into_iter().flatten().collect())
    }

    pub fn write(&mut self, key: T::Key, row: T::Row) -> Result<(), MapFailure> {
        if self.add(key, row)? {
            return Ok(());
        }
        let replaced = self.map.insert(&key, &row, 0);
        crash::point(Step::MapWritten);
        replaced.map_err(T::SPEC.failure("write to"))
    }

    /// Whether the row was added: `false` if the key was present.
    fn add(&mut self, key: T::Key, row: T::Row) -> Result<bool, MapFailure> {
        let added = self.map.insert(&key, &row, BPF_NOEXIST);
        self.pressure.added(added, || self.map.keys().take(self.pressure.walk_limit()).flatten().count())
    }
}

/// The capacity of an open map.
pub fn max_entries(map: &Map) -> Result<u32, MapError> {
    let data = match map {
        Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::PerCpuHashMap(data)
        | Map::PerCpuArray(data)
        | Map::LpmTrie(data) => data,
        _ => return Err(MapError::InvalidMapType { map_type: 0 }),
    };
    Ok(data.info()?.max_entries())
}

pub fn errno(error: &MapError) -> Option<Errno> {
    let MapError::SyscallError(error) = error else { return None };
    let error: &io::Error = &error.io_error;
    error.raw_os_error().map(Errno::from_raw)
}
