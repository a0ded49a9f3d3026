//! What each node may have, and the reasons for the rest.

use std::time::Instant;

use super::{
    super::testing::{Short, short},
    *,
};

fn resolved(nodes: &[Short], services: &[&str]) -> Resolved {
    let known: Vec<_> = nodes.iter().map(Short::object).collect();
    let services: Vec<_> = services.iter().map(|it| it.parse().unwrap()).collect();
    resolve(&known, "own", &services)
}

/// Accepted ranges and addresses of a node, as text.
fn of(nodes: &Nodes, name: &str) -> String {
    let node = nodes.others.iter().chain(&nodes.own).find(|it| &*it.name == name).unwrap();
    let ranges = node.ranges.iter().map(ToString::to_string);
    ranges.chain(node.addresses.iter().map(ToString::to_string)).collect::<Vec<_>>().join(" ")
}

/// The reason why a part of a node is refused.
fn why<'a>(nodes: &'a Nodes, name: &str, what: &str) -> &'a str {
    let found = nodes.refused.iter().find(|it| it.node == name && it.what.ends_with(what));
    &found.unwrap_or_else(|| panic!("{what} of {name} is not refused: {nodes:?}")).why
}

#[test]
fn nodes_without_conflicts_have_all_they_claim() {
    let nodes = resolved(
        &[
            short("own", 1, &["10.244.0.0/24", "fd00::/64"], &["192.0.2.1", "2001:db8::1"]),
            short("b", 2, &["10.244.1.0/24", "fd00:0:0:1::/64"], &["192.0.2.2", "2001:db8::2"]),
            short("a", 3, &[], &["192.0.2.3"]),
            short("c", 4, &["10.244.3.0/24"], &[]),
        ],
        &["10.96.0.0/12"],
    );
    let Nodes { is_synced, own, others, refused } = &nodes.nodes;
    assert!(*is_synced && own.is_some() && refused.is_empty() && nodes.own_part.is_empty());
    assert_eq!(others.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(of(&nodes.nodes, "own"), "10.244.0.0/24 fd00::/64 192.0.2.1 2001:db8::1");
    assert_eq!(of(&nodes.nodes, "b"), "10.244.1.0/24 fd00:0:0:1::/64 192.0.2.2 2001:db8::2");
    assert_eq!(
        (of(&nodes.nodes, "a").as_str(), of(&nodes.nodes, "c").as_str()),
        ("192.0.2.3", "10.244.3.0/24")
    );
}

#[test]
fn the_older_node_keeps_a_range_and_the_other_one_waits_for_it() {
    let (old, new) =
        (short("old", 2, &["10.244.1.0/24"], &[]), short("new", 3, &["10.244.1.0/24", "10.244.2.0/24"], &[]));
    let own = short("own", 1, &["10.244.0.0/24"], &[]);
    let both = resolved(&[new.clone(), own.clone(), old], &[]);
    assert_eq!(of(&both.nodes, "old"), "10.244.1.0/24");
    assert_eq!(of(&both.nodes, "new"), "10.244.2.0/24");
    assert!(why(&both.nodes, "new", "10.244.1.0/24").contains("of the node old, which keeps it"));
    assert!(both.own_part.is_empty(), "this node has no part in it");
    let after = resolved(&[new, own], &[]);
    assert_eq!(of(&after.nodes, "new"), "10.244.1.0/24 10.244.2.0/24");
    assert!(after.nodes.refused.is_empty());
}

#[test]
fn the_older_node_keeps_an_address_unless_the_control_plane_has_lost_it() {
    let own = short("own", 1, &[], &[]);
    let old = short("old", 2, &["10.244.1.0/24"], &["192.0.2.7"]);
    let new = short("new", 3, &["10.244.2.0/24"], &["192.0.2.7"]);
    let both = resolved(&[own.clone(), old.clone(), new.clone()], &[]).nodes;
    assert_eq!(
        (of(&both, "old").as_str(), of(&both, "new").as_str()),
        ("10.244.1.0/24 192.0.2.7", "10.244.2.0/24")
    );
    assert!(why(&both, "new", "192.0.2.7").contains("the node old has this address too"));

    let lost = |it: &Short| Short { is_unreachable: true, ..it.clone() };
    let replaced = resolved(&[own.clone(), lost(&old), new.clone()], &[]).nodes;
    assert_eq!(of(&replaced, "new"), "10.244.2.0/24 192.0.2.7");
    assert_eq!(of(&replaced, "old"), "10.244.1.0/24", "its range stays its own");
    assert!(why(&replaced, "old", "192.0.2.7").contains("the node new has this address too"));
    let both_lost = resolved(&[own.clone(), lost(&old), lost(&new)], &[]).nodes;
    assert_eq!(of(&both_lost, "old"), "10.244.1.0/24 192.0.2.7");
    let alone = resolved(&[own, lost(&old)], &[]).nodes;
    assert_eq!(of(&alone, "old"), "10.244.1.0/24 192.0.2.7", "no other node claims the address");
}

#[test]
fn a_range_and_an_address_in_it_go_to_the_older_node_also_if_the_control_plane_has_lost_that() {
    for is_unreachable in [false, true] {
        let resolved = |older: &Short, younger: &Short| {
            let older = Short { created: 2, is_unreachable, ..older.clone() };
            let younger = Short { created: 3, ..younger.clone() };
            resolved(&[short("own", 1, &["10.244.0.0/24"], &[]), younger, older], &[]).nodes
        };
        let range = short("v", 0, &["10.244.1.0/24"], &["192.0.2.2"]);
        let address = short("m", 0, &["10.244.2.0/24"], &["10.244.1.7", "192.0.2.3"]);
        let nodes = resolved(&range, &address);
        assert_eq!(of(&nodes, "v"), "10.244.1.0/24 192.0.2.2");
        assert_eq!(of(&nodes, "m"), "10.244.2.0/24 192.0.2.3");
        let [refused] = nodes.refused.as_slice() else { panic!("{nodes:?}") };
        assert_eq!((&*refused.node, &*refused.what), ("m", "the address 10.244.1.7"));
        assert_eq!(refused.claimant.as_deref(), Some("v"));
        assert!(refused.why.contains("in the range 10.244.1.0/24 of the node v"), "{refused:?}");

        let nodes = resolved(&address, &range);
        assert_eq!(of(&nodes, "v"), "192.0.2.2");
        assert_eq!(of(&nodes, "m"), "10.244.2.0/24 10.244.1.7 192.0.2.3");
        let why = why(&nodes, "v", "the range 10.244.1.0/24");
        assert!(why.contains("it contains 10.244.1.7, the address of the node m"), "{why}");
    }
}

#[test]
fn a_node_that_the_control_plane_has_lost_still_has_its_own_address_before_others() {
    let own = Short { is_unreachable: true, ..short("own", 3, &[], &["192.0.2.7"]) };
    let nodes = resolved(&[own, short("old", 1, &[], &["192.0.2.7"])], &[]).nodes;
    assert_eq!((of(&nodes, "own").as_str(), of(&nodes, "old").as_str()), ("192.0.2.7", ""));
}

#[test]
fn a_node_that_is_refused_keeps_no_other_from_its_range() {
    let nodes = [
        short("a", 1, &["10.244.0.0/23"], &[]),
        short("b", 2, &["10.244.0.0/22"], &[]),
        short("c", 3, &["10.244.2.0/24"], &[]),
    ];
    let nodes = resolved(&nodes, &[]).nodes;
    assert_eq!(["a", "b", "c"].map(|name| of(&nodes, name)), ["10.244.0.0/23", "", "10.244.2.0/24"]);
}

#[test]
fn nothing_of_an_older_node_shadows_this_one_and_both_nodes_say_so() {
    let nodes = [
        short("own", 9, &["10.244.0.0/24"], &["192.0.2.1"]),
        short("old", 1, &["10.244.0.0/16"], &["192.0.2.1", "10.244.0.7", "192.0.2.2"]),
    ];
    let Resolved { nodes, own_part } = resolved(&nodes, &[]);
    assert_eq!(of(&nodes, "own"), "10.244.0.0/24 192.0.2.1");
    assert_eq!(of(&nodes, "old"), "192.0.2.2");
    assert!(why(&nodes, "old", "10.244.0.0/16").contains("10.244.0.0/24 of the node own"));
    assert!(why(&nodes, "old", "the address 192.0.2.1").contains("the node own has this address too"));
    assert!(why(&nodes, "old", "10.244.0.7").contains("in the range 10.244.0.0/24 of the node own"));
    // All others take the older node's side.
    assert!(
        why(&nodes, "own", "10.244.0.0/24").contains("it contains 10.244.0.7, the address of the node old")
    );
    assert!(own_part.iter().any(|it| it.node == "own" && it.what == "the range 10.244.0.0/24"));
}

#[test]
fn a_range_must_be_one_that_pods_of_one_node_can_have() {
    for (range, named) in [
        ("0.0.0.0/0", "wider than /8"),
        ("10.0.0.0/6", "cannot be read"),
        ("10.0.0.0/7", "wider than /8"),
        ("8.0.0.0/7", "wider than /8"),
        ("2000::/15", "wider than /16"),
        ("::/0", "wider than /16"),
        ("127.0.0.0/8", "not unicast"),
        ("169.254.7.0/24", "not unicast"),
        ("224.0.0.0/8", "not unicast"),
        ("fe80::/64", "not unicast"),
        ("::ffff:10.0.0.0/120", "not unicast"),
        ("10.96.5.0/24", "10.96.0.0/12 of Services"),
        ("10.0.0.0/8", "10.96.0.0/12 of Services"),
        ("192.0.2.0/24", "192.0.2.1, the address of the node own"),
        ("198.51.100.0/24", "198.51.100.7, the address of the node b"),
        ("ten", "cannot be read"),
        ("10.244.1.7/24", "cannot be read"),
    ] {
        let nodes =
            [short("own", 1, &["10.244.0.0/24"], &["192.0.2.1"]), short("b", 2, &[range], &["198.51.100.7"])];
        let nodes = resolved(&nodes, &["10.96.0.0/12"]).nodes;
        assert_eq!(of(&nodes, "b"), "198.51.100.7", "{range}");
        let [refused] = nodes.refused.as_slice() else { panic!("{nodes:?}") };
        assert!(refused.why.contains(named), "{range}: {refused:?}");
    }
}

#[test]
fn an_address_must_be_one_at_which_a_node_can_be_reached() {
    for address in
        ["127.0.0.1", "169.254.1.1", "224.0.0.1", "0.0.0.0", "::1", "fe80::1", "::ffff:1.2.3.4", "x"]
    {
        let nodes = [short("own", 1, &[], &[]), short("b", 2, &[], &[address, "192.0.2.2", "192.0.2.2"])];
        let nodes = resolved(&nodes, &[]).nodes;
        assert_eq!(of(&nodes, "b"), "192.0.2.2", "{address}");
        assert_eq!(nodes.refused.len(), 1, "{nodes:?}");
    }
}

#[test]
fn eight_ranges_and_eight_addresses_of_a_node_count() {
    let ranges: Vec<_> = (0..100).map(|it| format!("10.244.{it}.0/24")).collect();
    let addresses: Vec<_> = (0..100).map(|it| format!("192.0.2.{it}")).collect();
    let many = Short { ranges, addresses, ..short("b", 2, &[], &[]) };
    let nodes = resolved(&[short("own", 1, &[], &[]), many], &[]).nodes;
    let [b] = nodes.others.as_slice() else { panic!("{nodes:?}") };
    assert_eq!((b.ranges.len(), b.addresses.len()), (8, 8));
    assert!(why(&nodes, "b", "the range 10.244.8.0/24").contains("nor any after it"));
    assert_eq!(nodes.refused.len(), 2, "what follows the ninth is not named");
}

#[test]
fn of_nodes_as_old_as_each_other_the_uid_decides() {
    let node =
        |name: &str, uid: &str| Short { uid: uid.to_owned(), ..short(name, 1, &["10.244.1.0/24"], &[]) };
    let nodes = resolved(&[node("a", "u2"), node("b", "u1")], &[]).nodes;
    assert_eq!((of(&nodes, "a").as_str(), of(&nodes, "b").as_str()), ("", "10.244.1.0/24"));
}

#[test]
fn without_its_own_object_a_node_still_knows_the_others() {
    let Resolved { nodes, own_part } = resolved(&[short("b", 2, &["10.244.1.0/24"], &[])], &[]);
    assert!(nodes.own.is_none() && own_part.is_empty());
    assert_eq!(of(&nodes, "b"), "10.244.1.0/24");
}

#[test]
fn only_the_nodes_that_have_a_part_in_a_conflict_report_it() {
    let nodes = |own: [&str; 3]| {
        let [a, b, c] = own.map(|it| it.to_owned());
        let node = |name: &str, created, range: &str| short(name, created, &[range], &[]);
        let nodes =
            [node(&a, 1, "10.244.1.0/24"), node(&b, 2, "10.244.1.0/24"), node(&c, 3, "10.244.3.0/24")];
        let part = resolved(&nodes, &[]).own_part;
        part.into_iter().map(|it| it.node).collect::<Vec<_>>()
    };
    assert_eq!(nodes(["own", "b", "c"]), ["b"], "the one that keeps the range");
    assert_eq!(nodes(["a", "own", "c"]), ["own"], "the one that is refused");
    assert_eq!(nodes(["a", "b", "own"]), [""; 0]);
}

/// A cluster of many nodes, as large as they come.
fn cluster(nodes: usize) -> Vec<Arc<cluster::Node>> {
    let node = |at: usize| {
        let name = if at == 0 {
            "own".to_owned()
        } else {
            format!("ip-10-0-{}-{}.ec2.internal", at / 256, at % 256)
        };
        let range = format!("10.{}.{}.0/24", 128 + at / 256, at % 256);
        let ranges = [range, format!("fd00:0:0:{at:x}::/64")];
        let addresses = [format!("192.168.{}.{}", at / 256, at % 256), format!("2001:db8::{:x}", at + 1)];
        let mut short = short(&name, 1, &[], &[]);
        short.uid = format!("01234567-89ab-cdef-0123-{at:012x}");
        (short.ranges, short.addresses) = (ranges.to_vec(), addresses.to_vec());
        short.object()
    };
    (0..nodes).map(node).collect()
}

#[test]
fn a_thousand_nodes_without_conflicts_keep_all_that_they_have() {
    let known = cluster(1000);
    let before = Instant::now();
    let Resolved { nodes, .. } = resolve(&known, "own", &["10.96.0.0/12".parse().unwrap()]);
    println!("1,000 nodes: {:?}", before.elapsed());
    assert_eq!((nodes.others.len(), nodes.refused.len()), (999, 0));
    assert!(nodes.others.iter().all(|it| it.ranges.len() == 2 && it.addresses.len() == 2));
}
