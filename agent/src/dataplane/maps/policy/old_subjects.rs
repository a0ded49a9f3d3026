//! `SUBJECTS` of version 5: what judges each pod, in a map of its own.

use std::path::Path;

use agent_common::{VifKey, policy::Subject};
use aya::maps::{HashMap as BpfHashMap, MapData};

use super::super::{
    subjects::Subjects,
    table::{MapFailure, MapSpec, count_entries, max_entries, walk_limit},
};

pub(in crate::dataplane) const SPEC: MapSpec = MapSpec {
    name: "SUBJECTS",
    setting: "--max-vifs",
    capacity: |capacities| capacities.vifs,
    count: count_entries::<VifKey, Subject>,
};

/// Takes over what judges the pods of an earlier agent, for the rows that are written next. A number that is
/// too large today is left out: its pod passes nothing until policies are listed.
pub(in crate::dataplane) fn copy(from: &Path, to: &Subjects) -> Result<(), MapFailure> {
    let map = SPEC.open_pin(from)?;
    let limit = walk_limit(max_entries(&map).map_err(SPEC.failure("read"))?);
    let map: BpfHashMap<MapData, VifKey, Subject> = map.try_into().map_err(SPEC.failure("open"))?;
    for (VifKey { ifindex }, subject) in map.iter().take(limit).flatten() {
        if subject.pack().unpack() == subject {
            to.add(ifindex, subject)?;
        } else {
            tracing::warn!(
                ifindex,
                ?subject,
                "what judges the interface is not taken over: too large a number"
            );
        }
    }
    Ok(())
}
