//! The comparison: a snapshot of kernel and maps against the registry. Nothing here looks at anything.

use std::collections::{HashMap, HashSet};

use agent_common::GATEWAY_MAC;

use super::deviation::{Deviation, Foreign, Kind, Subject};
use crate::{
    dataplane::{Entries, Entry},
    plug::{
        ends::{End, Ends},
        filter::{self, Hook},
        host,
        reaper::DEAD,
        stamp::Stamp,
    },
    registry::{Attachment, HostLink, Key, State},
};
use ferrule_vif::Mac;

/// What there is.
#[derive(Clone, Default)]
pub(super) struct Snapshot {
    pub ends: Ends,
    pub entries: Entries,
    /// The IDs of this agent's programs, in the order of [`Hook::ALL`].
    pub programs: [u32; 2],
    /// The attachments without an interface whose namespace lives. Where it has ended, all is as it has to be until a DEL.
    pub living: HashSet<Key>,
    /// The settings by which the node does not forward what it should.
    pub not_forwarded: Vec<&'static str>,
    /// The maps that have lost their pins.
    pub lost_pins: Vec<&'static str>,
}

/// All that deviates. `before` and `after` are the attachments before and after the snapshot was made: what is in work is in
/// one of them.
pub(super) fn all(before: &[Attachment], after: &[Attachment], seen: &Snapshot) -> Vec<Deviation> {
    let now: HashMap<&Key, &Attachment> = after.iter().map(|it| (&it.key, it)).collect();
    let settled: Vec<_> = before.iter().filter(|it| now.get(&it.key) == Some(it)).collect();
    let mut found: Vec<_> = settled.iter().flat_map(|it| attachment(it, seen)).collect();
    found.extend(settled.iter().flat_map(|it| shared(it, after)));
    let known: Vec<_> = before.iter().chain(after).collect();
    found.extend(strays(&known, seen));
    found.extend(node(seen));
    found
}

/// What of the node deviates, of which all attachments suffer.
fn node(seen: &Snapshot) -> Vec<Deviation> {
    let setting = |name: &&'static str| {
        let of = Subject::Setting(name);
        let what = format!("{of} is 0: pods reach nobody beyond this node");
        Deviation { of, kind: Kind::NodeForwarding, what }
    };
    let pin = |map: &&'static str| {
        let what =
            format!("the map {map} is not pinned any more: the next agent would begin with an empty one");
        Deviation { of: Subject::Pin(map), kind: Kind::Pin, what }
    };
    let nobody = seen.entries.missing_of_nobody().map(|entry| {
        let of = Subject::Entry(entry);
        let what = format!("{of} is missing: what is dropped of no pod's is not counted");
        Deviation { of, kind: Kind::Entry(entry), what }
    });
    let settings = seen.not_forwarded.iter().map(setting);
    settings.chain(seen.lost_pins.iter().map(pin)).chain(nobody).collect()
}

/// What deviates of one attachment.
pub(super) fn attachment(it: &Attachment, seen: &Snapshot) -> Vec<Deviation> {
    let Some(host) = it.host.device().filter(|_| it.state == State::Attached) else { return Vec::new() };
    let mut found = Vec::new();
    let mut say = |kind, what: String| found.push(Deviation::of(it, kind, what));
    let HostLink { ifname, ifindex } = host;
    let Some(end) = seen.ends.links.get(ifindex).filter(|end| is_end_of(end, it)) else {
        if seen.living.contains(&it.key) {
            say(
                Kind::LinkGone,
                format!("the host's interface {ifname} ({ifindex}) is gone, and its pod's namespace is not"),
            );
        } else if let Some(other) = seen.ends.links.get(ifindex) {
            say(
                Kind::LinkStamp,
                format!(
                    "{} ({ifindex}) has neither the alias nor the MAC of {ifname}: it is not touched",
                    other.name
                ),
            );
        }
        return found;
    };
    if end.stamp.as_ref() == Some(&Stamp::of(&it.key)) {
        link(it, host, end, seen, &mut say);
    } else {
        say(
            Kind::LinkStamp,
            format!("the alias of {} ({ifindex}) is not {}: it is not touched", end.name, Stamp::of(&it.key)),
        );
    }
    for entry in seen.entries.wrong(*ifindex, it) {
        say(Kind::Entry(entry), format!("{} is missing, or says something else", Subject::Entry(entry)));
    }
    found
}

/// Which addresses of an attachment others have too.
pub(super) fn shared(it: &Attachment, all: &[Attachment]) -> Vec<Deviation> {
    let others = all.iter().filter(|other| other.key != it.key);
    let mut found = Vec::new();
    for (other, address) in
        others.flat_map(|other| other.vif.addresses.iter().map(move |address| (other, address)))
    {
        if it.vif.addresses.iter().any(|own| own == address) {
            let what = format!("{} has the address {address} too: delete one of the pods", other.key);
            found.push(Deviation::of(it, Kind::AddressShared(address), what));
        }
    }
    found
}

/// What others have put on an attachment's interface.
pub(super) fn foreign(it: &Attachment, seen: &Snapshot, tcx: &[Vec<u32>; 2]) -> Vec<Foreign> {
    let Some(host) = it.host.device() else { return Vec::new() };
    let (filters, end) = (seen.ends.filters.get(&host.ifindex), seen.ends.links.get(&host.ifindex));
    let filters = filters.into_iter().flatten().filter(|filter| !filter.is_ours).map(|filter| {
        let name = filter.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
        let program = filter.program.map(|id| format!(", program {id}")).unwrap_or_default();
        format!(
            "a {} filter{name} on {}, priority {}{program}",
            filter.kind,
            direction(filter.hook),
            filter.priority
        )
    });
    let xdp =
        end.into_iter().flat_map(|end| &end.xdp).map(|id| format!("an XDP program {id}, before our filters"));
    let tcx = Hook::ALL.into_iter().zip(tcx).flat_map(|((hook, _), ids)| {
        ids.iter().map(move |id| format!("a tcx program {id} on {}, before our filters", direction(hook)))
    });
    let all = filters.chain(xdp).chain(tcx);
    all.map(|what| Foreign { key: it.key.clone(), host: host.clone(), what }).collect()
}

/// Whether an interface is the one that was made for an attachment, though its alias may have been changed. The kernel uses
/// an index again only when it was asked for.
fn is_end_of(end: &End, it: &Attachment) -> bool {
    end.stamp.as_ref() == Some(&Stamp::of(&it.key)) || end.mac == Some(Mac(GATEWAY_MAC))
}

fn link(it: &Attachment, link: &HostLink, end: &End, seen: &Snapshot, say: &mut impl FnMut(Kind, String)) {
    let HostLink { ifname, ifindex } = link;
    if end.group != 0 {
        let dead = if end.group == DEAD { ", that of dead interfaces" } else { "" };
        say(Kind::LinkGroup, format!("{ifname} is in the link group {}{dead}", end.group));
    }
    if let Some(master) = end.master {
        say(
            Kind::LinkMaster,
            format!("what comes in by {ifname} is given to the interface {master}, its master"),
        );
    }
    if end.name != *ifname {
        say(Kind::LinkName, format!("the interface {ifname} ({ifindex}) is called {}", end.name));
    }
    if end.mac != Some(Mac(GATEWAY_MAC)) {
        say(Kind::LinkMac, format!("{ifname} has not the MAC {}", Mac(GATEWAY_MAC)));
    }
    if end.mtu != it.vif.mtu {
        say(Kind::LinkMtu, format!("{ifname} has the MTU {}, not {}", end.mtu, it.vif.mtu));
    }
    if !end.up {
        say(Kind::LinkDown, format!("{ifname} is down"));
    }
    let is_ipv4 = it.vif.addresses.v4.is_some();
    // Where the node does not, none of its interfaces does: that is told once.
    if is_ipv4 && !end.forwards_ipv4 && !seen.not_forwarded.contains(&host::IPV4) {
        say(Kind::LinkForwarding, format!("net.ipv4.conf.{}.forwarding is 0", end.name));
    }
    let stranger = seen.ends.strangers.get(ifindex);
    if let Some(kind) = stranger {
        let why = filter::in_our_place(kind, &end.name);
        say(Kind::Qdisc, format!("neither of the filters from_pod and to_pod can be on {ifname}: {why}"));
    }
    let filters = seen.ends.filters.get(ifindex).map(Vec::as_slice).unwrap_or_default();
    for ((hook, name), program) in Hook::ALL.into_iter().zip(seen.programs).filter(|_| stranger.is_none()) {
        let ours = filters.iter().find(|filter| filter.hook == hook && filter.is_ours);
        match ours.map(|filter| filter.program) {
            Some(Some(id)) if id == program => {}
            Some(id) => {
                let id = id.map_or_else(|| "none".to_owned(), |id| id.to_string());
                say(Kind::Filter(hook), format!("{name} on {ifname} is the program {id}, not {program}"));
            }
            None => say(Kind::Filter(hook), format!("{name} is not on {ifname}")),
        }
    }
    for address in it.vif.addresses.iter() {
        if !seen.ends.routes.contains(&(*ifindex, address)) {
            say(Kind::Route(address), format!("the host has no route to {address} through {ifname}"));
        }
        if seen.ends.neighbours.get(&(*ifindex, address)) != Some(&(it.vif.mac, true)) {
            say(
                Kind::Neighbour(address),
                format!("the host has no permanent neighbour {address} on {ifname}"),
            );
        }
    }
}

/// Interfaces and entries that belong to none of the attachments. What an ADD is making has an attachment already, which
/// does not know its interface yet.
fn strays(known: &[&Attachment], seen: &Snapshot) -> Vec<Deviation> {
    let is_settled = |it: &Attachment| it.state == State::Attached;
    let indexes: HashSet<u32> = known.iter().filter_map(|it| it.host.ifindex()).collect();
    let addresses: HashSet<_> = known.iter().flat_map(|it| it.vif.addresses.iter()).collect();
    let in_work: HashSet<_> =
        known.iter().filter(|it| !is_settled(it)).flat_map(|it| it.vif.addresses.iter()).collect();
    let mut found = Vec::new();
    for (ifindex, end) in &seen.ends.links {
        let Some(key) = end.stamp.as_ref().map(Stamp::key) else { continue };
        let is_known =
            known.iter().any(|it| it.key == *key && (!is_settled(it) || it.host.ifindex() == Some(*ifindex)));
        // Of an attachment that carries another's stamp: that is told of the attachment.
        if !is_known && end.group != DEAD && !indexes.contains(ifindex) {
            let what = format!(
                "the interface {} ({ifindex}) carries the stamp of {key}, which is not attached by it",
                end.name
            );
            found.push(Deviation {
                of: Subject::Interface(*ifindex, key.clone()),
                kind: Kind::StrayLink,
                what,
            });
        }
    }
    for entry in seen.entries.iter() {
        let is_known = match entry {
            Entry::Endpoint(address) => addresses.contains(&address),
            Entry::Vif(ifindex) => {
                indexes.contains(&ifindex)
                    || seen.entries.addresses(ifindex).iter().any(|it| in_work.contains(&it))
            }
            // It tells nothing of whose it is.
            Entry::Counters(ifindex) => indexes.contains(&ifindex) || !in_work.is_empty(),
        };
        if !is_known {
            let what = format!("{} belongs to no attachment", Subject::Entry(entry));
            found.push(Deviation { of: Subject::Entry(entry), kind: Kind::StrayEntry, what });
        }
    }
    found
}

/// The pod's.
fn direction(hook: Hook) -> &'static str {
    match hook {
        Hook::FromPod => "egress (the hook ingress)",
        Hook::ToPod => "ingress (the hook egress)",
    }
}

#[cfg(test)]
mod tests;
