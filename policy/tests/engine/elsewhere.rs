//! What went wrong in other implementations, by behaviour: the part that the compiler decides.

use ferrule_policy::{
    Capacities, Change, Compiler, Direction, Endpoint, EndpointId, Op, PolicyId, RulesetId, Table,
};
use serde_json::json;

use super::world::{End, TCP, World, network_policy};

const HTTP: (u8, u16) = (TCP, 80);

fn two_pods() -> World {
    let mut world = World::default();
    world.add_namespace("web", &[]);
    world.add_pod("web", "server", "10.0.0.1", &[("app", "server")]);
    world.add_pod("web", "client", "10.0.0.2", &[("app", "client")]);
    world
}

fn set(world: &mut World, name: &str, spec: serde_json::Value) {
    world.policies.insert(("web".to_owned(), name.to_owned()), spec);
}

#[test]
fn an_empty_list_of_rules_isolates_and_an_empty_list_of_peers_does_not() {
    for (spec, is_allowed) in [
        (json!({"podSelector": {}}), false),
        (json!({"podSelector": {}, "ingress": []}), false),
        (json!({"podSelector": {}, "ingress": null}), false),
        (json!({"podSelector": {}, "ingress": [{}]}), true),
        (json!({"podSelector": {}, "ingress": [{"from": [], "ports": []}]}), true),
        (json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}), true),
        (json!({"podSelector": {}, "ingress": [{"from": [{}]}]}), false),
        // Neither type nor rules: egress stays free, and ingress is isolated.
        (json!({"podSelector": {}, "egress": []}), false),
        (json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}), true),
    ] {
        let mut world = two_pods();
        set(&mut world, "p", spec.clone());
        let engine = world.engine();
        let allows = engine.allows(&world, world.end("web/client"), world.end("web/server"), HTTP);
        assert_eq!(allows, is_allowed, "{spec}");
    }
}

#[test]
fn a_late_deletion_takes_no_address_from_its_new_owner() {
    let mut world = two_pods();
    set(
        &mut world,
        "p",
        json!({"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}]}),
    );
    world.endpoints.retain(|_, uid| uid == "web/server");
    let mut engine = world.engine();
    let mut successor = world.pods["web/client"].clone();
    successor.created = "2026-01-01T00:00:00Z".to_owned();
    world.pods.insert("second".to_owned(), successor.clone());
    engine.apply([world.pod("second"), Change::PodGone { uid: "web/client".to_owned() }]);
    let allows = |engine: &super::world::Engine, world: &World| {
        engine.allows(world, End::Outside(successor.addresses[0]), world.end("web/server"), HTTP)
    };
    assert!(allows(&engine, &world));
    // The address goes to a pod that no rule allows, and the old owner's deletion is late.
    world.pods.get_mut("second").unwrap().labels.clear();
    let mut third = world.pods["second"].clone();
    third.created = "2026-01-02T00:00:00Z".to_owned();
    engine.apply([Change::Pod(successor.object("second").into())]);
    world.pods.insert("third".to_owned(), third);
    engine.apply([world.pod("third")]);
    assert!(!allows(&engine, &world), "a stale owner grants");
    engine.apply([Change::PodGone { uid: "second".to_owned() }]);
    assert!(!allows(&engine, &world));
    // A replayed deletion of the first.
    engine.apply([Change::PodGone { uid: "web/client".to_owned() }]);
    assert!(engine.compiler.rows().peer(successor.addresses[0].into()).is_some());
}

#[test]
fn a_late_deletion_of_a_policy_or_a_namespace_takes_nothing_from_its_successor() {
    let mut world = two_pods();
    set(&mut world, "p", json!({"podSelector": {}}));
    let mut engine = world.engine();
    let late = ferrule_policy::PolicyId::namespaced("web", "p");
    engine.apply([Change::PolicyGone { id: late, uid: "earlier".to_owned() }]);
    engine.apply([Change::NamespaceGone { name: "web".to_owned(), uid: "earlier".to_owned() }]);
    assert!(!engine.allows(&world, world.end("web/client"), world.end("web/server"), HTTP));
    assert!(engine.compiler.rows().peer(world.pods["web/client"].addresses[0].into()).is_some());
}

#[test]
fn a_terminal_pod_has_no_part_in_its_former_address() {
    let mut world = two_pods();
    set(
        &mut world,
        "p",
        json!({"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}]}),
    );
    world.endpoints.retain(|_, uid| uid == "web/server");
    let client = world.pods["web/client"].addresses[0];
    world.pods.get_mut("web/client").unwrap().is_terminal = true;
    let mut engine = world.engine();
    assert!(!engine.allows(&world, End::Outside(client), world.end("web/server"), HTTP));
    // Another pod gets the address, and is older than the one that has ended.
    let mut heir = world.pods["web/client"].clone();
    heir.is_terminal = false;
    world.pods.insert("heir".to_owned(), heir);
    engine.apply([world.pod("heir")]);
    assert!(engine.allows(&world, world.end("heir"), world.end("web/server"), HTTP));
    engine.apply([world.pod("web/client")]);
    assert!(engine.allows(&world, world.end("heir"), world.end("web/server"), HTTP));
}

#[test]
fn nested_and_overlapping_blocks_hide_nothing_from_each_other() {
    let mut world = two_pods();
    let block = |cidr: &str, except: &[&str], port: u16| json!({"from": [{"ipBlock": {"cidr": cidr, "except": except}}], "ports": [{"port": port}]});
    // Host bits: not another prefix.
    set(
        &mut world,
        "wide",
        json!({"ingress": [block("172.16.0.0/12", &[], 1), block("172.17.161.0/12", &[], 2)]}),
    );
    set(&mut world, "except", json!({"ingress": [block("172.16.0.0/12", &["172.16.5.0/24"], 3)]}));
    set(&mut world, "narrow", json!({"ingress": [block("172.16.5.7/32", &[], 4)]}));
    let engine = world.engine();
    let open = |address: &str| {
        let from = End::Outside(address.parse().unwrap());
        let allows = |port: &u16| engine.allows(&world, from, world.end("web/server"), (TCP, *port));
        (1..=4).filter(allows).collect::<Vec<u16>>()
    };
    assert_eq!(open("172.16.1.1"), [1, 2, 3]);
    // Excepted from one peer only, for its ports only.
    assert_eq!(open("172.16.5.8"), [1, 2]);
    assert_eq!(open("172.16.5.7"), [1, 2, 4]);
    assert_eq!(open("172.32.0.1"), [0; 0]);
}

#[test]
fn a_broad_denial_is_not_hidden_by_a_narrower_rule_behind_it() {
    let mut world = two_pods();
    world.cluster_policies.insert(
        "c".to_owned(),
        json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "egress": [
            {"action": "Deny", "to": [{"networks": ["172.16.0.0/12"]}]},
            {"action": "Accept", "to": [{"networks": ["172.16.5.0/24"]}]},
        ]}),
    );
    let engine = world.engine();
    let allows =
        |to: &str| engine.allows(&world, world.end("web/client"), End::Outside(to.parse().unwrap()), HTTP);
    assert!(!allows("172.16.5.1") && !allows("172.16.6.1") && allows("192.0.2.1"));
}

#[test]
fn a_port_name_means_what_the_destination_says_and_all_that_it_says() {
    let mut world = two_pods();
    world.add_pod("web", "other", "10.0.0.3", &[("app", "server")]);
    let port = |name: &str, number| (name.to_owned(), "TCP", number);
    world.pods.get_mut("web/server").unwrap().ports = vec![port("http", 8080), port("http", 8081)];
    world.pods.get_mut("web/other").unwrap().ports = vec![port("http", 9090)];
    world.pods.get_mut("web/client").unwrap().ports = vec![port("http", 80)];
    for (way, peers) in [("ingress", "from"), ("egress", "to")] {
        let mut world = world.clone();
        let types = if way == "ingress" { "Ingress" } else { "Egress" };
        let mut spec = json!({"policyTypes": [types]});
        spec[way] = json!([{peers: [{"podSelector": {}}], "ports": [{"port": "http"}]}]);
        set(&mut world, "p", spec);
        let engine = world.engine();
        let open = |to: &str| {
            let allows =
                |port: &u16| engine.allows(&world, world.end("web/client"), world.end(to), (TCP, *port));
            [80, 8080, 8081, 9090].into_iter().filter(allows).collect::<Vec<_>>()
        };
        assert_eq!(open("web/server"), [8080, 8081], "{way}");
        assert_eq!(open("web/other"), [9090], "{way}");
        // Outside of the cluster, nothing has port names.
        let outside = End::Outside("192.0.2.1".parse().unwrap());
        assert_eq!(engine.allows(&world, world.end("web/client"), outside, HTTP), way == "ingress");
    }
}

#[test]
fn numbers_of_a_restarted_agent_never_mix_with_those_of_the_earlier_one() {
    let mut world = two_pods();
    set(
        &mut world,
        "p",
        json!({"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}]}),
    );
    let engine = world.engine();
    let mut restarted = ferrule_policy::Compiler::new(Table::B, ferrule_policy::Capacities::default());
    restarted.apply(world.changes()).unwrap();
    let rulesets = |compiler: &ferrule_policy::Compiler| {
        let rows: Vec<_> = compiler.rows().all().collect();
        let ids = rows.into_iter().filter_map(|op| match op {
            ferrule_policy::Op::Ruleset(id, _) => Some(id),
            _ => None,
        });
        ids.collect::<std::collections::BTreeSet<_>>()
    };
    let (old, new) = (rulesets(&engine.compiler), rulesets(&restarted));
    assert!(!old.is_empty() && !new.is_empty() && old.is_disjoint(&new));
    let row = restarted.rows().endpoint(ferrule_policy::EndpointId(1)).unwrap();
    assert_eq!(row.table, Table::B);
}

#[test]
fn a_policy_that_goes_from_ingress_leaves_egress_alone() {
    let mut world = two_pods();
    set(&mut world, "in", json!({"policyTypes": ["Ingress"]}));
    let mut engine = world.engine();
    let out = |engine: &super::world::Engine, world: &World| {
        let outside = End::Outside("192.0.2.1".parse().unwrap());
        engine.verdict(world, Direction::Egress, world.end("web/client"), outside, HTTP).unwrap().is_allowed
    };
    assert!(out(&engine, &world));
    world.policies.clear();
    engine.apply([world.policy(&("web".to_owned(), "in".to_owned()))]);
    assert!(out(&engine, &world));
    assert!(engine.allows(&world, world.end("web/client"), world.end("web/server"), HTTP));
}

#[test]
fn names_that_are_equal_when_joined_are_different_policies() {
    let mut world = two_pods();
    for namespace in ["ab", "a"] {
        world.add_namespace(namespace, &[]);
    }
    world.add_pod("ab", "c", "10.0.0.7", &[]);
    world.add_pod("a", "bc", "10.0.0.8", &[]);
    let mut engine = world.engine();
    engine.apply([network_policy("ab", "c", &json!({})), network_policy("a", "bc", &json!({}))]);
    for uid in ["ab/c", "a/bc"] {
        assert!(!engine.allows(&world, world.end("web/client"), world.end(uid), HTTP), "{uid}");
    }
    engine.apply([Change::PolicyGone {
        id: ferrule_policy::PolicyId::namespaced("ab", "c"),
        uid: "ab/c".to_owned(),
    }]);
    assert!(engine.allows(&world, world.end("web/client"), world.end("ab/c"), HTTP));
    assert!(!engine.allows(&world, world.end("web/client"), world.end("a/bc"), HTTP));
}

#[test]
fn without_any_policy_every_endpoint_is_open_whether_its_pod_is_known_or_not() {
    let open = RulesetId::OPEN;
    let endpoint = |id, uid: &str| {
        let addresses = vec!["10.0.9.9".parse().unwrap()];
        Change::Endpoint(Endpoint { id: EndpointId(id), uid: uid.to_owned(), addresses })
    };
    let mut compiler = Compiler::default();
    let row = |compiler: &Compiler, id| {
        let row = compiler.rows().endpoint(EndpointId(id));
        row.map(|row| (row.ingress == open, row.egress == open))
    };
    compiler.apply([endpoint(90, "unknown")]).unwrap();
    assert_eq!(row(&compiler, 90), Some((true, true)));
    assert!(!compiler.enforces());

    let mut world = two_pods();
    set(&mut world, "p", json!({"policyTypes": ["Ingress"]}));
    compiler.apply(world.changes()).unwrap();
    assert!(compiler.enforces());
    assert_eq!(row(&compiler, 90), None, "the pod may be one that the policy selects");
    assert_eq!(row(&compiler, 1).map(|(ingress, egress)| ingress && egress), Some(false));
    compiler.apply([endpoint(91, "later")]).unwrap();
    assert_eq!(row(&compiler, 91), None);

    let gone = PolicyId::namespaced("web", "p");
    compiler.apply([Change::PolicyGone { id: gone, uid: "web/p".to_owned() }]).unwrap();
    for id in [1, 90, 91] {
        assert_eq!(row(&compiler, id), Some((true, true)), "{id}");
    }
}

#[test]
fn a_renewed_compiler_judges_alike_from_the_other_table() {
    let mut world = two_pods();
    set(
        &mut world,
        "p",
        json!({"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}},
                                     {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}}],
                            "ports": [{"port": 80}]}]}),
    );
    let mut engine = world.engine();
    let judge = |engine: &super::world::Engine| {
        ["192.0.2.1", "192.0.2.200", "10.0.0.77"].map(|it| {
            let outside = End::Outside(it.parse().unwrap());
            let verdict =
                engine.verdict(&world, Direction::Ingress, world.end("web/server"), outside, HTTP).unwrap();
            verdict.is_allowed
        })
    };
    let (before, epoch) = (judge(&engine), engine.compiler.epoch());
    assert_eq!(before, [true, false, false]);
    engine.compiler.renew(Table::B).unwrap();
    let rows = engine.compiler.rows();
    assert!(rows.all().all(|op| match op {
        Op::Ruleset(id, _) => id.0 >> 31 == 1,
        Op::Endpoint(_, Some(row)) => row.table == Table::B && row.epoch > epoch,
        _ => true,
    }));
    engine.rows = rows.clone();
    assert_eq!(judge(&engine), before);
    assert!(engine.allows(&world, world.end("web/client"), world.end("web/server"), HTTP));
}

#[test]
fn epochs_go_on_after_those_of_an_earlier_compiler() {
    let mut world = two_pods();
    set(&mut world, "p", json!({"policyTypes": ["Ingress"]}));
    let mut compiler = Compiler::new(Table::B, Capacities::default()).after_epoch(41);
    compiler.apply(world.changes()).unwrap();
    assert_eq!(compiler.rows().endpoint(EndpointId(1)).map(|row| row.epoch), Some(42));
}
