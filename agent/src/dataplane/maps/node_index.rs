//! `NODE_PREFIXES` and `NODE_LENGTHS`: the index by which the programs find most rows of `NODES` by hash.
//!
//! The index has the addresses of nodes and, of each family, the ranges of one length, which all ranges of
//! most clusters have. No row in the index contains another row of `NODES`. So a program that finds a row
//! there needs no look-up in `NODES`, and another one needs it unless the index of the family is complete.
//!
//! During a change, the programs find the earlier or the new row: the index is no longer complete before
//! `NODES` gets a row that the index will not have, and the length changes only when the rows of that length
//! are there.

use std::{collections::BTreeMap, net::Ipv6Addr, path::Path};

use agent_common::{NodeEntry, NodeKey, PrefixLen};
use aya::maps::{Array, HashMap as BpfHashMap, IterableMap as _, MapData};

use super::table::{BPF_NOEXIST, MapFailure, MapSpec, Pressure, insist, rows_of_hash, set_all};
use crate::{
    crash::{self, Step},
    metrics::MapMetrics,
};

/// The open maps.
pub struct Index {
    prefixes: BpfHashMap<MapData, NodeKey, NodeEntry>,
    lengths: Array<MapData, PrefixLen>,
    pressure: Pressure,
}

/// What the index should have.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    rows: BTreeMap<NodeKey, NodeEntry>,
    /// Of IPv4 and of IPv6.
    lengths: [PrefixLen; 2],
}

/// A row of `NODES`.
struct Row<'a> {
    key: &'a NodeKey,
    entry: &'a NodeEntry,
    /// Whether the prefix contains none of the others.
    is_alone: bool,
}

pub const PREFIXES: MapSpec = MapSpec {
    name: "NODE_PREFIXES",
    setting: "--max-node-entries",
    capacity: |capacities| capacities.node_entries,
    // The index is made from `NODES`, and not taken over: its rows keep no capacity from changing.
    count: |_| Ok(0),
};

pub const LENGTHS: MapSpec = MapSpec {
    name: "NODE_LENGTHS",
    setting: "",
    capacity: |_| FAMILIES.len() as u32,
    // All of an array's entries exist.
    count: |_| Ok(0),
};

const FAMILIES: [u32; 2] = [PrefixLen::IPV4, PrefixLen::IPV6];
/// Rows of one system call.
const BATCH: usize = 256;
/// Bits of an address, and those in front of an IPv4 address.
const ALL: u32 = 128;
const IPV4: u32 = 96;

// === impl Index ===

impl Index {
    pub fn open(pins: &Path, metrics: &MapMetrics) -> Result<Self, MapFailure> {
        let prefixes = PREFIXES.open_pin(pins)?;
        let pressure = Pressure::of(PREFIXES, &prefixes, metrics)?;
        Ok(Self {
            prefixes: prefixes.try_into().map_err(PREFIXES.failure("open"))?,
            lengths: LENGTHS.open_pin(pins)?.try_into().map_err(LENGTHS.failure("open"))?,
            pressure,
        })
    }

    /// What the index has. Rows that are added or removed during the walk may be missing.
    pub fn read(&self) -> Result<Wanted, MapFailure> {
        let rows = rows_of_hash(&self.prefixes, self.pressure.walk_limit()).into_iter();
        let rows = rows.collect::<Result<BTreeMap<_, _>, _>>().map_err(PREFIXES.failure("read"))?;
        self.pressure.observe(rows.len());
        Ok(Wanted { rows, lengths: self.lengths()? })
    }

    /// Before `NODES` is changed: lets the programs look up there what they do not find, if the lengths or
    /// the completeness will change.
    pub fn begin(&mut self, wanted: &Wanted) -> Result<(), MapFailure> {
        let actual = self.lengths()?;
        let incomplete = |(actual, wanted): (PrefixLen, PrefixLen)| {
            if actual == wanted { actual } else { PrefixLen { is_complete: 0, ..actual } }
        };
        let ([v4, v6], [wanted_v4, wanted_v6]) = (actual, wanted.lengths);
        self.set_lengths([(v4, wanted_v4), (v6, wanted_v6)].map(incomplete))
    }

    /// Makes the index that of the rows which `NODES` has. On a failure, the programs use none.
    pub fn set(&mut self, wanted: &Wanted) -> Result<(), MapFailure> {
        self.begin(wanted)?;
        self.end(wanted)
    }

    /// Lets the programs look up everything in `NODES`.
    pub fn disable(&mut self) -> Result<(), MapFailure> {
        self.set_lengths(<[PrefixLen; 2]>::default())
    }

    /// After `NODES` was changed: makes the index the wanted one. On a failure, the programs use none.
    pub fn end(&mut self, wanted: &Wanted) -> Result<(), MapFailure> {
        let set = self.set_rows(&wanted.rows).and_then(|()| {
            // One field after the other: a program that reads meanwhile sees no mixture.
            if self.lengths()? != wanted.lengths {
                self.set_lengths(wanted.lengths.map(|len| PrefixLen { is_complete: 0, ..len }))?;
            }
            self.set_lengths(wanted.lengths)
        });
        set.or_else(|error| self.disable().and(Err(error)))
    }

    /// Removes first: the rows fit, as those of `NODES` do.
    fn set_rows(&mut self, wanted: &BTreeMap<NodeKey, NodeEntry>) -> Result<(), MapFailure> {
        let actual = self.read()?.rows;
        let stray: Vec<_> = actual.keys().filter(|key| !wanted.contains_key(key)).copied().collect();
        for keys in stray.chunks(BATCH) {
            if !set_all::<_, NodeEntry>(self.prefixes.map(), keys, vec![None; keys.len()]) {
                keys.iter().try_for_each(|key| self.pressure.removed(self.prefixes.remove(key)))?;
            }
        }
        let wrong = wanted.iter().filter(|(key, row)| actual.get(key) != Some(row));
        let wrong: Vec<_> = wrong.map(|(key, row)| (*key, *row)).collect();
        for rows in wrong.chunks(BATCH) {
            let (keys, values): (Vec<_>, Vec<_>) = rows.iter().map(|(key, row)| (*key, Some(*row))).unzip();
            if !set_all(self.prefixes.map(), &keys, values) {
                rows.iter().try_for_each(|(key, row)| self.write(key, row))?;
            }
        }
        self.pressure.observe(wanted.len());
        Ok(())
    }

    fn write(&mut self, key: &NodeKey, row: &NodeEntry) -> Result<(), MapFailure> {
        let added = insist(|| self.prefixes.insert(key, row, BPF_NOEXIST));
        let used = || self.prefixes.keys().take(self.pressure.walk_limit()).flatten().count();
        if self.pressure.added(added, used)? {
            return Ok(());
        }
        let replaced = insist(|| self.prefixes.insert(key, row, 0));
        crash::point(Step::MapWritten);
        replaced.map_err(PREFIXES.failure("write to"))
    }

    fn lengths(&self) -> Result<[PrefixLen; 2], MapFailure> {
        let [v4, v6] = FAMILIES.map(|family| self.lengths.get(&family, 0).map_err(LENGTHS.failure("read")));
        Ok([v4?, v6?])
    }

    fn set_lengths(&mut self, wanted: [PrefixLen; 2]) -> Result<(), MapFailure> {
        let actual = self.lengths()?;
        let both = FAMILIES.into_iter().zip(wanted).zip(actual);
        for ((family, wanted), _) in both.filter(|((_, wanted), actual)| wanted != actual) {
            let written = self.lengths.set(family, &wanted, 0);
            crash::point(Step::MapWritten);
            written.map_err(LENGTHS.failure("write to"))?;
        }
        Ok(())
    }
}

// === impl Wanted ===

impl Wanted {
    /// The index of some rows of `NODES`. Of the lengths of most ranges, the shortest is chosen.
    pub fn of(nodes: &BTreeMap<NodeKey, NodeEntry>) -> Self {
        let mut wanted = Self::default();
        for (family, len) in FAMILIES.into_iter().zip(&mut wanted.lengths) {
            let rows = rows(nodes.iter().filter(|(key, _)| self::family(key) == family));
            let ranges = || rows.iter().filter(|row| !row.entry.is_address());
            let mut numbers = BTreeMap::<u32, usize>::new();
            // Rows of whole addresses would be mistaken for those of nodes' own.
            for row in ranges().filter(|row| row.key.prefix_len < ALL && row.is_alone) {
                *numbers.entry(row.key.prefix_len).or_default() += 1;
            }
            let most = numbers.iter().max_by_key(|(len, number)| (**number, u32::MAX - **len));
            let most = most.map(|(len, _)| *len);
            let is_indexed = |row: &Row<'_>| Some(row.key.prefix_len) == most && row.is_alone;
            len.prefix_len = most.and_then(|most| most.try_into().ok()).unwrap_or_default();
            len.is_complete = ranges().all(is_indexed).into();
            let indexed = rows.iter().filter(|row| row.entry.is_address() || is_indexed(row));
            wanted.rows.extend(indexed.map(|row| (*row.key, *row.entry)));
        }
        wanted
    }
}

/// Some rows, by address.
fn rows<'a>(of: impl Iterator<Item = (&'a NodeKey, &'a NodeEntry)>) -> Vec<Row<'a>> {
    let mut rows: Vec<_> = of.map(|(key, entry)| Row { key, entry, is_alone: true }).collect();
    rows.sort_unstable_by_key(|row| (row.key.address, row.key.prefix_len));
    // Behind a prefix in this order come first those that it contains.
    let mut next: Option<&NodeKey> = None;
    for row in rows.iter_mut().rev() {
        row.is_alone = next.is_none_or(|next| !contains(row.key, next));
        next = Some(row.key);
    }
    rows
}

fn contains(prefix: &NodeKey, other: &NodeKey) -> bool {
    let [one, other] = [prefix, other].map(|key| u128::from_be_bytes(key.address));
    (one ^ other).checked_shr(ALL.saturating_sub(prefix.prefix_len)).unwrap_or(0) == 0
}

fn family(key: &NodeKey) -> u32 {
    let is_ipv4 = Ipv6Addr::from(key.address).to_ipv4_mapped().is_some() && key.prefix_len >= IPV4;
    if is_ipv4 { PrefixLen::IPV4 } else { PrefixLen::IPV6 }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    /// `"10.1.0.0/24"`: a range; without a length: an address.
    fn index(nodes: &[&str]) -> Wanted {
        let row = |(id, text): (u32, &&str)| {
            let (address, len) = text.split_once('/').unwrap_or((text, "128"));
            let flags = if text.contains('/') { 0 } else { NodeEntry::ADDRESS };
            let key = NodeKey::new(address.parse().unwrap(), len.parse().unwrap());
            (key, NodeEntry { id, flags, ..NodeEntry::default() })
        };
        Wanted::of(&(1..).zip(nodes).map(row).collect())
    }

    /// The numbers of the rows, and the lengths with whether all rows are in the index.
    fn ids(wanted: &Wanted) -> (Vec<u32>, [(u8, u8); 2]) {
        let mut ids: Vec<_> = wanted.rows.values().map(|row| row.id).collect();
        ids.sort_unstable();
        (ids, wanted.lengths.map(|len| (len.prefix_len, len.is_complete)))
    }

    #[test]
    fn the_index_has_all_rows_of_nodes_with_ranges_of_one_length() {
        let nodes = ["10.0.1.0/24", "fd00:1::/64", "192.0.2.1", "2001:db8::1", "10.0.2.0/24", "fd00:2::/64"];
        assert_eq!(ids(&index(&nodes)), ((1..=6).collect(), [(120, 1), (64, 1)]));
        assert_eq!(ids(&index(&["10.0.1.0/24", "192.0.2.1"])), (vec![1, 2], [(120, 1), (0, 1)]));
        assert_eq!(ids(&index(&[])), (vec![], [(0, 1), (0, 1)]));
    }

    #[test]
    fn ranges_of_other_lengths_than_that_of_most_stay_out_and_make_the_index_incomplete() {
        let nodes = ["10.0.1.0/25", "10.0.2.0/24", "10.0.3.0/24", "192.0.2.1", "fd00:1::/64", "fd00:2::/80"];
        assert_eq!(ids(&index(&nodes)), (vec![2, 3, 4, 5], [(120, 0), (64, 0)]));
        let single = ["10.0.1.1/32", "10.0.1.2/32", "192.0.2.1"];
        assert_eq!(
            ids(&index(&single)),
            (vec![3], [(0, 0), (0, 1)]),
            "ranges of one address look like addresses"
        );
    }

    #[test]
    fn a_range_that_contains_another_row_stays_out() {
        let bridge = ["10.0.1.0/24", "10.0.1.1", "10.0.2.0/24"];
        assert_eq!(ids(&index(&bridge)), (vec![2, 3], [(120, 0), (0, 1)]));
        let first = ["10.0.1.0/24", "10.0.1.0", "10.0.2.0/24"];
        assert_eq!(ids(&index(&first)), (vec![2, 3], [(120, 0), (0, 1)]));
        let nested = ["10.0.0.0/16", "10.0.1.0/24", "10.0.255.255", "10.1.0.0/16", "10.2.0.0/16"];
        assert_eq!(ids(&index(&nested)), (vec![3, 4, 5], [(112, 0), (0, 1)]));
        let around = ["::/0", "10.0.1.0/24", "2001:db8::1"];
        assert_eq!(ids(&index(&around)), (vec![2, 3], [(120, 1), (0, 0)]));
    }

    /// As the programs look an address up.
    fn look_up(wanted: &Wanted, nodes: &BTreeMap<NodeKey, NodeEntry>, address: IpAddr) -> (u32, u32) {
        let longest = |key: NodeKey| {
            let containing = nodes.iter().filter(|(it, _)| contains(it, &key));
            containing.max_by_key(|(it, _)| it.prefix_len).map(|(_, row)| *row)
        };
        let host = NodeKey::host(address);
        let [v4, v6] = wanted.lengths;
        let PrefixLen { prefix_len, is_complete, .. } = if address.is_ipv4() { v4 } else { v6 };
        let offset = if address.is_ipv4() { IPV4 as u8 } else { 0 };
        let indexed = (prefix_len != 0).then(|| NodeKey::new(address, prefix_len - offset));
        let indexed = indexed.and_then(|key| wanted.rows.get(&key).copied());
        let (range, owner) = if is_complete != 0 {
            (indexed, wanted.rows.get(&host).copied())
        } else {
            let range = indexed.or_else(|| longest(host).filter(|row| !row.is_address()));
            (range, longest(host).filter(NodeEntry::is_address))
        };
        let id = |row: Option<NodeEntry>| row.map_or(0, |row| row.id);
        (id(range), id(owner))
    }

    #[test]
    fn what_programs_find_by_the_index_is_the_row_with_the_longest_prefix() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..2000 {
            let mut nodes = BTreeMap::new();
            let address = |random: &mut fastrand::Rng| -> IpAddr {
                if random.bool() {
                    [10, 0, random.u8(..4), random.u8(..)].into()
                } else {
                    Ipv6Addr::new(0xfd00, 0, 0, random.u16(..4), 0, 0, 0, random.u16(..4)).into()
                }
            };
            for id in 1..=random.u32(1..8) {
                let (at, is_address) = (address(&mut random), random.u8(..4) == 0);
                let bits = if at.is_ipv4() { 32 } else { 128 };
                let len = if is_address { bits } else { bits - random.u8(..4) * (bits / 8) };
                let flags = if is_address { NodeEntry::ADDRESS } else { 0 };
                nodes.insert(NodeKey::new(at, len), NodeEntry { id, flags, ..NodeEntry::default() });
            }
            let wanted = Wanted::of(&nodes);
            for _ in 0..16 {
                let address = address(&mut random);
                let plain = look_up(&Wanted::default(), &nodes, address);
                assert_eq!(look_up(&wanted, &nodes, address), plain, "{address} in {nodes:?}");
            }
        }
    }
}
