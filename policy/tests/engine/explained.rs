//! What operators get to read.

use ferrule_policy::{Action, Because, Direction, Party, PolicyId, RuleId, TraceError};
use serde_json::json;

use super::world::{End, TCP, World};

fn world() -> World {
    let mut world = World::default();
    world.add_namespace("web", &[]);
    world.add_pod("web", "server", "10.0.0.1", &[("app", "server")]);
    world.add_pod("web", "client", "10.0.0.2", &[("app", "client")]);
    // Of another node.
    world.endpoints.remove(&1);
    let allow = json!({"podSelector": {"matchLabels": {"app": "server"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": 80}]}]});
    world.policies.insert(("web".to_owned(), "allow".to_owned()), allow);
    let cluster = |tier: &str, priority: u16| {
        json!({"tier": tier, "priority": priority, "subject": {"namespaces": {}},
            "ingress": [{"action": "Pass", "from": [{"pods": {"podSelector": {}}}]}]})
    };
    world.cluster_policies.insert("z".to_owned(), cluster("Admin", 1));
    world.cluster_policies.insert("a".to_owned(), cluster("Admin", 2));
    world.cluster_policies.insert("base".to_owned(), cluster("Baseline", 0));
    world
}

#[test]
fn an_explanation_has_the_policies_in_the_order_of_judgement() {
    let world = world();
    let engine = world.engine();
    let explanation = engine.compiler.explain("web", "server").unwrap();
    let names: Vec<_> = explanation.ingress.policies.iter().map(|it| it.id.to_string()).collect();
    assert_eq!(
        names,
        [
            "ClusterNetworkPolicy z",
            "ClusterNetworkPolicy a",
            "NetworkPolicy web/allow",
            "ClusterNetworkPolicy base"
        ]
    );
    assert!(explanation.ingress.isolates && !explanation.egress.isolates);
    assert!(explanation.egress.policies.is_empty());
    assert!(!engine.compiler.explain("web", "client").unwrap().ingress.isolates);
    assert!(engine.compiler.explain("web", "ghost").is_none());
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(json["ingress"]["policies"][2]["id"], "NetworkPolicy web/allow");
}

#[test]
fn a_trace_names_the_rule_that_decides_for_pods_of_any_node() {
    let world = world();
    let engine = world.engine();
    let trace = |from, to, port| engine.trace(&world, from, to, (TCP, port));
    let allowed = trace(world.end("web/client"), world.end("web/server"), 80);
    let rule = RuleId { policy: PolicyId::namespaced("web", "allow"), rule: 0 };
    assert!(allowed.is_allowed);
    assert_eq!(allowed.ingress.because, Because::Rule(rule, Action::Accept));
    assert_eq!(allowed.egress.because, Because::Default);
    let denied = trace(world.end("web/client"), world.end("web/server"), 81);
    let isolating = vec![PolicyId::namespaced("web", "allow")];
    assert_eq!((denied.is_allowed, denied.ingress.because), (false, Because::NotAllowed(isolating)));
    let node = End::OwnNode("192.168.0.1".parse().unwrap());
    assert_eq!(trace(node, world.end("web/server"), 81).ingress.because, Because::OwnNode);
    assert_eq!(trace(node, world.end("web/server"), 81).egress.because, Because::NotPoliced);
    let itself = trace(world.end("web/server"), world.end("web/server"), 81);
    assert_eq!(itself.ingress.because, Because::OwnAddress);
    // By its address, a pod is the same pod.
    let by_address = trace(End::Outside("10.0.0.2".parse().unwrap()), world.end("web/server"), 80);
    assert_eq!(by_address, allowed);
}

#[test]
fn a_trace_of_what_is_not_known_says_so() {
    let world = world();
    let engine = world.engine();
    let pod = |name: &str| Party::Pod { namespace: "web".to_owned(), name: name.to_owned() };
    let error = engine.compiler.trace(&pod("server"), &pod("ghost"), TCP, 80).unwrap_err();
    assert_eq!(error.to_string(), "found no pod web/ghost, expected one that the agent watches");
    let v6 = Party::Address("fd00::1".parse().unwrap());
    assert_eq!(engine.compiler.trace(&pod("server"), &v6, TCP, 80), Err(TraceError::NoFamily));
}

#[test]
fn rows_name_the_same_rule_as_a_trace() {
    let mut world = world();
    world.endpoints.insert(7, "web/server".to_owned());
    let engine = world.engine();
    let (from, to) = (world.end("web/client"), world.end("web/server"));
    let verdict = engine.verdict(&world, Direction::Ingress, to, from, (TCP, 80)).unwrap();
    let Because::Rule(traced, _) = engine.trace(&world, from, to, (TCP, 80)).ingress.because else {
        panic!()
    };
    assert_eq!(engine.compiler.rule_of(&verdict, None).map(|it| it.rule), Some(traced));
}
