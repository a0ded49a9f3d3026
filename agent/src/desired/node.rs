//! The diff of node-wide state, which every pod depends on.

use super::{
    deviation::{Deviation, Kind, Subject},
    inventory::Inventory,
};

/// Forwarding, pins, and the counters of packets that belong to no attachment.
pub(super) fn node_deviations(actual: &Inventory) -> Vec<Deviation> {
    let setting = |name: &&'static str| {
        let of = Subject::Setting(name);
        let what = format!("{of} is 0, expected 1: pods cannot reach destinations beyond this node");
        Deviation { of, kind: Kind::NodeForwarding, what }
    };
    let pin = |map: &&'static str| {
        let what = format!("the map {map} has no pin: the next agent would start with an empty map");
        Deviation { of: Subject::Pin(map), kind: Kind::Pin, what }
    };
    let counters = actual.entries.missing_unknown_counters().map(|entry| {
        let of = Subject::Entry(entry);
        let what = format!("{of} is missing: drops that belong to no attachment are not counted");
        Deviation { of, kind: Kind::Entry(entry), what }
    });
    let settings = actual.not_forwarded.iter().map(setting);
    settings.chain(actual.lost_pins.iter().map(pin)).chain(counters).collect()
}
