//! The maps of judged flows, which the programs write: their entries are neither counted nor exported,
//! because a walk over them is expensive. The agent only takes them over into maps of another capacity.

use std::path::Path;

use agent_common::{
    MAX_FRAGMENTS, RingKey, pending_flows,
    policy::{FragmentKey, FragmentPorts, View, ViewKey},
    policy_places,
};
use aya::{
    Pod,
    maps::{HashMap as BpfHashMap, MapData},
};

use super::super::table::{BPF_NOEXIST, MapFailure, MapSpec, count_entries, errno, max_entries, walk_limit};
use crate::crash::{self, Step};

const SETTING: &str = "--max-policy-flows";

pub(in crate::dataplane) const FLOWS: MapSpec = MapSpec {
    name: "POLICY_FLOWS",
    setting: SETTING,
    capacity: |capacities| capacities.policy_flows,
    count: count_entries::<ViewKey, View>,
};
pub(in crate::dataplane) const PENDING: MapSpec = MapSpec {
    name: "POLICY_PENDING",
    setting: SETTING,
    capacity: |capacities| pending_flows(capacities.policy_flows),
    count: count_entries::<ViewKey, View>,
};
pub(in crate::dataplane) const PLACES: MapSpec = MapSpec {
    name: "POLICY_PLACES",
    setting: SETTING,
    capacity: |capacities| policy_places(capacities.policy_flows),
    count: count_entries::<RingKey, ViewKey>,
};
pub(in crate::dataplane) const FRAGMENTS: MapSpec = MapSpec {
    name: "FRAGMENTS",
    setting: "MAX_FRAGMENTS of the build",
    capacity: |_| MAX_FRAGMENTS as u32,
    count: count_entries::<FragmentKey, FragmentPorts>,
};
pub(in crate::dataplane) const FRAGMENT_PLACES: MapSpec = MapSpec {
    name: "FRAGMENT_PLACES",
    setting: "MAX_FRAGMENTS of the build",
    capacity: |_| MAX_FRAGMENTS as u32,
    count: count_entries::<RingKey, FragmentKey>,
};

/// Adds the entries of one of the maps that are pinned in another directory and missing here.
pub(in crate::dataplane) fn copy(map: &MapSpec, from: &Path, to: &Path) -> Result<(), MapFailure> {
    match map.name {
        name if name == PLACES.name => copy_entries::<RingKey, ViewKey>(map, from, to),
        _ => copy_entries::<ViewKey, View>(map, from, to),
    }
}

fn copy_entries<K: Pod, V: Pod>(spec: &MapSpec, from: &Path, to: &Path) -> Result<(), MapFailure> {
    let from = spec.open_pin(from)?;
    let limit = walk_limit(max_entries(&from).map_err(spec.failure("read"))?);
    let from: BpfHashMap<MapData, K, V> = from.try_into().map_err(spec.failure("open"))?;
    let mut map: BpfHashMap<MapData, K, V> = spec.open_pin(to)?.try_into().map_err(spec.failure("open"))?;
    for (key, flow) in from.iter().take(limit).flatten() {
        let added = map.insert(&key, &flow, BPF_NOEXIST);
        crash::point(Step::MapWritten);
        match added {
            Err(error) if errno(&error) == Some(nix::errno::Errno::EEXIST) => {}
            added => added.map_err(spec.failure("write to"))?,
        }
    }
    Ok(())
}
