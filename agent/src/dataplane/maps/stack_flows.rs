//! `STACK_FLOWS`: flows between pods of this node that the host's stack translates.
//!
//! The programs write this LRU map; no row of it follows from an attachment. Its entries are neither counted
//! nor exported: an LRU map fills up in normal operation, and a walk over it is expensive.

use std::path::Path;

use agent_common::{Flow, FlowKey};
use aya::maps::{HashMap, MapData};

use super::table::{MapFailure, MapSpec, count_entries, max_entries, walk_limit};
use crate::crash::{self, Step};

pub const SPEC: MapSpec = MapSpec {
    name: "STACK_FLOWS",
    setting: "--max-stack-flows",
    capacity: |capacities| capacities.stack_flows,
    count: count_entries::<FlowKey, Flow>,
};

/// The capacity of the pinned map, in entries.
pub fn capacity(pins: &Path) -> Result<u32, MapFailure> {
    max_entries(&SPEC.open_pin(pins)?).map_err(SPEC.failure("read"))
}

/// Copies all flows from the map pinned in one directory to the map pinned in another.
pub fn copy(from: &Path, to: &Path) -> Result<(), MapFailure> {
    let from = SPEC.open_pin(from)?;
    let limit = walk_limit(max_entries(&from).map_err(SPEC.failure("read"))?);
    let from: HashMap<MapData, FlowKey, Flow> = from.try_into().map_err(SPEC.failure("open"))?;
    let mut map: HashMap<MapData, FlowKey, Flow> =
        SPEC.open_pin(to)?.try_into().map_err(SPEC.failure("open"))?;
    from.iter().take(limit).flatten().try_for_each(|(key, flow)| {
        let copied = map.insert(key, flow, 0);
        crash::point(Step::MapWritten);
        copied.map_err(SPEC.failure("write to"))
    })
}
