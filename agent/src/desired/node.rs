//! The diff of node-wide state, which every pod depends on.

use ipnet::IpNet;

use super::{
    deviation::{Deviation, Kind, Subject},
    inventory::Inventory,
};
use crate::plug::{
    host,
    nft::{host_ports_table, masquerade_table},
};

/// Settings, routes of ranges and to other nodes, the nftables table, rows of policies, pins, and the
/// counters of packets that belong to no attachment.
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
    let redirects = actual.sends_redirects.then(|| {
        let of = Subject::Setting(host::REDIRECTS);
        let what = format!("{of} is 1, expected 0: pods' interfaces send redirects");
        Deviation { of, kind: Kind::NodeRedirects, what }
    });
    let range = |range: &IpNet| {
        let what = format!("the range {range} has no unreachable route");
        Deviation { of: Subject::Range(*range), kind: Kind::RangeRoute, what }
    };
    let table = actual.masquerade.as_ref().map(|difference| {
        let what = format!("the nftables table inet {} {difference}", masquerade_table::NAME);
        Deviation { of: Subject::MasqueradeTable, kind: Kind::Masquerade, what }
    });
    let ports = actual.host_ports.as_ref().map(|difference| {
        let what = format!("the nftables table inet {} {difference}", host_ports_table::NAME);
        Deviation { of: Subject::HostPortsTable, kind: Kind::HostPorts, what }
    });
    let nodes = actual.node_routes.iter().map(|what| Deviation {
        of: Subject::NodeRoutes,
        kind: Kind::NodeRoutes,
        what: what.clone(),
    });
    let policy = actual.policy_rows.iter().map(|what| Deviation {
        of: Subject::PolicyRows,
        kind: Kind::PolicyRows,
        what: what.clone(),
    });
    let settings = actual.not_forwarded.iter().map(setting).chain(redirects);
    let routes = actual.lost_range_routes.iter().map(range);
    settings
        .chain(routes)
        .chain(table)
        .chain(ports)
        .chain(nodes)
        .chain(policy)
        .chain(actual.lost_pins.iter().map(pin))
        .chain(counters)
        .collect()
}
