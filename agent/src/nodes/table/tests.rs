//! The nodes that a table publishes, after events in any order.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    super::testing::{Accepted, Short, oracle, short},
    *,
};
use crate::{
    events::Events,
    health::{Health, State},
    metrics::EventMetrics,
};

fn gone(node: &Short) -> Change<cluster::Node> {
    Change::Gone { key: ObjectKey::new("", &node.name), uid: node.uid.clone() }
}

fn service_cidr(name: &str, v4: &str) -> Change<ServiceCidr> {
    let json =
        serde_json::json!({ "metadata": { "name": name }, "spec": { "cidrs": ["fd00:96::/112", v4] } });
    Change::applied(serde_json::from_value(json).unwrap())
}

fn running() -> (Arc<Table>, Receiver<Arc<Nodes>>, Health) {
    let (table, nodes, health) = without_services();
    table.apply_services(Change::Synced);
    (table, nodes, health)
}

/// Before the ranges of Services are listed.
fn without_services() -> (Arc<Table>, Receiver<Arc<Nodes>>, Health) {
    let (table, nodes) = Table::new("own", Vec::new());
    let health = Health::default();
    let refusals = Refusals::new(
        health.component("cluster", false, "not listed yet"),
        Events::disabled(EventMetrics::default()),
    );
    tokio::spawn(Arc::clone(&table).run(refusals));
    (table, nodes, health)
}

#[tokio::test(start_paused = true)]
async fn nothing_is_published_before_the_nodes_are_listed_and_this_one_is_among_them() {
    let (table, mut nodes, health) = running();
    table.apply(Change::Applied(short("b", 2, &["10.244.1.0/24"], &[]).object()));
    sleep(Duration::from_secs(1)).await;
    assert!(!nodes.has_changed().unwrap() && !nodes.borrow().is_synced);
    table.apply(Change::Synced);
    sleep(Duration::from_secs(1)).await;
    assert!(!nodes.has_changed().unwrap(), "a list without this node");
    let component = health.components()["cluster"].clone();
    assert_eq!(component.state, State::Starting);
    assert!(component.why.contains("no Node own yet"), "{}", component.why);
    let own = short("own", 1, &["10.244.0.0/24"], &[]);
    table.apply(Change::Applied(own.object()));
    nodes.changed().await.unwrap();
    assert!(nodes.borrow_and_update().is_synced);
    assert_eq!(health.components()["cluster"].state, State::Healthy);
    table.apply(gone(&own));
    nodes.changed().await.unwrap();
    let now = nodes.borrow_and_update().clone();
    assert!(now.is_synced && now.own.is_none() && now.others.len() == 1, "its object was deleted");
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_changes_is_one_message_and_a_change_without_news_none() {
    let (table, mut nodes, _health) = running();
    table.apply(Change::Applied(short("own", 1, &[], &[]).object()));
    table.apply(Change::Synced);
    nodes.changed().await.unwrap();
    nodes.mark_unchanged();
    let node = |at: u8| short(&format!("n{at}"), at, &[&format!("10.244.{at}.0/24")], &[]);
    (1..50).for_each(|at| table.apply(Change::Applied(node(at).object())));
    nodes.changed().await.unwrap();
    assert_eq!(nodes.borrow_and_update().others.len(), 49);
    table.apply(Change::Applied(node(7).object()));
    sleep(Duration::from_secs(1)).await;
    assert!(!nodes.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_shown_until_it_is_resolved() {
    let (table, _nodes, health) = running();
    let old = short("old", 2, &["10.244.1.0/24"], &[]);
    for node in [&short("own", 1, &[], &[]), &old, &short("new", 3, &["10.244.1.0/24"], &[])] {
        table.apply(Change::Applied(node.object()));
    }
    table.apply(Change::Synced);
    sleep(Duration::from_secs(1)).await;
    let component = health.components()["cluster"].clone();
    assert_eq!(component.state, State::Unhealthy);
    assert!(component.why.contains("the range 10.244.1.0/24 of new"), "{}", component.why);
    assert!(health.is_ready(), "ADD works all the same");
    table.apply(gone(&old));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(health.components()["cluster"].state, State::Healthy);
}

/// What a table accepts of each node.
fn accepted(table: &Table) -> BTreeMap<String, Accepted> {
    let nodes = table.resolved().unwrap().nodes;
    let of = |it: &super::super::Node| {
        let ranges = it.ranges.iter().map(ToString::to_string).collect();
        (it.uid.to_string(), (ranges, it.addresses.iter().map(ToString::to_string).collect()))
    };
    nodes.own.iter().chain(&nodes.others).map(of).collect()
}

fn node() -> impl Strategy<Value = Short> {
    let names = prop::sample::select(vec!["own", "a", "b", "c", "d"]);
    // Overlaps are likely, and so is every reason to refuse.
    let ranges = prop::sample::select(vec![
        "10.0.0.0/24",
        "10.0.0.0/23",
        "10.0.1.0/24",
        "10.0.0.128/25",
        "10.0.2.0/24",
        "10.0.0.0/8",
        "10.96.0.0/24",
        "fd00::/64",
        "fd00:0:0:1::/64",
        "fd00::/48",
        "8.0.0.0/7",
        "127.0.0.0/24",
        "192.0.2.0/24",
        "ten",
        "10.0.0.1/24",
    ]);
    let addresses = prop::sample::select(vec![
        "192.0.2.1",
        "192.0.2.2",
        "192.0.2.3",
        "10.0.0.7",
        "10.0.1.7",
        "fd00::7",
        "127.0.0.1",
        "fe80::1",
    ]);
    let parts = (prop::collection::vec(ranges, 0..4), prop::collection::vec(addresses, 0..4));
    let ages = (0_u8..3, prop::bool::weighted(0.3));
    (names, 0_u8..3, ages, parts).prop_map(|(name, generation, age, (ranges, addresses))| {
        // What this node has is checked before: none of its ranges may be wrong.
        let ranges: &[&str] = match (name, ranges.first()) {
            ("own", Some(&first))
                if !["8.0.0.0/7", "127.0.0.0/24", "ten", "10.0.0.1/24"].contains(&first) =>
            {
                &[first]
            }
            ("own", _) => &[],
            _ => &ranges,
        };
        let uid = format!("uid-{name}-{generation}");
        let (created, is_unreachable) = age;
        Short { uid, is_unreachable, ..short(name, created, ranges, &addresses) }
    })
}

#[tokio::test(start_paused = true)]
async fn a_range_is_refused_while_it_lies_in_one_of_services() {
    let (table, mut nodes, health) = running();
    table.apply(Change::Applied(short("own", 1, &[], &[]).object()));
    table.apply(Change::Applied(short("b", 2, &["10.96.1.0/24"], &[]).object()));
    table.apply(Change::Synced);
    let mut ranges = async || {
        nodes.changed().await.unwrap();
        let now = nodes.borrow_and_update().clone();
        now.others.iter().map(|it| it.ranges.len()).collect::<Vec<_>>()
    };
    assert_eq!(ranges().await, [1]);
    table.apply_services(service_cidr("kubernetes", "10.96.0.0/12"));
    assert_eq!(ranges().await, [0]);
    let why = health.components()["cluster"].why.clone();
    assert!(why.contains("10.96.1.0/24") && why.contains("the range 10.96.0.0/12 of Services"), "{why}");
    table.apply_services(service_cidr("more", "10.112.0.0/12"));
    table.apply_services(Change::Gone { key: ObjectKey::new("", "kubernetes"), uid: String::new() });
    assert_eq!(ranges().await, [1]);
}

#[tokio::test(start_paused = true)]
async fn the_first_nodes_wait_for_the_ranges_of_services_but_not_for_long() {
    for are_listed in [true, false] {
        let (table, mut nodes, _health) = without_services();
        table.apply(Change::Applied(short("own", 1, &[], &[]).object()));
        table.apply(Change::Applied(short("b", 2, &["10.96.1.0/24"], &[]).object()));
        table.apply(Change::Synced);
        sleep(SERVICES / 2).await;
        assert!(!nodes.has_changed().unwrap());
        if are_listed {
            table.apply_services(service_cidr("kubernetes", "10.96.0.0/12"));
            table.apply_services(Change::Synced);
        }
        nodes.changed().await.unwrap();
        let ranges: Vec<_> = nodes.borrow_and_update().others.iter().map(|it| it.ranges.len()).collect();
        assert_eq!(ranges, [usize::from(!are_listed)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_order_of_events_never_matters(
        events in prop::collection::vec((any::<bool>(), node()), 0..30),
        seed in any::<u64>(),
    ) {
        let services = ["10.96.0.0/12"];
        let (table, _nodes) = Table::new("own", services.map(|it| it.parse().unwrap()).to_vec());
        table.apply(Change::Applied(short("own", 59, &[], &[]).object()));
        table.apply(gone(&short("own", 59, &[], &[])));
        table.apply(Change::Synced);
        let mut present: BTreeMap<String, Short> = BTreeMap::new();
        for (is_gone, node) in events {
            // The own node is the one of its name; a watch never shows two objects of one name.
            let same = |it: &Short| it.name == node.name && it.uid != node.uid;
            if node.name == "own" && present.values().any(same) {
                continue;
            }
            if is_gone {
                present.remove(&node.uid);
                table.apply(gone(&node));
            } else {
                table.apply(Change::Applied(node.object()));
                present.insert(node.uid.clone(), node);
            }
        }
        let all: Vec<Short> = present.into_values().collect();
        let expected = oracle(&all, "own", &services);
        prop_assert_eq!(accepted(&table), expected.clone());

        // The same set in another order.
        let (again, _nodes) = Table::new("own", services.map(|it| it.parse().unwrap()).to_vec());
        let mut shuffled = all;
        let mut random = fastrand::Rng::with_seed(seed);
        random.shuffle(&mut shuffled);
        again.apply(Change::Synced);
        again.apply(Change::Applied(short("own", 59, &[], &[]).object()));
        again.apply(gone(&short("own", 59, &[], &[])));
        shuffled.iter().for_each(|it| again.apply(Change::Applied(it.object())));
        prop_assert_eq!(accepted(&again), expected);
    }

    #[test]
    fn a_younger_node_takes_nothing_from_older_ones_and_no_lost_node_moves_a_range(
        nodes in prop::collection::vec(node(), 1..8),
    ) {
        let by_uid: BTreeMap<_, _> = nodes.into_iter().map(|it| (it.uid.clone(), it)).collect();
        let objects = |nodes: &[Short]| nodes.iter().map(Short::object).collect::<Vec<_>>();
        // A view that no node's own part changes.
        let others = |nodes: &[Short]| resolve(&objects(nodes), "none-of-these", &[]).nodes.others;
        let as_lost: Vec<_> = by_uid.into_values().collect();
        let mut heard: Vec<_> =
            as_lost.iter().cloned().map(|it| Short { is_unreachable: false, ..it }).collect();
        heard.sort_by_key(|it| (it.created, it.uid.clone()));
        let all = others(&heard);
        let ranges = |nodes: &[super::super::Node]| {
            nodes.iter().map(|it| (it.uid.clone(), it.ranges.clone())).collect::<BTreeMap<_, _>>()
        };
        prop_assert_eq!(ranges(&all), ranges(&others(&as_lost)));

        let youngest = heard.pop().unwrap();
        let older: Vec<_> = all.into_iter().filter(|it| *it.uid != *youngest.uid).collect();
        prop_assert_eq!(older, others(&heard));
    }
}

/// The bytes that an allocator gives for a number of bytes.
fn given(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

/// What one Node object takes in the inventory of the watch, in the table, for policies and in the channel.
fn bytes(object: &Arc<cluster::Node>, published: &super::super::Node) -> usize {
    let counts = 2 * size_of::<usize>();
    let shared = |text: &str| given(counts + text.len());
    let decoded = given(counts + size_of::<cluster::Node>())
        + shared(object.name())
        + shared(&object.uid)
        + object.zone.as_deref().map_or(0, |it| given(it.len()))
        + given(object.labels.size())
        + given(size_of_val(&*object.ranges))
        + given(size_of_val(&*object.addresses))
        + given(size_of_val(&*object.others));
    // A hash table has up to twice the places, and a byte for each; a tree's leaves are half full.
    let inventory = 2 * (size_of::<(ObjectKey, Arc<cluster::Node>)>() + 1);
    let of_policies = inventory;
    let table = 2 * size_of::<((Arc<str>, ObjectKey), Arc<cluster::Node>)>();
    let channel = size_of::<super::super::Node>()
        + published.zone.as_ref().map_or(0, |it| given(it.capacity()))
        + given(published.addresses.capacity() * size_of::<std::net::IpAddr>())
        + given(published.ranges.capacity() * size_of::<IpNet>());
    decoded + inventory + of_policies + table + channel
}

#[test]
fn a_thousand_nodes_take_less_than_a_mebibyte() {
    let json = |at: u32| {
        let name = format!("ip-10-0-{}-{}.eu-central-1.compute.internal", at / 256, at % 256);
        serde_json::json!({
            "metadata": {
                "name": if at == 0 { "own" } else { &name },
                "uid": format!("01234567-89ab-cdef-0123-{at:012x}"),
                "creationTimestamp": "2026-01-02T03:04:05Z",
                // As the kubelet and the controller of a cloud set them.
                "labels": {
                    "beta.kubernetes.io/arch": "amd64",
                    "beta.kubernetes.io/instance-type": "m6i.2xlarge",
                    "beta.kubernetes.io/os": "linux",
                    "failure-domain.beta.kubernetes.io/region": "eu-central-1",
                    "failure-domain.beta.kubernetes.io/zone": "eu-central-1a",
                    "k8s.io/cloud-provider-aws": "0123456789abcdef0123456789abcdef",
                    "kubernetes.io/arch": "amd64",
                    "kubernetes.io/hostname": &name,
                    "kubernetes.io/os": "linux",
                    "node.kubernetes.io/instance-type": "m6i.2xlarge",
                    "pool": "general-purpose",
                    "topology.kubernetes.io/region": "eu-central-1",
                    "topology.kubernetes.io/zone": "eu-central-1a",
                },
            },
            "spec": {
                "podCIDRs": [format!("10.{}.{}.0/24", 128 + at / 256, at % 256), format!("fd00:0:0:{at:x}::/64")],
            },
            "status": { "addresses": [
                { "type": "InternalIP", "address": format!("192.168.{}.{}", at / 256, at % 256) },
                { "type": "InternalIP", "address": format!("2001:db8::{:x}", at + 1) },
                { "type": "ExternalIP", "address": format!("198.18.{}.{}", at / 256, at % 256) },
                { "type": "Hostname", "address": &name },
            ] },
        })
    };
    let (table, nodes) = Table::new("own", Vec::new());
    let objects: BTreeMap<_, _> = (0..1000)
        .map(|at| {
            let object: Arc<cluster::Node> = Arc::new(serde_json::from_value(json(at)).unwrap());
            table.apply(Change::Applied(Arc::clone(&object)));
            (Arc::clone(&object.uid), object)
        })
        .collect();
    table.apply(Change::Synced);
    table.publish(table.resolved().unwrap().nodes);
    let nodes = nodes.borrow();
    let all = nodes.own.iter().chain(&nodes.others);
    let sum: usize = all.map(|it| bytes(&objects[&it.uid], it)).sum();
    println!("1,000 nodes: {} KiB", sum / 1024);
    assert!(sum < 1 << 20, "{sum} bytes");
}
