//! The order of judgement: tiers, priorities, rules.

use serde_json::{Value, json};

use super::world::{TCP, World, packet};

fn world() -> World {
    let mut world = World::default();
    world.add_namespace("web", &[]);
    world.add_pod("web", "server", "10.0.0.1", &[]);
    world.add_pod("web", "client", "10.0.0.2", &[]);
    world
}

fn policy(tier: &str, priority: u16, actions: &[&str]) -> Value {
    let rules: Vec<_> =
        actions.iter().map(|it| json!({"action": it, "from": [{"namespaces": {}}]})).collect();
    json!({"tier": tier, "priority": priority, "subject": {"namespaces": {}}, "ingress": rules})
}

/// Whether the client reaches the server, and which policy and rule decides.
fn decided(world: &World) -> (bool, Option<String>) {
    let engine = world.engine();
    let (from, to) = (world.end("web/client"), world.end("web/server"));
    let verdict = engine.verdict(world, ferrule_policy::Direction::Ingress, to, from, (TCP, 80)).unwrap();
    let rule = engine.compiler.rule_of(&verdict, Some((TCP, 80))).map(|it| it.rule);
    let rule = rule.map(|it| format!("{} {}", it.policy.name, it.rule));
    (verdict.is_allowed, rule)
}

#[test]
fn the_first_rule_that_matches_decides_its_tier() {
    for (policies, expected) in [
        (
            vec![("a", policy("Admin", 2, &["Accept"])), ("b", policy("Admin", 1, &["Deny"]))],
            (false, Some("b 0")),
        ),
        (vec![("a", policy("Admin", 1, &["Accept", "Deny"]))], (true, Some("a 0"))),
        (vec![("a", policy("Admin", 1, &["Pass", "Deny"]))], (true, None)),
        (
            vec![("a", policy("Admin", 1, &["Pass"])), ("b", policy("Baseline", 0, &["Deny"]))],
            (false, Some("b 0")),
        ),
        (
            vec![("a", policy("Admin", 1000, &["Deny"])), ("b", policy("Baseline", 0, &["Accept"]))],
            (false, Some("a 0")),
        ),
        (vec![("a", policy("Baseline", 1, &["Pass", "Deny"]))], (true, None)),
        (
            vec![("a", policy("Baseline", 1, &["Accept"])), ("b", policy("Baseline", 2, &["Deny"]))],
            (true, Some("a 0")),
        ),
    ] {
        let mut world = world();
        for (name, spec) in &policies {
            world.cluster_policies.insert((*name).to_owned(), spec.clone());
        }
        let (is_allowed, rule) = decided(&world);
        assert_eq!((is_allowed, rule.as_deref()), expected, "{policies:?}");
    }
}

#[test]
fn network_policies_are_between_the_tiers_and_final_for_isolated_pods() {
    let isolates = json!({"policyTypes": ["Ingress"]});
    let allows = json!({"ingress": [{"from": [{"podSelector": {}}]}]});
    for (admin, namespaced, baseline, expected) in [
        ("Accept", Some(&isolates), "Deny", (true, Some("admin 0"))),
        ("Pass", Some(&isolates), "Accept", (false, None)),
        ("Pass", Some(&allows), "Deny", (true, Some("np 0"))),
        ("Deny", Some(&allows), "Accept", (false, Some("admin 0"))),
        ("Pass", None, "Deny", (false, Some("baseline 0"))),
    ] {
        let mut world = world();
        world.cluster_policies.insert("admin".to_owned(), policy("Admin", 1, &[admin]));
        world.cluster_policies.insert("baseline".to_owned(), policy("Baseline", 1, &[baseline]));
        if let Some(spec) = namespaced {
            world.policies.insert(("web".to_owned(), "np".to_owned()), spec.clone());
        }
        let (is_allowed, rule) = decided(&world);
        assert_eq!((is_allowed, rule.as_deref()), expected, "{admin} {namespaced:?} {baseline}");
    }
}

#[test]
fn an_accepted_way_out_spares_no_way_in() {
    let mut world = world();
    let accept = json!({"tier": "Admin", "priority": 0, "subject": {"namespaces": {}},
        "egress": [{"action": "Accept", "to": [{"namespaces": {}}]}]});
    world.cluster_policies.insert("out".to_owned(), accept);
    world.policies.insert(("web".to_owned(), "in".to_owned()), json!({}));
    let engine = world.engine();
    assert!(!engine.allows(&world, world.end("web/client"), world.end("web/server"), (TCP, 80)));
}

#[test]
fn of_rules_that_share_a_bit_the_one_that_matches_is_named() {
    let mut world = world();
    world.add_pod("web", "third", "10.0.0.3", &[("app", "third")]);
    world.pods.get_mut("web/client").unwrap().labels.insert("app".to_owned(), "client".to_owned());
    let rule = |app: &str| json!({"from": [{"podSelector": {"matchLabels": {"app": app}}}], "ports": [{"port": 80}]});
    let key = |name: &str| ("web".to_owned(), name.to_owned());
    world.policies.insert(key("a"), json!({"ingress": [rule("third"), rule("nothing")]}));
    world.policies.insert(key("b"), json!({"ingress": [rule("nothing"), rule("client")]}));
    assert_eq!(decided(&world), (true, Some("b 1".to_owned())));
}

#[test]
fn a_namespace_that_changes_sides_is_not_open_in_between() {
    let mut world = world();
    let side = |name: &str| {
        let pods = json!({"namespaces": {"matchLabels": {"env": name}}});
        json!({"tier": "Admin", "priority": 1, "subject": pods, "ingress": [{"action": "Deny", "from": [pods]}]})
    };
    for name in ["dev", "prod"] {
        world.cluster_policies.insert(name.to_owned(), side(name));
    }
    let label = |world: &mut World, name: &str| {
        world.namespaces.get_mut("web").unwrap().insert("env".to_owned(), name.to_owned());
    };
    label(&mut world, "dev");
    let mut engine = world.engine();
    let mut rows = engine.rows.clone();
    label(&mut world, "prod");
    let ops = engine.apply([world.namespace("web")]).ops;
    let (from, to) = (world.end("web/client"), world.end("web/server"));
    let packet = packet(&world, ferrule_policy::Direction::Ingress, to, from, (TCP, 80)).unwrap();
    // The rules of one side with the labels of the other would allow.
    for op in &ops {
        rows.apply(op);
        assert!(!ferrule_policy::lookup(&rows, &packet).is_allowed, "open after {op:?}");
    }
    assert!(ops.iter().any(|op| matches!(op, ferrule_policy::Op::Peer(..) | ferrule_policy::Op::Rule(..))));
}
