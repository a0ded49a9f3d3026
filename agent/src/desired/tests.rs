//! Actual states with one deviation each.

mod advice;
mod foreign;
mod scope;
mod texts;

use std::{collections::HashMap, net::IpAddr, slice::from_ref};

use agent_common::GATEWAY_MAC;
use ipnet::IpNet;

use super::*;
use crate::{
    dataplane::{Entries, Entry},
    plug::{
        GATEWAY,
        filter::{Attached, Hook},
        host,
        host_inventory::{HostInventory, HostLinkState},
        pod_end::PodEndState,
        reaper::{RETIRED, UNSTAMPED},
        stamp::Stamp,
    },
    registry::{Attachment, HostLink, HostPort, HostSide, Key, Rate, State, Transport, Wishes, testing},
};
use ferrule_vif::{Mac, Vif};

const INDEX: u32 = 7;
const PROGRAMS: [u32; 2] = [100, 101];
const MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

pub fn one(container: &str, last: u8, ifindex: u32) -> Attachment {
    let any = testing::attachment("eth0", None, last);
    Attachment {
        key: Key::try_from(format!("net/{container}/eth0")).unwrap(),
        state: State::Attached,
        netns: "/run/netns/x".into(),
        vif: Vif { mtu: 1500, ..any.vif },
        host: HostSide::Link(HostLink { ifname: format!("fr{container}"), ifindex }),
        ..any
    }
}

fn ours(hook: Hook, program: u32) -> Attached {
    let (kind, name) = ("bpf".to_owned(), Some("ours".to_owned()));
    Attached { hook, is_ours: true, priority: 1, kind, name, program: Some(program) }
}

/// The inventory of a node whose only attachment has no deviation.
fn good(it: &Attachment) -> Inventory {
    let host = it.host.device().unwrap();
    let link = HostLinkState {
        name: host.ifname.clone(),
        stamp: Some(Stamp::of(&it.key)),
        group: 0,
        master: None,
        up: true,
        mac: Some(Mac(GATEWAY_MAC)),
        mtu: 1500,
        forwards_ipv4: true,
        sends_redirects: false,
        routes_localnet: false,
        xdp: Vec::new(),
        peer: Some(2),
        peer_nsid: Some(0),
    };
    let [first, second] = PROGRAMS;
    let addresses = || it.vif.addresses.iter().map(|address| (host.ifindex, address));
    Inventory {
        host: HostInventory {
            links: [(host.ifindex, link)].into(),
            routes: addresses().collect(),
            neighbours: addresses().map(|at| (at, (it.vif.mac, true))).collect(),
            filters: [(host.ifindex, vec![ours(Hook::FromPod, first), ours(Hook::ToPod, second)])].into(),
            foreign_qdiscs: HashMap::new(),
            rates: HashMap::new(),
        },
        entries: Entries::of(host.ifindex, it),
        programs: PROGRAMS,
        ..Inventory::default()
    }
}

/// The pod's end of an attachment without a deviation.
fn good_pod(it: &Attachment) -> PodEndState {
    let routes = it.vif.all_routes(GATEWAY);
    PodEndState {
        up: true,
        mac: Some(it.vif.mac),
        mtu: it.vif.mtu,
        rate: None,
        addresses: it.vif.addresses.iter().collect(),
        neighbours: routes.iter().map(|route| (route.gateway, Mac(GATEWAY_MAC))).collect(),
        routes,
    }
}

fn kinds(found: &[Deviation]) -> Vec<Kind> {
    found.iter().map(|it| it.kind).collect()
}

/// What a pass over everything finds after one change.
fn after(change: impl FnOnce(&mut Inventory)) -> Vec<Kind> {
    let it = one("a", 2, INDEX);
    let mut actual = good(&it);
    change(&mut actual);
    kinds(&actual.deviations(from_ref(&it), from_ref(&it)))
}

fn after_link(change: impl FnOnce(&mut HostLinkState)) -> Vec<Kind> {
    after(|actual| change(link(actual)))
}

fn link(actual: &mut Inventory) -> &mut HostLinkState {
    actual.host.links.get_mut(&INDEX).unwrap()
}

fn filters(actual: &mut Inventory) -> &mut Vec<Attached> {
    actual.host.filters.get_mut(&INDEX).unwrap()
}

fn lose_entry(actual: &mut Inventory, entry: Entry) {
    actual.entries = std::mem::take(&mut actual.entries).without(entry);
}

fn lose_link(actual: &mut Inventory) {
    actual.host = HostInventory::default();
    actual.entries = Entries::of_none();
    actual.lost_links.insert(one("a", 2, INDEX).key);
}

/// One node with one attachment and its pod, to which a deviation is applied.
struct Case {
    attachment: Attachment,
    others: Vec<Attachment>,
    actual: Inventory,
    pod: Option<PodEndState>,
}

/// Everything that searches for deviations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum User {
    Check,
    RepeatedAdd,
    /// Also the commit of a waiting ADD, by the same function as a repeated ADD.
    Heal,
    Verify,
    Start,
}

const USERS: [User; 5] = [User::Check, User::RepeatedAdd, User::Heal, User::Verify, User::Start];

impl Case {
    fn new() -> Self {
        let attachment = one("a", 2, INDEX);
        let (actual, pod) = (good(&attachment), Some(good_pod(&attachment)));
        Self { attachment, others: Vec::new(), actual, pod }
    }

    fn link(&mut self) -> &mut HostLinkState {
        link(&mut self.actual)
    }

    fn pod(&mut self) -> &mut PodEndState {
        self.pod.as_mut().unwrap()
    }

    /// What [`verify`] does for CHECK and a repeated ADD, but for the reads.
    fn both_ends(&self) -> Vec<Kind> {
        let desired = desired(&self.attachment, PROGRAMS).unwrap();
        let pod = self.pod.as_ref().map_or(PodEnd::Missing, PodEnd::Present);
        let Inventory { host, entries, .. } = &self.actual;
        kinds(&desired.diff(&Actual { host, entries, netns_exists: true, pod }))
    }

    /// What [`verify_pod_end`] does for `ferrulectl verify`, but for the reads.
    fn pod_end(&self) -> Vec<Kind> {
        let desired = desired(&self.attachment, PROGRAMS).unwrap().without_chain();
        kinds(&desired.diff_pod(self.pod.as_ref().map_or(PodEnd::Missing, PodEnd::Present)))
    }

    fn whole_node(&self) -> Vec<Kind> {
        let all: Vec<_> = [&self.attachment].into_iter().chain(&self.others).cloned().collect();
        kinds(&self.actual.deviations(&all, &all))
    }

    fn found_by(&self, user: User, kind: Kind) -> bool {
        match user {
            User::Check | User::RepeatedAdd => self.both_ends().contains(&kind),
            // An examination of the attachment, or else the pass over the node.
            User::Heal => {
                let found = kinds(&self.actual.deviations_of(&self.attachment));
                found.contains(&kind) || self.whole_node().contains(&kind)
            }
            User::Verify => self.whole_node().contains(&kind) || self.pod_end().contains(&kind),
            User::Start => presence(&self.attachment, &self.actual.host.links) != Presence::Present,
        }
    }
}

/// Applies a deviation, and names its users. The match is exhaustive: a new kind needs a row.
fn apply(kind: Kind, case: &mut Case) -> &'static [User] {
    use User::{Check, Heal, RepeatedAdd, Verify};
    // The start rewrites filters and map entries anyway, and a pass over everything follows it at once.
    const HOST: &[User] = &[Check, RepeatedAdd, Heal, Verify];
    const PRESENCE: &[User] = &USERS;
    // The pod's end is the pod's own, so healing leaves it alone. Later plugins of a chain, which only CHECK
    // knows, may change the pod's routes.
    const POD: &[User] = &[Check, RepeatedAdd, Verify];
    const POD_ROUTES: &[User] = &[Check, RepeatedAdd];
    const NODE: &[User] = &[Heal, Verify];
    match kind {
        Kind::LinkGone => {
            lose_link(&mut case.actual);
            PRESENCE
        }
        Kind::LinkStamp => {
            case.link().stamp = None;
            PRESENCE
        }
        Kind::LinkGroup => {
            case.link().group = RETIRED;
            PRESENCE
        }
        Kind::LinkMaster => {
            case.link().master = Some(3);
            HOST
        }
        Kind::LinkName => {
            case.link().name = "other".to_owned();
            HOST
        }
        Kind::LinkMac => {
            case.link().mac = Some(MAC);
            HOST
        }
        Kind::LinkMtu => {
            case.link().mtu = 1400;
            HOST
        }
        Kind::LinkDown => {
            case.link().up = false;
            HOST
        }
        Kind::LinkLocalnet => {
            let (protocol, address) = (Transport::Tcp, None);
            let host_port = HostPort { protocol, address, port: 8080, pod_port: 80 };
            case.attachment.wishes = Wishes { host_ports: vec![host_port], ..Wishes::default() };
            HOST
        }
        Kind::LinkRate => {
            let rate = Rate { bits: 8_000_000, burst_bits: 0 };
            case.attachment.wishes = Wishes { ingress: Some(rate), ..Wishes::default() };
            case.actual.entries = Entries::of(INDEX, &case.attachment);
            HOST
        }
        Kind::LinkForwarding => {
            case.link().forwards_ipv4 = false;
            HOST
        }
        Kind::LinkRedirects => {
            case.link().sends_redirects = true;
            HOST
        }
        Kind::Qdisc => {
            filters(&mut case.actual).clear();
            case.actual.host.foreign_qdiscs.insert(INDEX, "ingress".to_owned());
            HOST
        }
        Kind::Filter(hook) => {
            filters(&mut case.actual).retain(|it| it.hook != hook);
            HOST
        }
        Kind::Route(address) => {
            case.actual.host.routes.remove(&(INDEX, address));
            HOST
        }
        Kind::Neighbour(address) => {
            case.actual.host.neighbours.remove(&(INDEX, address));
            HOST
        }
        Kind::Entry(entry) => {
            lose_entry(&mut case.actual, entry);
            HOST
        }
        Kind::PodLink => {
            case.pod = None;
            POD
        }
        Kind::PodMac => {
            case.pod().mac = Some(Mac(GATEWAY_MAC));
            POD
        }
        Kind::PodMtu => {
            case.pod().mtu = 1600;
            POD
        }
        Kind::PodRate => {
            case.attachment.wishes.egress = Some(Rate { bits: 8_000_000, burst_bits: 0 });
            POD
        }
        Kind::PodAddress(address) => {
            case.pod().addresses.remove(&address);
            POD
        }
        Kind::PodRoute(dst) => {
            case.pod().routes.retain(|route| route.dst != dst);
            POD_ROUTES
        }
        Kind::PodNeighbour(gateway) => {
            case.pod().neighbours.remove(&gateway);
            POD_ROUTES
        }
        Kind::AddressShared(_) => {
            case.others.push(one("b", 2, 8));
            NODE
        }
        Kind::StrayLink => {
            let stray = good(&one("gone", 9, 99)).host.links.remove(&99).unwrap();
            case.actual.host.links.insert(99, stray);
            NODE
        }
        Kind::StrayEntry => {
            case.actual.entries.extend(Entries::of(99, &one("gone", 9, 99)));
            NODE
        }
        Kind::NodeForwarding => {
            case.actual.not_forwarded.push(host::IPV4);
            NODE
        }
        Kind::NodeRedirects => {
            case.actual.sends_redirects = true;
            NODE
        }
        Kind::RangeRoute => {
            case.actual.lost_range_routes.push("10.0.0.0/24".parse().unwrap());
            NODE
        }
        Kind::Masquerade => {
            case.actual.masquerade = Some("is missing".to_owned());
            NODE
        }
        Kind::HostPorts => {
            case.actual.host_ports = Some("is missing".to_owned());
            NODE
        }
        Kind::NodeRoutes => {
            case.actual.node_routes.push("the route to 10.1.0.0/24 is missing or changed".to_owned());
            NODE
        }
        Kind::PolicyRows => {
            case.actual.policy_rows.push("the map VIFS.subject has 1 rows too few".to_owned());
            NODE
        }
        Kind::Pin => {
            case.actual.lost_pins.push("VIFS");
            NODE
        }
    }
}

/// Every kind, in a chain: the match is exhaustive, so a new kind needs a place in it.
fn every_kind() -> Vec<Kind> {
    let next = |kind: Kind| match kind {
        Kind::LinkGone => Some(Kind::LinkStamp),
        Kind::LinkStamp => Some(Kind::LinkGroup),
        Kind::LinkGroup => Some(Kind::LinkMaster),
        Kind::LinkMaster => Some(Kind::LinkName),
        Kind::LinkName => Some(Kind::LinkMac),
        Kind::LinkMac => Some(Kind::LinkMtu),
        Kind::LinkMtu => Some(Kind::LinkDown),
        Kind::LinkDown => Some(Kind::LinkForwarding),
        Kind::LinkForwarding => Some(Kind::LinkRedirects),
        Kind::LinkRedirects => Some(Kind::LinkLocalnet),
        Kind::LinkLocalnet => Some(Kind::LinkRate),
        Kind::LinkRate => Some(Kind::Qdisc),
        Kind::Qdisc => Some(Kind::Filter(Hook::FromPod)),
        Kind::Filter(Hook::FromPod) => Some(Kind::Filter(Hook::ToPod)),
        Kind::Filter(Hook::ToPod) => Some(Kind::Route(V4)),
        Kind::Route(_) => Some(Kind::Neighbour(V4)),
        Kind::Neighbour(_) => Some(Kind::Entry(Entry::Vif(INDEX))),
        Kind::Entry(Entry::Vif(_)) => Some(Kind::Entry(Entry::Endpoint(V4))),
        Kind::Entry(Entry::Endpoint(_)) => Some(Kind::Entry(Entry::Counters(INDEX))),
        Kind::Entry(Entry::Counters(_)) => Some(Kind::PodLink),
        Kind::PodLink => Some(Kind::PodMac),
        Kind::PodMac => Some(Kind::PodMtu),
        Kind::PodMtu => Some(Kind::PodRate),
        Kind::PodRate => Some(Kind::PodAddress(V4)),
        Kind::PodAddress(_) => Some(Kind::PodRoute(IpNet::V4(ipnet::Ipv4Net::default()))),
        Kind::PodRoute(_) => Some(Kind::PodNeighbour(GATEWAY.0.into())),
        Kind::PodNeighbour(_) => Some(Kind::AddressShared(V4)),
        Kind::AddressShared(_) => Some(Kind::StrayLink),
        Kind::StrayLink => Some(Kind::StrayEntry),
        Kind::StrayEntry => Some(Kind::NodeForwarding),
        Kind::NodeForwarding => Some(Kind::NodeRedirects),
        Kind::NodeRedirects => Some(Kind::RangeRoute),
        Kind::RangeRoute => Some(Kind::Masquerade),
        Kind::Masquerade => Some(Kind::HostPorts),
        Kind::HostPorts => Some(Kind::NodeRoutes),
        Kind::NodeRoutes => Some(Kind::PolicyRows),
        Kind::PolicyRows => Some(Kind::Pin),
        Kind::Pin => None,
    };
    std::iter::successors(Some(Kind::LinkGone), |kind| next(*kind)).collect()
}

#[test]
fn every_user_finds_every_kind_of_deviation_within_its_scope() {
    let good = Case::new();
    assert!(good.both_ends().is_empty() && good.whole_node().is_empty());
    assert!(!good.found_by(User::Start, Kind::LinkGone));
    for kind in every_kind() {
        let mut case = Case::new();
        let expected = apply(kind, &mut case);
        let found: Vec<_> = USERS.into_iter().filter(|user| case.found_by(*user, kind)).collect();
        assert_eq!(found, expected, "{kind:?}");
    }
}

#[test]
fn a_change_of_a_link_is_one_deviation() {
    assert_eq!(after(|_| {}), []);
    assert_eq!(after_link(|it| it.up = false), [Kind::LinkDown]);
    assert_eq!(after_link(|it| it.name = "other".to_owned()), [Kind::LinkName]);
    assert_eq!(after_link(|it| it.group = 5), [Kind::LinkGroup]);
    assert_eq!(after_link(|it| it.master = Some(3)), [Kind::LinkMaster]);
    assert_eq!(after_link(|it| it.forwards_ipv4 = false), [Kind::LinkForwarding]);
    assert_eq!(after_link(|it| it.sends_redirects = true), [Kind::LinkRedirects]);
    assert_eq!(after_link(|it| it.mtu = 1400), [Kind::LinkMtu]);
    assert_eq!(after_link(|it| it.mac = Some(MAC)), [Kind::LinkMac]);
}

#[test]
fn nothing_else_is_reported_of_a_link_without_its_stamp() {
    let found = after_link(|it| {
        it.stamp = None;
        it.up = false;
    });
    assert_eq!(found, [Kind::LinkStamp]);
    let foreign = after_link(|it| (it.stamp, it.mac) = (None, Some(MAC)));
    assert_eq!(foreign, [Kind::LinkStamp], "also of a link with neither stamp nor MAC");
}

#[test]
fn a_missing_link_is_a_deviation_only_while_its_namespace_exists() {
    assert_eq!(after(|actual| actual.host = HostInventory::default()), [], "a DEL will come");
    assert_eq!(after(lose_link), [Kind::LinkGone], "lost entries are no deviations of their own");
    let foreign = after(|actual| {
        (link(actual).stamp, link(actual).mac) = (None, Some(MAC));
        actual.lost_links.insert(one("a", 2, INDEX).key);
    });
    assert_eq!(foreign, [Kind::LinkGone], "a foreign link has the same index");
}

#[test]
fn a_filter_deviates_if_it_is_missing_or_runs_another_program() {
    assert_eq!(
        after(|actual| actual.host.filters.clear()),
        [Kind::Filter(Hook::FromPod), Kind::Filter(Hook::ToPod)]
    );
    let replaced = after(|actual| filters(actual)[1].program = Some(9));
    assert_eq!(replaced, [Kind::Filter(Hook::ToPod)]);
    let moved = after(|actual| filters(actual)[0].is_ours = false);
    assert_eq!(moved, [Kind::Filter(Hook::FromPod)], "the right program with another priority");
}

#[test]
fn node_wide_deviations_are_reported_once_and_not_for_each_attachment() {
    let found = after(|actual| {
        link(actual).forwards_ipv4 = false;
        actual.not_forwarded = vec![host::IPV4];
    });
    assert_eq!(found, [Kind::NodeForwarding]);
    assert_eq!(after(|actual| actual.lost_pins = vec!["VIFS"]), [Kind::Pin]);
    let unowned = Entry::Counters(0);
    assert_eq!(after(|actual| lose_entry(actual, unowned)), [Kind::Entry(unowned)]);
}

#[test]
fn a_foreign_qdisc_is_reported_instead_of_the_missing_filters() {
    let found = after(|actual| {
        filters(actual).clear();
        actual.host.foreign_qdiscs.insert(INDEX, "ingress".to_owned());
    });
    assert_eq!(found, [Kind::Qdisc]);
}

#[test]
fn routes_and_neighbours_deviate_by_address() {
    let (v4, v6) = ("10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap());
    assert_eq!(after(|it| it.host.routes.retain(|(_, address)| *address != v4)), [Kind::Route(v4)]);
    let gone = after(|it| it.host.neighbours.retain(|(_, address), _| *address != v6));
    assert_eq!(gone, [Kind::Neighbour(v6)]);
    let ages = after(|it| it.host.neighbours.extend([((INDEX, v6), (MAC, false))]));
    assert_eq!(ages, [Kind::Neighbour(v6)], "not permanent");
    let wrong = after(|it| it.host.neighbours.extend([((INDEX, v4), (Mac(GATEWAY_MAC), true))]));
    assert_eq!(wrong, [Kind::Neighbour(v4)]);
}

#[test]
fn map_entries_are_missing_wrong_or_stray() {
    for entry in [Entry::Vif(INDEX), Entry::Endpoint(V4), Entry::Counters(INDEX)] {
        assert_eq!(after(|actual| lose_entry(actual, entry)), [Kind::Entry(entry)]);
    }
    let wrong = after(|actual| actual.entries = Entries::of(INDEX, &one("b", 2, INDEX)));
    assert_eq!(wrong, [Kind::Entry(Entry::Vif(INDEX))], "the entry names another container");
    let left = after(|actual| actual.entries.extend(Entries::of(99, &one("gone", 9, 99))));
    assert_eq!(left, [Kind::StrayEntry; 4]);
}

#[test]
fn a_stamped_link_without_an_attachment_is_stray() {
    let stray = good(&one("gone", 9, 99)).host.links.remove(&99).unwrap();
    let found = |stray: HostLinkState| after(|actual| drop(actual.host.links.insert(99, stray)));
    assert_eq!(found(stray.clone()), [Kind::StrayLink]);
    assert_eq!(found(HostLinkState { group: RETIRED, ..stray.clone() }), [], "the reaper deletes it");
    let stamp = Some(Stamp::of(&one("a", 2, INDEX).key));
    assert_eq!(found(HostLinkState { stamp, ..stray }), [Kind::StrayLink], "an attachment has one interface");
}

#[test]
fn an_attachment_in_flight_has_no_strays() {
    let made = one("new", 9, 99);
    let actual = good(&made);
    // A Reserved attachment does not know its interface yet.
    let reserved = Attachment { state: State::Reserved, host: HostSide::Unplugged, ..made.clone() };
    let reserved = from_ref(&reserved);
    assert_eq!(actual.deviations(reserved, reserved), []);
    assert_eq!(actual.deviations(&[], reserved), [], "its ADD began during the read");
    assert_eq!(actual.deviations(from_ref(&made), &[]), [], "its DEL ended during the read");
    let going = Attachment { state: State::Unplugging, ..made };
    let empty = Inventory { programs: PROGRAMS, entries: Entries::of_none(), ..Inventory::default() };
    assert_eq!(empty.deviations(from_ref(&going), from_ref(&going)), []);
}

#[test]
fn both_attachments_with_a_shared_address_deviate() {
    let (a, b) = (one("a", 2, INDEX), one("b", 2, 8));
    let mut actual = good(&a);
    let other = good(&b);
    actual.host.links.extend(other.host.links);
    actual.host.routes.extend(other.host.routes);
    actual.host.neighbours.extend(other.host.neighbours);
    actual.host.filters.extend(other.host.filters);
    actual.entries.extend(other.entries);
    let both = [a, b];
    let found = actual.deviations(&both, &both);
    let shared = found.iter().filter(|it| matches!(it.kind, Kind::AddressShared(_)));
    assert_eq!(shared.count(), 4, "two families of two attachments: {found:#?}");
}

#[test]
fn metrics_that_the_vif_leaves_open_may_have_any_value() {
    let mut case = Case::new();
    case.pod().routes[0].priority = Some(7);
    assert_eq!(case.both_ends(), []);
    let dst = "172.16.0.0/12".parse().unwrap();
    let route = ferrule_vif::Route { mtu: Some(1400), ..ferrule_vif::Route::new(dst, None) };
    case.attachment.vif.routes.push(route);
    let routes = case.attachment.vif.all_routes(GATEWAY);
    case.pod().routes = routes;
    assert_eq!(case.both_ends(), []);
    case.pod().routes.last_mut().unwrap().mtu = Some(1300);
    assert_eq!(case.both_ends(), [Kind::PodRoute(dst)]);
}
