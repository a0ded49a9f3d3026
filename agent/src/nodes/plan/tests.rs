//! What a node should have, for a neighbour and for a node behind a router.

use super::*;
use crate::nodes::Node;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn node(name: &str, addresses: &[&str], ranges: &[&str]) -> Node {
    Node {
        uid: format!("uid-{name}").into(),
        name: name.into(),
        zone: None,
        addresses: addresses.iter().map(|it| ip(it)).collect(),
        ranges: ranges.iter().map(|it| net(it)).collect(),
    }
}

/// This node, one on the same network, and one behind a router.
fn nodes() -> Nodes {
    Nodes {
        is_synced: true,
        own: Some(node("a", &["192.0.2.1", "2001:db8::1"], &["10.1.0.0/24", "fd00:1::/64"])),
        others: vec![
            node("b", &["192.0.2.2", "2001:db8::2"], &["10.2.0.0/24", "fd00:2::/64"]),
            node("c", &["198.51.100.3"], &["10.3.0.0/24", "fd00:3::/64"]),
        ],
        refused: Vec::new(),
    }
}

fn underlay() -> Underlay {
    let hop = |gateway: Option<&str>| Hop {
        ifindex: 2,
        gateway: gateway.map(ip),
        source: Some(ip("192.0.2.1")),
        mtu: 1500,
        is_spread: false,
        has_neighbours: true,
    };
    Underlay {
        own: ["192.0.2.1", "2001:db8::1"].map(ip).into(),
        hops: HashMap::from([
            (ip("192.0.2.2"), hop(None)),
            (ip("2001:db8::2"), hop(None)),
            (ip("198.51.100.3"), hop(Some("192.0.2.254"))),
        ]),
        uplinks: BTreeSet::from([2]),
        has_ipv6_pods: true,
        needs_stack: None,
        foreign: Foreign::default(),
    }
}

fn plan(mode: Mode) -> Plan {
    Plan::new(Settings { mode, port: 4789, fast_path: true }, &Arc::new(nodes()), &underlay())
}

fn places(routes: &Routes) -> Vec<String> {
    routes.keys().map(|(table, to)| format!("{table:?} {to}")).collect()
}

#[test]
fn auto_routes_to_neighbours_directly_and_tunnels_to_others_also_what_pods_send_to_the_node() {
    let plan = plan(Mode::Auto);
    let routes = plan.routes(Some(9));
    let expected = [
        "Main 10.2.0.0/24",
        "Main 10.3.0.0/24",
        "Main fd00:2::/64",
        "Main fd00:3::/64",
        "OfPods 198.51.100.3/32",
    ];
    assert_eq!(places(&routes), expected);
    let direct = &routes[&(Table::Main, net("fd00:2::/64"))];
    let gateway = Next::Gateway(ip("2001:db8::2"));
    assert_eq!((direct.ifindex, &direct.next, direct.mtu), (2, &gateway, 1500));
    assert_eq!(direct.source, Some(ip("2001:db8::1")));
    let tunnelled = &routes[&(Table::Main, net("fd00:3::/64"))];
    let tunnel = Next::Tunnel { remote: ip("198.51.100.3"), source: Some(ip("192.0.2.1")) };
    assert_eq!((tunnelled.ifindex, &tunnelled.next, tunnelled.mtu), (9, &tunnel, 1450));
    assert_eq!(tunnelled.source, Some(ip("2001:db8::1")));
    assert_eq!(plan.sources, [net("10.1.0.0/24"), net("fd00:1::/64")].into());
    assert_eq!(plan.mtu, Some(1450));
    let addresses = ["192.0.2.1", "2001:db8::1"].map(ip).into();
    let tunnel = Tunnel { port: 4789, mtu: 1450, addresses };
    assert_eq!(plan.tunnel, Some(tunnel));
}

#[test]
fn a_range_is_faster_if_its_row_was_there_and_slow() {
    let fast = plan(Mode::Auto);
    let slow = Plan { only_stack: Some("a policy".to_owned()), ..fast.clone() };
    let rows = |plan: &Plan| plan.rows(Some(9), &Bare::default());
    let all: BTreeSet<_> = fast.ranges().map(|it| it.range).collect();
    assert_eq!(fast.faster(&rows(&slow), &rows(&fast)), all);
    for (before, now) in [
        (rows(&fast), rows(&fast)),
        (rows(&fast), rows(&slow)),
        (rows(&slow), rows(&slow)),
        (BTreeMap::new(), rows(&fast)),
    ] {
        assert_eq!(fast.faster(&before, &now), BTreeSet::new());
    }
}

#[test]
fn without_the_tunnel_device_only_direct_routes_remain() {
    assert_eq!(places(&plan(Mode::Auto).routes(None)), ["Main 10.2.0.0/24", "Main fd00:2::/64"]);
}

#[test]
fn a_flat_network_keeps_its_mtu_and_may_still_be_sent_tunnelled_packets() {
    let mut nodes = nodes();
    nodes.others.pop();
    let plan =
        Plan::new(Settings { mode: Mode::Auto, port: 4789, fast_path: true }, &Arc::new(nodes), &underlay());
    assert_eq!((plan.mtu, plan.sources.len()), (Some(1500), 0));
    assert!(plan.tunnel.is_some(), "the other node may see another network");
    let nodes = Nodes { others: Vec::new(), ..self::nodes() };
    let alone =
        Plan::new(Settings { mode: Mode::Auto, port: 4789, fast_path: true }, &Arc::new(nodes), &underlay());
    assert_eq!((alone.tunnel, alone.mtu), (None, None));
}

#[test]
fn direct_needs_no_tunnel_and_off_no_routes() {
    let direct = plan(Mode::Direct);
    assert_eq!(direct.tunnel, None);
    let routes = direct.routes(None);
    let through_router = &routes[&(Table::Main, net("10.3.0.0/24"))];
    assert_eq!(through_router.next, Next::Gateway(ip("192.0.2.254")));
    assert_eq!(places(&routes), ["Main 10.2.0.0/24", "Main 10.3.0.0/24", "Main fd00:2::/64"]);
    let off = plan(Mode::Off);
    assert_eq!((&off.tunnel, off.mtu, off.routes(Some(9))), (&None, None, Routes::new()));
    let bare = Bare::new();
    assert_eq!(off.rows(None, &bare).len(), direct.rows(None, &bare).len(), "the programs know the nodes");
}

#[test]
fn an_address_of_the_node_object_that_no_interface_has_is_no_source() {
    let underlay = Underlay { own: BTreeSet::new(), ..underlay() };
    let plan =
        Plan::new(Settings { mode: Mode::Auto, port: 4789, fast_path: true }, &Arc::new(nodes()), &underlay);
    assert_eq!(
        places(&plan.routes(Some(9))),
        ["Main 10.2.0.0/24", "Main fd00:2::/64"],
        "no way by the tunnel"
    );
    assert!(plan.routes(Some(9)).values().all(|route| route.source.is_none()));
    assert_eq!(plan.tunnel.map(|it| it.addresses.len()), Some(0));
}

#[test]
fn the_map_knows_every_range_and_address_and_by_which_of_them_a_node_is_tunnelled_to() {
    let entries = plan(Mode::Auto).rows(None, &Bare::new());
    let of = |text: &str| entries[&key(net(text))];
    assert_eq!(entries.len(), 4 + 4 + 3);
    assert_eq!(of("10.1.0.0/24").flags, NodeEntry::OWN);
    assert_eq!(of("2001:db8::1/128").flags, NodeEntry::OWN | NodeEntry::ADDRESS);
    assert_eq!(
        (of("10.2.0.0/24").flags, of("10.2.0.0/24").address),
        (NodeEntry::FAST, key_of(ip("192.0.2.2")).address)
    );
    assert_eq!(of("198.51.100.3/32").flags, NodeEntry::ADDRESS);
    let range = of("fd00:3::/64");
    assert_eq!((range.flags, range.address), (NodeEntry::VXLAN, key_of(ip("198.51.100.3")).address));
    assert_eq!(range.id, of("198.51.100.3/32").id);
    let ids: BTreeSet<_> = ["10.1.0.0/24", "10.2.0.0/24", "10.3.0.0/24"].map(|it| of(it).id).into();
    assert!(ids.len() == 3 && !ids.contains(&0));
}

#[test]
fn numbers_of_nodes_never_clash() {
    let mut taken = BTreeSet::new();
    let first = id("a", &mut taken);
    assert_eq!(id("a", &mut taken), first + 1);
    assert_eq!(id("a", &mut BTreeSet::new()), first, "the same after a restart");
}

#[test]
fn an_mtu_below_that_of_ipv6_stays_usable() {
    let mut underlay = underlay();
    underlay.hops.values_mut().for_each(|hop| hop.mtu = 1300);
    let plan =
        Plan::new(Settings { mode: Mode::Vxlan, port: 4789, fast_path: true }, &Arc::new(nodes()), &underlay);
    assert_eq!(plan.mtu, Some(1280));
}

#[test]
fn packets_pass_the_stack_by_where_nothing_speaks_against_it() {
    let plan = plan(Mode::Auto);
    let row = |rows: &BTreeMap<NodeKey, NodeEntry>, text: &str| {
        let row = rows[&key(net(text))];
        (row.is_fast(), row.ifindex, row.mtu)
    };
    let all = plan.rows(Some(9), &Bare::new());
    assert_eq!(row(&all, "10.2.0.0/24"), (true, 2, 1500));
    assert_eq!(row(&all, "10.3.0.0/24"), (true, 9, 1450));
    assert_eq!(row(&all, "198.51.100.3/32"), (false, 0, 0), "the node itself");
    let bare = plan.rows(Some(9), &Bare::from([(2, "why".to_owned())]));
    assert_eq!(row(&bare, "10.2.0.0/24"), (false, 0, 0));
    assert_eq!(row(&plan.rows(None, &Bare::new()), "10.3.0.0/24"), (false, 0, 0));
    let mut other_source = underlay();
    other_source.hops.values_mut().for_each(|hop| hop.source = Some(ip("192.0.2.9")));
    let settings = Settings { mode: Mode::Auto, port: 4789, fast_path: true };
    let rows = Plan::new(settings, &Arc::new(nodes()), &other_source).rows(Some(9), &Bare::new());
    assert_eq!(row(&rows, "10.3.0.0/24"), (false, 0, 0), "receivers would refuse the source");
    for foreign in [
        Foreign { rules: [Some(100), None], routes: BTreeMap::new() },
        Foreign { rules: [None; 2], routes: BTreeMap::from([(net("10.2.0.0/24"), net("10.2.0.7/32"))]) },
    ] {
        let rows = Plan::new(settings, &Arc::new(nodes()), &Underlay { foreign, ..underlay() });
        let rows = rows.rows(Some(9), &Bare::new());
        assert_eq!(row(&rows, "10.2.0.0/24"), (false, 0, 0), "the stack follows other programs");
        assert_eq!(row(&rows, "fd00:2::/64"), (true, 2, 1500));
    }
    let off = Plan::new(Settings { fast_path: false, ..settings }, &Arc::new(nodes()), &underlay());
    assert!(off.rows(Some(9), &Bare::new()).values().all(|row| !row.is_fast()));
    let needs_stack = Some("xfrm".to_owned());
    let protected = Plan::new(settings, &Arc::new(nodes()), &Underlay { needs_stack, ..underlay() });
    assert!(protected.rows(Some(9), &Bare::new()).values().all(|row| !row.is_fast()));
    let [way, ..] = protected.ways().collect::<Vec<_>>()[..] else { panic!("{protected:?}") };
    let why = |plan: &Plan| plan.slow_because(net("10.2.0.0/24"), way, Some(9), &Bare::new());
    assert_eq!(why(&protected).as_deref(), Some("xfrm"));
    assert_eq!(why(&off).as_deref(), Some("--node-fast-path is off"));
}

#[test]
fn the_programs_make_packets_of_the_tunnel_where_they_know_the_only_next_hop() {
    let settings = Settings { mode: Mode::Auto, port: 4789, fast_path: true };
    let ways = |settings: Settings, underlay: &Underlay, bare: &Bare| {
        let plan = Plan::new(settings, &Arc::new(nodes()), underlay);
        let rows = plan.rows(Some(9), bare);
        let node = rows[&key(net("10.3.0.0/24"))].id;
        (plan.underlay(&rows, bare), node)
    };
    let (found, node) = ways(settings, &underlay(), &Bare::new());
    let (next, source, remote) = ([192, 0, 2, 254], [192, 0, 2, 1], [198, 51, 100, 3]);
    let way = UnderlayEntry { ifindex: 2, next, source, remote, device: 9 };
    assert_eq!(found, [(UnderlayKey { node }, way)].into(), "not for a node on the same network");

    let none = BTreeMap::new();
    let mut spread = underlay();
    spread.hops.values_mut().for_each(|hop| hop.is_spread = true);
    assert_eq!(ways(settings, &spread, &Bare::new()).0, none, "the kernel chooses the next hop");
    let foreign = Foreign { rules: [Some(100), None], routes: BTreeMap::new() };
    let ruled = Underlay { foreign, ..underlay() };
    assert_eq!(ways(settings, &ruled, &Bare::new()).0, none, "a rule for IPv4 concerns IPv6 inside of IPv4");
    let mut other_source = underlay();
    other_source.hops.values_mut().for_each(|hop| hop.source = Some(ip("192.0.2.9")));
    assert_eq!(ways(settings, &other_source, &Bare::new()).0, none, "receivers would refuse the source");
    let bare = Bare::from([(2, "why".to_owned())]);
    assert_eq!(ways(settings, &underlay(), &bare).0, none, "an uplink without filters");
    let off = Settings { fast_path: false, ..settings };
    assert_eq!(ways(off, &underlay(), &Bare::new()).0, none, "the fast path is off");
}

#[test]
fn packets_of_the_tunnel_leave_from_the_internal_ip_of_the_uplink_that_they_take() {
    let own = Some(node("a", &["192.0.2.1", "198.51.100.1"], &["10.1.0.0/24"]));
    let nodes = Arc::new(Nodes { own, ..nodes() });
    let mut underlay = underlay();
    underlay.own.insert(ip("198.51.100.1"));
    let by = |source: &str| {
        let mut underlay = underlay.clone();
        let hop = underlay.hops.get_mut(&ip("198.51.100.3")).unwrap();
        (hop.ifindex, hop.gateway, hop.source) = (3, None, Some(ip(source)));
        let settings = Settings { mode: Mode::Vxlan, port: 4789, fast_path: true };
        let plan = Plan::new(settings, &nodes, &underlay);
        let rows = plan.rows(Some(9), &Bare::new());
        let row = rows[&key(net("10.3.0.0/24"))];
        let routes = plan.routes(Some(9));
        let nexts = [(Table::Main, "10.3.0.0/24"), (Table::OfPods, "198.51.100.3/32")];
        let nexts = nexts.map(|(table, to)| routes[&(table, net(to))].next.clone());
        let way = plan.underlay(&rows, &Bare::new()).get(&UnderlayKey { node: row.id }).copied();
        (nexts, row.is_fast(), way.map(|it| (it.ifindex, it.source)))
    };
    let from = |source: &str| {
        let next = Next::Tunnel { remote: ip("198.51.100.3"), source: Some(ip(source)) };
        [next.clone(), next]
    };
    assert_eq!(by("192.0.2.1"), (from("192.0.2.1"), true, Some((3, [192, 0, 2, 1]))));
    assert_eq!(by("198.51.100.1"), (from("198.51.100.1"), true, Some((3, [198, 51, 100, 1]))));
    assert_eq!(by("203.0.113.1"), (from("192.0.2.1"), false, None), "an address that is not the Node's");
}

#[test]
fn the_tunnel_takes_the_family_of_an_own_address_and_without_one_there_is_no_way() {
    let settings = Settings { mode: Mode::Vxlan, port: 4789, fast_path: true };
    let with = |own| Plan::new(settings, &Arc::new(Nodes { own, ..nodes() }), &underlay());
    let plan = with(Some(node("a", &["2001:db8::1"], &["10.1.0.0/24"])));
    let to_b = Next::Tunnel { remote: ip("2001:db8::2"), source: Some(ip("2001:db8::1")) };
    assert_eq!(plan.routes(Some(9))[&(Table::Main, net("10.2.0.0/24"))].next, to_b);
    let way = |plan: &Plan, range: &str| plan.ranges().find(|it| it.range == net(range)).unwrap().way.clone();
    assert_eq!(way(&plan, "10.3.0.0/24"), Err(NoWay::NoSource("IPv4")));
    let unknown = with(None);
    let to_c = Next::Tunnel { remote: ip("198.51.100.3"), source: None };
    assert_eq!(unknown.routes(Some(9))[&(Table::Main, net("10.3.0.0/24"))].next, to_c);
    assert!(!unknown.rows(Some(9), &Bare::new())[&key(net("10.3.0.0/24"))].is_fast());
}

#[test]
fn pods_reach_a_node_behind_the_tunnel_that_has_no_ranges() {
    let mut nodes = nodes();
    nodes.others = vec![node("c", &["198.51.100.3"], &[])];
    let plan =
        Plan::new(Settings { mode: Mode::Auto, port: 4789, fast_path: true }, &Arc::new(nodes), &underlay());
    assert_eq!(places(&plan.routes(Some(9))), ["OfPods 198.51.100.3/32"]);
    assert_eq!(plan.sources.len(), 2);
}

#[test]
fn uplinks_follow_router_advertisements_if_pods_need_forwarding_of_ipv6_in_every_mode() {
    for mode in [Mode::Auto, Mode::Off] {
        let settings = Settings { mode, port: 4789, fast_path: true };
        let listening = |has_ipv6_pods| {
            let underlay = Underlay { has_ipv6_pods, ..underlay() };
            Plan::new(settings, &Arc::new(nodes()), &underlay).listening()
        };
        assert_eq!((listening(true), listening(false)), (BTreeSet::from([2]), BTreeSet::new()));
    }
}
