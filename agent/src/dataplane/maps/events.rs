//! `EVENTS`: the ring buffer of records about dropped packets and flows, see [`agent_common::event`].

use agent_common::MAX_EVENT_BYTES;

use super::table::MapSpec;

pub const SPEC: MapSpec = MapSpec {
    name: "EVENTS",
    setting: "MAX_EVENT_BYTES",
    capacity: |_| MAX_EVENT_BYTES as u32,
    // Records are not entries: another size never loses any that count.
    count: |_| Ok(0),
};
