//! Reads the maps while others write to them.

use std::path::Path;

use agent_common::{Counters, Endpoint, EndpointKey, MAX_ENDPOINTS, MAX_VIFS, VifEntry, VifKey};
use aya::maps::{HashMap, Map, MapData, MapError, PerCpuHashMap};

use super::{
    entries::Entries,
    layout::{self, Layout},
    maps::MapFailure,
};

/// The pinned maps, opened once more to be read: a walk over them keeps nobody from writing.
pub(super) struct Reader {
    vifs: HashMap<MapData, VifKey, VifEntry>,
    endpoints: HashMap<MapData, EndpointKey, Endpoint>,
    counters: PerCpuHashMap<MapData, VifKey, Counters>,
}

// === impl Reader ===

impl Reader {
    /// Opens what was loaded and pinned.
    pub(super) fn open(pins: &Path) -> Result<Self, MapFailure> {
        Ok(Self {
            vifs: open(pins, layout::VIFS)?,
            endpoints: open(pins, layout::ENDPOINTS)?,
            counters: open(pins, layout::COUNTERS)?,
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

fn open<M: TryFrom<Map, Error = MapError>>(pins: &Path, map: Layout) -> Result<M, MapFailure> {
    let found = MapData::from_pin(map.path(pins)).and_then(Map::from_map_data);
    found.and_then(M::try_from).map_err(|source| MapFailure::new("open", map.name, source))
}
