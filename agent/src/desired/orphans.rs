//! Interfaces and map entries without an attachment, and addresses with two attachments.

use std::collections::HashSet;

use super::{
    deviation::{Deviation, Kind, Subject},
    inventory::Inventory,
};
use crate::{
    dataplane::Entry,
    plug::{reaper::RETIRED, stamp::Stamp},
    registry::{Attachment, State},
};

/// Stamped interfaces and map entries that belong to none of the `known` attachments. An ADD in flight has a
/// Reserved attachment, which does not know its interface yet.
pub(super) fn orphans(known: &[&Attachment], actual: &Inventory) -> Vec<Deviation> {
    let is_attached = |it: &Attachment| it.state == State::Attached;
    let indexes: HashSet<u32> = known.iter().filter_map(|it| it.host.ifindex()).collect();
    let addresses: HashSet<_> = known.iter().flat_map(|it| it.vif.addresses.iter()).collect();
    let in_flight: HashSet<_> =
        known.iter().filter(|it| !is_attached(it)).flat_map(|it| it.vif.addresses.iter()).collect();
    let mut found = Vec::new();
    for (ifindex, link) in &actual.host.links {
        let Some(key) = link.stamp.as_ref().map(Stamp::key) else { continue };
        let is_known = known
            .iter()
            .any(|it| it.key == *key && (!is_attached(it) || it.host.ifindex() == Some(*ifindex)));
        // An attachment's interface with the stamp of another attachment is a `LinkStamp` of the former.
        if !is_known && link.group != RETIRED && !indexes.contains(ifindex) {
            let (of, name) = (Subject::Interface(*ifindex, key.clone()), &link.name);
            let what =
                format!("the interface {name} ({ifindex}) has the stamp of {key}, but no attachment has it");
            found.push(Deviation { of, kind: Kind::StrayLink, what });
        }
    }
    for entry in actual.entries.iter() {
        let is_known = match entry {
            Entry::Endpoint(address) => addresses.contains(&address),
            Entry::Vif(ifindex) => {
                indexes.contains(&ifindex)
                    || actual.entries.addresses(ifindex).iter().any(|it| in_flight.contains(&it))
            }
            // The entry does not name its attachment.
            Entry::Counters(ifindex) => indexes.contains(&ifindex) || !in_flight.is_empty(),
        };
        if !is_known {
            let of = Subject::Entry(entry);
            let what = format!("{of} belongs to no attachment");
            found.push(Deviation { of, kind: Kind::StrayEntry, what });
        }
    }
    found
}

/// The addresses of an attachment that other attachments have, too.
pub fn shared_addresses(it: &Attachment, all: &[Attachment]) -> Vec<Deviation> {
    let mut found = Vec::new();
    for other in all.iter().filter(|other| other.key != it.key) {
        for address in other.vif.addresses.iter() {
            if it.vif.addresses.iter().any(|own| own == address) {
                let of = Subject::Attachment(it.key.clone());
                let what = format!("{} has the address {address}, too; delete one of the pods", other.key);
                found.push(Deviation { of, kind: Kind::AddressShared(address), what });
            }
        }
    }
    found
}
