//! Snapshots that differ in one thing.

use agent_common::GATEWAY_MAC;

use super::*;
use crate::{
    cluster::PodRef,
    plug::filter::Attached,
    registry::{HostSide, NetnsId},
};
use ferrule_vif::{Addresses, Vif, VifKind};

const INDEX: u32 = 7;
const PROGRAMS: [u32; 2] = [100, 101];
const MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn one(container: &str, last: u8, ifindex: u32) -> Attachment {
    let v4 = [10, 0, 0, last].into();
    let addresses = Addresses { v4: Some(v4), v6: Some([0xfd00, 0, 0, 0, 0, 0, 0, last.into()].into()) };
    Attachment {
        key: Key::try_from(format!("net/{container}/eth0")).unwrap(),
        state: State::Attached,
        pod: PodRef::default(),
        netns: "/run/netns/x".into(),
        netns_id: NetnsId { dev: 4, ino: 7 },
        vif: Vif {
            kind: VifKind::Veth,
            mac: MAC,
            mtu: 1500,
            addresses,
            gateways: Addresses::default(),
            is_default: true,
            routes: Vec::new(),
        },
        with: None,
        host: HostSide::Link(HostLink { ifname: format!("fr{container}"), ifindex }),
        created_at_ms: 0,
        created_since_boot_ns: 0,
    }
}

fn ours(hook: Hook, program: u32) -> Attached {
    let (kind, name) = ("bpf".to_owned(), Some("ours".to_owned()));
    Attached { hook, is_ours: true, priority: 1, kind, name, program: Some(program) }
}

/// What there is when all is well.
fn well(it: &Attachment) -> Snapshot {
    let host = it.host.device().unwrap();
    let end = End {
        name: host.ifname.clone(),
        stamp: Some(Stamp::of(&it.key)),
        group: 0,
        master: None,
        up: true,
        mac: Some(Mac(GATEWAY_MAC)),
        mtu: 1500,
        forwards_ipv4: true,
        xdp: Vec::new(),
    };
    let [ingress, egress] = PROGRAMS;
    let addresses = || it.vif.addresses.iter().map(|address| (host.ifindex, address));
    Snapshot {
        ends: Ends {
            links: [(host.ifindex, end)].into(),
            routes: addresses().collect(),
            neighbours: addresses().map(|at| (at, (it.vif.mac, true))).collect(),
            filters: [(host.ifindex, vec![ours(Hook::FromPod, ingress), ours(Hook::ToPod, egress)])].into(),
            strangers: HashMap::new(),
        },
        entries: Entries::of(host.ifindex, it),
        programs: PROGRAMS,
        ..Snapshot::default()
    }
}

fn kinds(found: &[Deviation]) -> Vec<Kind> {
    found.iter().map(|it| it.kind).collect()
}

/// What one change makes of it.
fn after(change: impl FnOnce(&mut Snapshot)) -> Vec<Kind> {
    let it = one("a", 2, INDEX);
    let mut seen = well(&it);
    change(&mut seen);
    let all = std::slice::from_ref(&it);
    kinds(&super::all(all, all, &seen))
}

fn after_link(change: impl FnOnce(&mut End)) -> Vec<Kind> {
    after(|seen| change(seen.ends.links.get_mut(&INDEX).unwrap()))
}

#[test]
fn nothing_deviates_where_all_is_as_it_was_made() {
    assert_eq!(after(|_| {}), []);
}

#[test]
fn each_change_of_an_interface_is_told_by_itself() {
    assert_eq!(after_link(|it| it.up = false), [Kind::LinkDown]);
    assert_eq!(after_link(|it| it.name = "other".to_owned()), [Kind::LinkName]);
    assert_eq!(after_link(|it| it.group = 5), [Kind::LinkGroup]);
    assert_eq!(after_link(|it| it.master = Some(3)), [Kind::LinkMaster]);
    assert_eq!(after_link(|it| it.forwards_ipv4 = false), [Kind::LinkForwarding]);
    assert_eq!(after_link(|it| it.mtu = 1400), [Kind::LinkMtu]);
    assert_eq!(after_link(|it| it.mac = Some(MAC)), [Kind::LinkMac]);
}

#[test]
fn an_interface_without_its_stamp_is_told_and_nothing_else_of_it() {
    let found = after_link(|it| {
        it.stamp = None;
        it.up = false;
    });
    assert_eq!(found, [Kind::LinkStamp]);
    assert!(!Kind::LinkStamp.is_repairable(), "it is not ours to touch");
    let disguised = after_link(|it| (it.stamp, it.mac) = (None, Some(MAC)));
    assert_eq!(disguised, [Kind::LinkStamp], "nor is one that has nothing of ours any more");
}

#[test]
fn an_interface_is_missed_only_while_its_namespace_lives() {
    assert_eq!(after(|seen| seen.ends = Ends::default()), [], "a DEL will come");
    let lives = after(|seen| {
        seen.ends = Ends::default();
        seen.entries = Entries::of_none();
        seen.living.insert(one("a", 2, INDEX).key);
    });
    assert_eq!(lives, [Kind::LinkGone], "what goes with it is not told by itself");
    let stranger = after(|seen| {
        let end = seen.ends.links.get_mut(&INDEX).unwrap();
        (end.stamp, end.mac) = (None, Some(MAC));
        seen.living.insert(one("a", 2, INDEX).key);
    });
    assert_eq!(stranger, [Kind::LinkGone], "somebody else has got its index");
}

#[test]
fn a_filter_deviates_if_it_is_missing_or_another_program() {
    assert_eq!(
        after(|seen| seen.ends.filters.clear()),
        [Kind::Filter(Hook::FromPod), Kind::Filter(Hook::ToPod)]
    );
    let replaced = after(|seen| seen.ends.filters.get_mut(&INDEX).unwrap()[1].program = Some(9));
    assert_eq!(replaced, [Kind::Filter(Hook::ToPod)]);
    let moved = after(|seen| seen.ends.filters.get_mut(&INDEX).unwrap()[0].is_ours = false);
    assert_eq!(moved, [Kind::Filter(Hook::FromPod)], "the right program at another place");
}

#[test]
fn what_the_node_lacks_is_told_once_and_not_by_each_attachment() {
    let found = after(|seen| {
        seen.ends.links.get_mut(&INDEX).unwrap().forwards_ipv4 = false;
        seen.not_forwarded = vec![host::IPV4];
    });
    assert_eq!(found, [Kind::NodeForwarding]);
    assert_eq!(after(|seen| seen.lost_pins = vec!["VIFS"]), [Kind::Pin]);
    let nobodys = Entry::Counters(0);
    let found = after(|seen| seen.entries = std::mem::take(&mut seen.entries).without(nobodys));
    assert_eq!(found, [Kind::Entry(nobodys)]);
}

#[test]
fn where_somebody_elses_qdisc_is_no_filter_is_missed_and_none_is_put() {
    let found = after(|seen| {
        seen.ends.filters.get_mut(&INDEX).unwrap().clear();
        seen.ends.strangers.insert(INDEX, "ingress".to_owned());
    });
    assert_eq!(found, [Kind::Qdisc]);
    assert!(!Kind::Qdisc.is_repairable(), "it is not ours to delete");
}

#[test]
fn what_others_put_beside_ours_is_shown_and_does_not_deviate() {
    let it = one("a", 2, INDEX);
    let mut seen = well(&it);
    let theirs = Attached {
        is_ours: false,
        priority: 9,
        kind: "flower".to_owned(),
        name: None,
        ..ours(Hook::ToPod, 0)
    };
    seen.ends.filters.get_mut(&INDEX).unwrap().push(Attached { program: None, ..theirs });
    seen.ends.links.get_mut(&INDEX).unwrap().xdp.push(33);
    assert_eq!(attachment(&it, &seen), []);
    let foreign: Vec<_> = foreign(&it, &seen, &[vec![44], vec![]]).into_iter().map(|it| it.what).collect();
    assert_eq!(foreign.len(), 3, "{foreign:?}");
    for (told, part) in foreign.iter().zip(["flower filter on ingress", "XDP program 33", "tcx program 44"]) {
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn routes_and_neighbours_are_missed_by_address() {
    let (v4, v6) = ("10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap());
    assert_eq!(after(|seen| seen.ends.routes.retain(|(_, address)| *address != v4)), [Kind::Route(v4)]);
    let gone = after(|seen| seen.ends.neighbours.retain(|(_, address), _| *address != v6));
    assert_eq!(gone, [Kind::Neighbour(v6)]);
    let ages = after(|seen| seen.ends.neighbours.extend([((INDEX, v6), (MAC, false))]));
    assert_eq!(ages, [Kind::Neighbour(v6)], "it has to be permanent");
    let lies = after(|seen| seen.ends.neighbours.extend([((INDEX, v4), (Mac(GATEWAY_MAC), true))]));
    assert_eq!(lies, [Kind::Neighbour(v4)]);
}

#[test]
fn entries_are_missing_wrong_or_left_over() {
    let v4 = "10.0.0.2".parse().unwrap();
    for entry in [Entry::Vif(INDEX), Entry::Endpoint(v4), Entry::Counters(INDEX)] {
        let found = after(|seen| seen.entries = std::mem::take(&mut seen.entries).without(entry));
        assert_eq!(found, [Kind::Entry(entry)]);
    }
    let wrong = after(|seen| seen.entries = Entries::of(INDEX, &one("b", 2, INDEX)));
    assert_eq!(wrong, [Kind::Entry(Entry::Vif(INDEX))], "it names another container");
    let left = after(|seen| seen.entries.extend(Entries::of(99, &one("gone", 9, 99))));
    assert_eq!(left, [Kind::StrayEntry; 4]);
}

#[test]
fn an_interface_with_a_stamp_of_nobody_is_a_stray() {
    let stray = well(&one("gone", 9, 99)).ends.links.remove(&99).unwrap();
    let found = |stray: End| after(|seen| drop(seen.ends.links.insert(99, stray)));
    assert_eq!(found(stray.clone()), [Kind::StrayLink]);
    assert_eq!(found(End { group: DEAD, ..stray.clone() }), [], "the reaper has it");
    let twice = End { stamp: Some(Stamp::of(&one("a", 2, INDEX).key)), ..stray };
    assert_eq!(found(twice), [Kind::StrayLink], "an attachment has one interface");
}

#[test]
fn what_a_call_is_making_is_no_stray() {
    let made = one("new", 9, 99);
    let seen = well(&made);
    // It is not known yet which interface it gets.
    let reserved = Attachment { state: State::Reserved, host: HostSide::Unplugged, ..made.clone() };
    let reserved = std::slice::from_ref(&reserved);
    assert_eq!(all(reserved, reserved, &seen), []);
    assert_eq!(all(&[], reserved, &seen), [], "it began while we looked");
    assert_eq!(all(std::slice::from_ref(&made), &[], &seen), [], "it went while we looked");
    let going = Attachment { state: State::Unplugging, ..made };
    let nothing = Snapshot { programs: PROGRAMS, entries: Entries::of_none(), ..Snapshot::default() };
    assert_eq!(all(std::slice::from_ref(&going), std::slice::from_ref(&going), &nothing), []);
}

#[test]
fn two_with_one_address_are_both_told() {
    let (a, b) = (one("a", 2, INDEX), one("b", 2, 8));
    let mut seen = well(&a);
    let other = well(&b);
    seen.ends.links.extend(other.ends.links);
    seen.ends.routes.extend(other.ends.routes);
    seen.ends.neighbours.extend(other.ends.neighbours);
    seen.ends.filters.extend(other.ends.filters);
    seen.entries.extend(other.entries);
    let both = [a, b];
    let found = all(&both, &both, &seen);
    let shared = found.iter().filter(|it| matches!(it.kind, Kind::AddressShared(_)));
    assert_eq!(shared.count(), 4, "each of two families by each of two: {found:#?}");
}
