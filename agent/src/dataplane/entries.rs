//! A snapshot of the maps, and what of it is not as an attachment needs it.

use std::{
    collections::{HashMap as StdHashMap, HashSet},
    net::{IpAddr, Ipv6Addr},
};

use agent_common::{Counters, Endpoint, EndpointKey, MAX_ENDPOINTS, MAX_VIFS, Vif as VifEntry, VifKey};
use aya::maps::{HashMap, Map, MapData, MapError, PerCpuHashMap};

use super::{
    layout,
    maps::{ENDPOINTS, MapFailure, UNKNOWN, VIF_COUNTERS, VIFS, endpoint, endpoint_keys, vif_entry},
};
use crate::{registry::Attachment, vif::Addresses};

/// The pinned maps, opened once more to be read: a walk over them keeps nobody from writing.
pub(super) struct Reader {
    vifs: HashMap<MapData, VifKey, VifEntry>,
    endpoints: HashMap<MapData, EndpointKey, Endpoint>,
    counters: PerCpuHashMap<MapData, VifKey, Counters>,
}

/// What the maps have.
#[derive(Clone, Default)]
pub struct Entries {
    pub(super) vifs: StdHashMap<u32, VifEntry>,
    pub(super) endpoints: StdHashMap<EndpointKey, Endpoint>,
    pub(super) counters: HashSet<u32>,
}

/// An entry, by its map and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    Vif(u32),
    Endpoint(IpAddr),
    Counters(u32),
}

// === impl Reader ===

impl Reader {
    /// Opens what was loaded and pinned.
    pub(super) fn open(pins: &std::path::Path) -> Result<Self, MapFailure> {
        Ok(Self {
            vifs: open(pins, VIFS)?,
            endpoints: open(pins, ENDPOINTS)?,
            counters: open(pins, VIF_COUNTERS)?,
        })
    }

    /// All entries. Those that come and go meanwhile may be missing.
    pub(super) fn all(&self) -> Entries {
        // A walk begins anew when its place is deleted: there has to be an end to that.
        let (vifs, endpoints) = (2 * MAX_VIFS, 2 * MAX_ENDPOINTS);
        Entries {
            vifs: self.vifs.iter().take(vifs).flatten().map(|(key, it)| (key.ifindex, it)).collect(),
            endpoints: self.endpoints.iter().take(endpoints).flatten().collect(),
            counters: self.counters.keys().take(vifs).flatten().map(|key| key.ifindex).collect(),
        }
    }

    /// The entries of an interface and of some addresses.
    pub(super) fn one(&self, ifindex: u32, addresses: impl Iterator<Item = EndpointKey>) -> Entries {
        let key = VifKey { ifindex };
        let endpoint = |key| Some((key, self.endpoints.get(&key, 0).ok()?));
        Entries {
            vifs: self.vifs.get(&key, 0).ok().map(|it| (ifindex, it)).into_iter().collect(),
            endpoints: addresses.filter_map(endpoint).collect(),
            counters: self.counters.get(&key, 0).ok().map(|_| ifindex).into_iter().collect(),
        }
    }
}

// === impl Entries ===

impl Entries {
    /// Those that an attachment needs and that are missing or say something else.
    pub fn wrong(&self, ifindex: u32, attachment: &Attachment) -> Vec<Entry> {
        let mut wrong = Vec::new();
        if self.vifs.get(&ifindex) != Some(&vif_entry(attachment)) {
            wrong.push(Entry::Vif(ifindex));
        }
        let right = endpoint(ifindex, attachment);
        let keys = endpoint_keys(attachment.vif.addresses);
        wrong.extend(
            keys.filter(|key| self.endpoints.get(key) != Some(&right)).map(|key| Entry::Endpoint(ip(key))),
        );
        if !self.counters.contains(&ifindex) {
            wrong.push(Entry::Counters(ifindex));
        }
        wrong
    }

    /// All of them, but for where packets of nobody are counted.
    pub fn iter(&self) -> impl Iterator<Item = Entry> {
        let vifs = self.vifs.keys().map(|ifindex| Entry::Vif(*ifindex));
        let endpoints = self.endpoints.keys().map(|key| Entry::Endpoint(ip(*key)));
        let counters = self.counters.iter().filter(|it| **it != UNKNOWN.ifindex);
        vifs.chain(endpoints).chain(counters.map(|ifindex| Entry::Counters(*ifindex)))
    }

    /// The addresses that an entry of `VIFS` lets an interface use.
    pub fn addresses(&self, ifindex: u32) -> Addresses {
        let Some(entry) = self.vifs.get(&ifindex) else { return Addresses::default() };
        let has = |flag| entry.flags & flag != 0;
        Addresses {
            v4: has(VifEntry::HAS_IPV4).then(|| entry.ipv4.into()),
            v6: has(VifEntry::HAS_IPV6).then(|| entry.ipv6.into()),
        }
    }

    /// The snapshot of an agent that wrote an attachment's entries.
    #[cfg(test)]
    pub fn of(ifindex: u32, attachment: &Attachment) -> Self {
        let endpoints =
            endpoint_keys(attachment.vif.addresses).map(|key| (key, endpoint(ifindex, attachment)));
        Self {
            vifs: [(ifindex, vif_entry(attachment))].into(),
            endpoints: endpoints.collect(),
            counters: [ifindex].into(),
        }
    }

    /// Those of another one as well.
    #[cfg(test)]
    pub fn extend(&mut self, more: Self) {
        self.vifs.extend(more.vifs);
        self.endpoints.extend(more.endpoints);
        self.counters.extend(more.counters);
    }

    /// The same without an entry.
    #[cfg(test)]
    pub fn without(mut self, entry: Entry) -> Self {
        match entry {
            Entry::Vif(ifindex) => drop(self.vifs.remove(&ifindex)),
            Entry::Endpoint(address) => self.endpoints.retain(|key, _| ip(*key) != address),
            Entry::Counters(ifindex) => drop(self.counters.remove(&ifindex)),
        }
        self
    }
}

fn open<M: TryFrom<Map, Error = MapError>>(
    pins: &std::path::Path,
    map: &'static str,
) -> Result<M, MapFailure> {
    let path = layout::PINNED.iter().find(|it| it.name == map).map(|it| it.path(pins)).unwrap_or_default();
    let found = MapData::from_pin(path).and_then(Map::from_map_data);
    found.and_then(M::try_from).map_err(|source| MapFailure::new("open", map, source))
}

/// As it is shown: IPv4 by itself.
pub(super) fn ip(key: EndpointKey) -> IpAddr {
    let address = Ipv6Addr::from(key.address);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}
