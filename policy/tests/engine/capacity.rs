//! Changes that do not fit are refused as a whole, and everything stays as it was.

use std::{collections::HashSet, mem};

use ferrule_policy::{
    Action, Because, Capacities, Change, Compiler, Decided, Direction, Op, PolicyId, Resource, RuleId, Table,
    lookup, shown,
};
use serde_json::{Value, json};

use super::{
    oracle::{self, Way},
    world::{End, Engine, TCP, Traffic, UDP, World, network_policy, packet},
};

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

/// No pod is switched before its new rules are complete; documented in `docs/policy.md`.
#[test]
fn an_edit_needs_the_rows_of_before_and_of_after_and_a_table_from_scratch_only_those_of_after() {
    let wide = |last: u16| {
        let ports: Vec<_> = (1..=40).map(|port| json!({"port": 100 * port + 2})).collect();
        let ports: Vec<_> = ports.into_iter().chain([json!({"port": last})]).collect();
        let subject = json!({"matchLabels": {"app": "app1"}});
        network_policy("web", "wide", &json!({"podSelector": subject, "ingress": [{"ports": ports}]}))
    };
    for (ports, fits) in [(2 * 41, true), (2 * 41 - 1, false)] {
        let capacities = Capacities { ports, ..Capacities::default() };
        let mut compiler = Compiler::new(Table::A, capacities);
        compiler.apply(world().changes().into_iter().chain([wide(7)])).unwrap();
        let edited = compiler.apply([wide(9)]);
        assert_eq!(edited.as_ref().err().map(|it| it.resource), (!fits).then_some(Resource::Ports));
    }
    let mut scratch = Compiler::new(Table::B, Capacities { ports: 41, ..Capacities::default() });
    scratch.apply(world().changes().into_iter().chain([wide(9)])).unwrap();
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
        let rule = |port| {
            json!({"from": [{"ipBlock": {"cidr": format!("10.0.{}.{}/32", port / 256, port % 256)}}],
            "ports": [{"port": port}]})
        };
        network_policy("web", "ports", &json!({"ingress": (1..=n).map(rule).collect::<Vec<_>>()}))
    };
    let mut compiler = Compiler::default();
    compiler.apply(world.changes()).unwrap();
    compiler.apply([rules(255)]).unwrap();
    let refused = compiler.apply([rules(256)]).unwrap_err();
    let expected = "a ruleset has room for 256 rows, and 257 are needed, by NetworkPolicy web/ports";
    assert_eq!(refused.to_string(), expected);
    let ask = |from: &str, port| {
        let from = End::Outside(from.parse().unwrap());
        packet(&world, Direction::Ingress, world.end("web/pod1"), from, (TCP, port)).unwrap()
    };
    assert!(lookup(compiler.rows(), &ask("10.0.0.255", 255)).is_allowed);
    assert!(!lookup(compiler.rows(), &ask("10.0.1.0", 256)).is_allowed);
}

/// Rules by the hundred, each with ports of its own, of a few peers: what a controller makes that writes a
/// rule for each port.
fn many_sets_of_ports() -> World {
    let mut world = world();
    for (i, pod) in (0..).zip(world.pods.values_mut()) {
        pod.ports = vec![("http".to_owned(), "TCP", 3000 + i), ("dns".to_owned(), "UDP", 53)];
    }
    let peers = |i: u16| match i % 4 {
        0 => json!([]),
        1 => json!([{"podSelector": {"matchLabels": {"app": "app3"}}}]),
        2 => json!([{"podSelector": {"matchLabels": {"app": "app4"}}}, {"ipBlock": {"cidr": "10.0.0.5/32"}}]),
        _ => json!([{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.7/32"]}}]),
    };
    let ports = |i: u16| match i % 7 {
        0 => json!([{"port": i, "endPort": i + 9}]),
        1 => json!([{"port": i}, {"port": "http"}]),
        2 => json!([{"protocol": "UDP", "port": i}, {"port": i}]),
        _ => json!([{"port": i}]),
    };
    let ingress: Vec<_> = (1..=300).map(|i| json!({"from": peers(i), "ports": ports(i)})).collect();
    let egress: Vec<_> = (1..=300).map(|i| json!({"to": peers(i), "ports": ports(i)})).collect();
    let spec = json!({"policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": egress});
    world.policies.insert(("web".to_owned(), "old".to_owned()), spec);
    // Actions in turn are no union: what one joins must not reach over another.
    for i in 0..12_u16 {
        let action = ["Deny", "Accept"][usize::from(i) / 6];
        let rules: Vec<_> = (1..=25)
            .map(|n| {
                json!({"action": action, "to": [{"networks": ["10.0.0.6/32"]}],
                "protocols": [{"tcp": {"destinationPort": {"number": 25 * i + n}}}]})
            })
            .collect();
        let spec = json!({"tier": "Admin", "priority": i, "subject": {"namespaces": {}}, "egress": rules});
        world.cluster_policies.insert(format!("c{i}"), spec);
    }
    world
}

#[test]
fn rules_of_equal_peers_with_hundreds_of_sets_of_ports_mean_what_the_oracle_says_and_name_the_rule() {
    let world = many_sets_of_ports();
    let engine = world.engine();
    let outside = ["192.0.2.1", "192.0.2.7", "10.0.0.9"].map(|it| End::Outside(it.parse().unwrap()));
    let ends: Vec<_> = (1..=6).map(|i| format!("web/pod{i}")).collect();
    let ends: Vec<_> = ends.iter().map(|it| world.end(it)).chain(outside).collect();
    let me = world.end("web/pod1");
    let (mut ruled, mut denied) = (0, 0);
    for port in (0..=320).step_by(11).chain([3000, 3002, 3005]) {
        for (other, protocol) in ends.iter().flat_map(|it| [(*it, TCP), (*it, UDP)]) {
            let traffic = (protocol, port);
            for (way, direction) in [(Way::In, Direction::Ingress), (Way::Out, Direction::Egress)] {
                let verdict = engine.verdict(&world, direction, me, other, traffic).unwrap();
                let expected = oracle::one_way(&world, way, me, other, traffic);
                assert_eq!(verdict.is_allowed, expected, "{direction:?} {other:?} {traffic:?} {verdict:?}");
                let (from, to) = if way == Way::In { (other, me) } else { (me, other) };
                let trace = engine.trace(&world, from, to, traffic);
                let step = if way == Way::In { trace.ingress } else { trace.egress };
                let decided = engine.compiler.rule_of(&verdict, Some(traffic));
                let Because::Rule(traced, action) = step.because else {
                    assert_eq!(decided, None, "{verdict:?}");
                    continue;
                };
                (ruled, denied) = (ruled + 1, denied + usize::from(action == Action::Deny));
                let Some(Decided { rule, of: 1 }) = decided else { panic!("{decided:?}") };
                // Of rules that are a union, either may be named.
                if rule != traced {
                    assert!(allows_alone(&world, &rule, way, (me, other), traffic), "{rule:?} {traffic:?}");
                }
            }
        }
    }
    assert!(ruled > 200 && denied > 5, "{ruled} {denied}");
}

/// Whether a rule of `web/old` lets a packet through without the others, and without the cluster's policies.
fn allows_alone(
    world: &World,
    rule: &RuleId,
    way: Way,
    (me, other): (End<'_>, End<'_>),
    traffic: Traffic,
) -> bool {
    let (list, direction) = if way == Way::In { ("ingress", "Ingress") } else { ("egress", "Egress") };
    let mut spec = json!({"policyTypes": [direction]});
    let key = ("web".to_owned(), "old".to_owned());
    spec[list] = json!([world.policies[&key][list][rule.rule]]);
    let (namespaces, pods) = (world.namespaces.clone(), world.pods.clone());
    let alone = World { namespaces, pods, policies: [(key, spec)].into(), ..World::default() };
    rule.policy == PolicyId::namespaced("web", "old") && oracle::one_way(&alone, way, me, other, traffic)
}

#[test]
fn a_rule_among_joined_ones_is_one_of_many_where_the_port_is_not_known() {
    let world = many_sets_of_ports();
    let engine = world.engine();
    let (me, other) = (world.end("web/pod1"), world.end("web/pod3"));
    let verdict = engine.verdict(&world, Direction::Ingress, me, other, (TCP, 17)).unwrap();
    let words = |traffic| shown::because(&engine.compiler, &verdict, Direction::Ingress, traffic);
    assert_eq!(words(Some((TCP, 17))), "NetworkPolicy web/old ingress[16] accepts");
    let unknown = "one of 75 rules, by the port; the first: NetworkPolicy web/old ingress[0] accepts";
    assert_eq!(words(None), unknown);
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
    let outside = |address: &str| End::Outside(address.parse().unwrap());
    let ask = |from| {
        let packet = packet(&world, Direction::Ingress, world.end("web/pod1"), outside(from), (TCP, 80));
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

/// A policy of the namespace `web` whose one rule has these peers.
fn of_peers(peers: impl Iterator<Item = Value>) -> Change {
    network_policy("web", "wide", &json!({"ingress": [{"from": peers.collect::<Vec<_>>()}]}))
}

#[test]
fn peers_that_match_too_much_are_refused_before_they_take_memory() {
    assert_eq!(Capacities::default().matches, 1 << 20);
    let mut world = world();
    for i in 0..135 {
        let address = format!("10.1.{}.{}", i / 250, i % 250 + 1);
        world.add_pod("web", &format!("other{i}"), &address, &[("app", &format!("other{i}"))]);
    }
    let all_but = |i: u32| {
        let except = format!("172.16.{}.{}/32", i / 250, i % 250 + 1);
        json!({"ipBlock": {"cidr": "0.0.0.0/0", "except": [except]}})
    };
    let other_than = |i: u32| {
        let label = json!([{"key": "app", "operator": "NotIn", "values": [format!("none{i}")]}]);
        json!({"podSelector": {"matchExpressions": label}})
    };
    let capacities = Capacities { matches: 1 << 14, ..Capacities::default() };
    let mut engine = Engine { compiler: Compiler::new(Table::A, capacities), ..Engine::default() };
    engine.apply(world.changes());
    let (rows, usage): (Vec<_>, _) = (engine.compiler.rows().all().collect(), engine.compiler.usage());
    // Each block contains what all others except, and each selector all pods.
    for wide in [of_peers((0..135).map(all_but)), of_peers((0..135).map(other_than))] {
        let refused = engine.compiler.apply([wide]).unwrap_err();
        assert_eq!((refused.resource, refused.capacity), (Resource::Matches, 1 << 14), "{refused}");
        assert!(refused.needed < (1 << 14) + 300, "{refused}: found out too late");
        assert!(refused.to_string().contains("the compiler has room for 16384 matches"), "{refused}");
        assert_eq!(refused.policy, Some(PolicyId::namespaced("web", "wide")));
        assert!(engine.compiler.rows().all().eq(rows.iter().cloned()));
        assert_eq!(engine.compiler.usage(), usage);
    }
    engine.apply([of_peers((0..50).map(all_but).chain((0..50).map(other_than)))]);
}

#[test]
fn memory_is_given_back_in_several_steps_which_change_no_row() {
    let mut world = world();
    for i in 0..600 {
        let address = format!("10.1.{}.{}", i / 250, i % 250 + 1);
        world.add_pod("web", &format!("other{i}"), &address, &[("app", "app2")]);
    }
    let mut engine = world.engine();
    let rows: Vec<_> = engine.compiler.rows().all().collect();
    let steps = (0..100).take_while(|_| engine.compiler.pack()).count();
    assert!((2..100).contains(&steps), "{steps}");
    assert!(!engine.compiler.pack() && engine.compiler.rows().all().eq(rows));
    engine.apply([world.pod("web/other7")]);
    assert!(!engine.compiler.pack(), "after a small change");
}

#[test]
fn the_blocks_of_a_rule_need_one_class_and_one_row_of_rules() {
    let world = world();
    let mut engine = world.engine();
    let (classes, rules) = (engine.compiler.usage().classes, engine.compiler.usage_of(Resource::Rules).0);
    let block = |i: u32| json!({"ipBlock": {"cidr": format!("172.16.{}.{}/32", i / 250, i % 250)}});
    engine.apply([of_peers((0..1_000).map(block))]);
    assert_eq!(engine.compiler.usage_of(Resource::Blocks).0, 1_000);
    assert_eq!(engine.compiler.usage().classes, classes + 1);
    assert!(engine.compiler.usage_of(Resource::Rules).0 <= rules + 2);
    let to = world.end("web/pod1");
    let is_allowed = |from: &str| engine.allows(&world, End::Outside(from.parse().unwrap()), to, (TCP, 80));
    assert!(is_allowed("172.16.0.0") && is_allowed("172.16.3.249"));
    assert!(!is_allowed("172.16.4.0") && !is_allowed("172.15.0.0"));
}
