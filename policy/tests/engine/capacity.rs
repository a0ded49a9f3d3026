//! Changes that do not fit are refused as a whole, and everything stays as it was.

use std::{collections::HashSet, mem};

use ferrule_policy::{Capacities, Change, Compiler, Op, PolicyId, Resource, Table, lookup};
use serde_json::json;

use super::world::{TCP, World, network_policy, packet};

fn world() -> World {
    let mut world = World::default();
    world.add_namespace("web", &[]);
    for i in 1..=6 {
        world.add_pod("web", &format!("pod{i}"), &format!("10.0.0.{i}"), &[("app", &format!("app{i}"))]);
    }
    let own = json!({"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "app2"}}}]}]});
    world.policies.insert(("web".to_owned(), "old".to_owned()), own);
    world
}

/// A policy with rows in all maps.
fn large() -> Change {
    let rules: Vec<_> = (1..=6)
        .map(|i| {
            let ports: Vec<_> = (1..=30).map(|port| json!({"port": 100 * i + 2 * port})).collect();
            json!({"to": [{"podSelector": {"matchLabels": {"app": format!("app{i}")}}},
                {"ipBlock": {"cidr": format!("10.{i}.0.0/16"), "except": [format!("10.{i}.1.0/24")]}}],
                "ports": ports.into_iter().chain([json!({"port": "http"})]).collect::<Vec<_>>()})
        })
        .collect();
    network_policy("web", "large", &json!({"policyTypes": ["Egress"], "egress": rules}))
}

#[test]
fn a_policy_that_does_not_fit_changes_nothing_and_is_named() {
    let mut world = world();
    for pod in world.pods.values_mut() {
        pod.ports = vec![("http".to_owned(), "TCP", 8080)];
    }
    let mut whole = Compiler::default();
    whole.apply(world.changes()).unwrap();
    whole.apply([large()]).unwrap();
    for resource in [Resource::Blocks, Resource::Rulesets, Resource::Rules, Resource::Named, Resource::Ports]
    {
        let (needed, _) = whole.usage_of(resource);
        let mut capacities = Capacities::default();
        // One row more than before, and one less than needed.
        let field = match resource {
            Resource::Blocks => &mut capacities.blocks,
            Resource::Rulesets => &mut capacities.rulesets,
            Resource::Rules => &mut capacities.rules,
            Resource::Named => &mut capacities.named,
            _ => &mut capacities.ports,
        };
        *field = needed - 1;
        let mut compiler = Compiler::new(Table::A, capacities);
        compiler.apply(world.changes()).unwrap();
        let (rows, usage): (Vec<_>, _) = (compiler.rows().all().collect(), compiler.usage());
        let refused = compiler.apply([large()]).unwrap_err();
        assert_eq!((refused.resource, refused.capacity), (resource, needed - 1), "{refused}");
        assert!(refused.needed >= needed, "{refused}");
        let says_policy = refused.policy == Some(PolicyId::namespaced("web", "large"));
        assert!(says_policy || resource == Resource::Blocks, "{refused:?}");
        assert!(compiler.rows().all().eq(rows), "{resource}");
        assert_eq!(compiler.usage(), usage, "{resource}");
        // The next change is as if nothing had happened.
        let gone = PolicyId::namespaced("web", "old");
        let delta = compiler.apply([Change::PolicyGone { id: gone, uid: "web/old".to_owned() }]).unwrap();
        assert!(!delta.ops.is_empty());
        assert_eq!(compiler.usage().rulesets, 0);
        assert_eq!(compiler.usage_of(Resource::Rules).0, 0);
    }
}

#[test]
fn a_pod_or_an_endpoint_too_many_is_refused() {
    let world = world();
    let mut compiler = Compiler::new(Table::A, Capacities { peers: 5, ..Capacities::default() });
    let refused = compiler.apply(world.changes()).unwrap_err();
    assert_eq!(refused.to_string(), "the map PEERS has room for 5 rows, and 6 are needed");
    assert_eq!(compiler.rows().all().count(), 0);
    let mut compiler = Compiler::new(Table::A, Capacities { endpoints: 5, ..Capacities::default() });
    let refused = compiler.apply(world.changes()).unwrap_err();
    assert_eq!(refused.to_string(), "the map VIFS has room for 5 rows, and 6 are needed");
}

#[test]
fn more_sets_of_ports_than_bits_are_refused_and_the_old_policy_stays() {
    let world = world();
    let rules = |n: u16| {
        let rules: Vec<_> = (1..=n).map(|port| json!({"ports": [{"port": port}]})).collect();
        network_policy("web", "ports", &json!({ "ingress": rules }))
    };
    let mut compiler = Compiler::default();
    compiler.apply(world.changes()).unwrap();
    compiler.apply([rules(255)]).unwrap();
    let refused = compiler.apply([rules(256)]).unwrap_err();
    let expected = "a ruleset has room for 256 rows, and 257 are needed, by NetworkPolicy web/ports";
    assert_eq!(refused.to_string(), expected);
    let (from, to) = (world.end("web/pod3"), world.end("web/pod1"));
    let ask = |port| packet(&world, ferrule_policy::Direction::Ingress, to, from, (TCP, port)).unwrap();
    assert!(lookup(compiler.rows(), &ask(255)).is_allowed);
    assert!(!lookup(compiler.rows(), &ask(256)).is_allowed);
}

#[test]
fn ten_thousand_peers_with_one_set_of_ports_are_one_bit() {
    let world = world();
    let peers: Vec<_> = (0..10_000)
        .map(|i| json!({"ipBlock": {"cidr": format!("172.{}.{}.0/24", 16 + i / 256, i % 256)}}))
        .collect();
    let mut compiler = Compiler::default();
    compiler.apply(world.changes()).unwrap();
    let spec = json!({"ingress": [{"from": peers, "ports": [{"port": 80}]}]});
    compiler.apply([network_policy("web", "many", &spec)]).unwrap();
    assert_eq!(compiler.usage_of(Resource::Blocks).0, 10_000);
    let outside = |address: &str| super::world::End::Outside(address.parse().unwrap());
    let ask = |from| {
        let packet = packet(
            &world,
            ferrule_policy::Direction::Ingress,
            world.end("web/pod1"),
            outside(from),
            (TCP, 80),
        );
        lookup(compiler.rows(), &packet.unwrap()).is_allowed
    };
    assert!(ask("172.16.0.1") && ask("172.55.15.1") && !ask("172.55.16.1"));
}

#[test]
fn rows_are_read_in_pages_whatever_row_the_last_page_ended_with() {
    let mut world = world();
    for pod in world.pods.values_mut() {
        pod.ports = vec![("http".to_owned(), "TCP", 8080)];
    }
    let mut compiler = Compiler::default();
    compiler.apply(world.changes()).unwrap();
    compiler.apply([large()]).unwrap();
    let all: Vec<Op> = compiler.rows().all().collect();
    for (number, op) in all.iter().enumerate() {
        assert_eq!(compiler.rows().after(Some(op)).collect::<Vec<_>>(), all[number + 1..]);
    }
    let kinds: HashSet<_> = all.iter().map(mem::discriminant).collect();
    assert_eq!(kinds.len(), 7, "rows of all maps");
    let is_rule = |op: &Op| if let Op::Rule(key, _) = op { Some(*key) } else { None };
    let (place, key) = all.iter().enumerate().find_map(|(place, op)| Some((place, is_rule(op)?))).unwrap();
    let mut rows = compiler.rows().clone();
    rows.apply(&Op::Rule(key, None));
    assert_eq!(rows.after(Some(&all[place])).collect::<Vec<_>>(), all[place + 1..], "the row is gone");
}
