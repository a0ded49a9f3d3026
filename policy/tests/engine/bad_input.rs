//! Policies that the API allows but few expect, and such as no API server would store: defined, said, and
//! never open.

use std::env;

use fastrand::Rng;
use ferrule_policy::{
    Action, Change, Compiler, Direction, Peers, Policy,
    object::{self, PolicyObject},
};
use serde_json::{Map, Value, json};

use super::{
    random,
    world::{TCP, World, network_policy},
};

fn object(spec: Value) -> PolicyObject {
    let object = json!({"metadata": {"namespace": "web", "name": "p", "uid": "u"}, "spec": spec});
    serde_json::from_str(&object.to_string()).unwrap()
}

fn namespaced(spec: Value) -> Policy {
    object::network_policy(&object(spec))
}

fn cluster(spec: Value) -> Policy {
    object::cluster_network_policy(&object(spec)).unwrap()
}

fn problems(policy: &Policy) -> Vec<String> {
    policy.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_network_policy_that_is_not_understood_isolates_and_says_why() {
    let selects = json!({"matchLabels": {"app": "x"}});
    for (mut spec, found) in [
        (
            json!({"ingress": [{"from": [{"podSelector": {}, "newer": {}}]}]}),
            "spec.ingress[0].from[0].newer: unknown field `newer`, expected one of",
        ),
        (
            json!({"ingress": [{"from": [{}]}]}),
            "spec.ingress[0].from[0]: found none, expected exactly one of",
        ),
        (
            json!({"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}]}),
            "spec.ingress[0].from[0]: found podSelector or",
        ),
        (
            json!({"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0/8"}}]}]}),
            "found \"10.0.0/8\", expected a CIDR",
        ),
        (
            json!({"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["x"]}}]}]}),
            "found \"x\", expected a CIDR",
        ),
        (
            json!({"ingress": [{"ports": [{"protocol": "QUIC"}]}]}),
            "spec.ingress[0].ports[0].protocol: unknown variant `QUIC`",
        ),
        (json!({"ingress": [{"ports": [{"port": 70000}]}]}), "found the port 70000, expected 1 to 65535"),
        (json!({"ingress": [{"ports": [{"port": 80, "endPort": 70}]}]}), "found the endPort 70"),
        (json!({"ingress": [{"ports": [{"port": "http", "endPort": 70}]}]}), "found the endPort 70"),
        (json!({"ingress": [{"ports": [{"port": true}]}]}), "expected a port's number or name"),
        (json!({"ingress": {}}), "spec.ingress: invalid type: map, expected a sequence"),
        (json!({"ingress": [{"sources": []}]}), "spec.ingress[0].sources: unknown field `sources`"),
        (
            json!({"ingress": [{"from": [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Matches"}]}}]}]}),
            "found the operator \"Matches\", expected In, NotIn, Exists or DoesNotExist",
        ),
        (
            json!({"ingress": [{"from": [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]}]}),
            "found no values, expected some with the operator \"In\"",
        ),
        (json!({"newer": 1}), "spec.newer: unknown field `newer`"),
    ] {
        spec["podSelector"] = selects.clone();
        let policy = namespaced(spec.clone());
        let [problem] = problems(&policy).try_into().unwrap_or_else(|it| panic!("{spec}: {it:?}"));
        assert!(problem.contains(found), "{problem:?} lacks {found:?}");
        assert!(problem.ends_with("; the policy isolates its pods and allows nothing"), "{problem}");
        assert_eq!((policy.ingress, policy.egress), (Some(Vec::new()), None), "{spec}");
        assert_eq!(policy.subject, namespaced(json!({"podSelector": selects})).subject);
    }
}

#[test]
fn unknown_subjects_are_all_pods_and_unknown_types_both_directions() {
    let all = namespaced(json!({})).subject;
    for (spec, directions) in [
        (json!({"podSelector": {"newer": 1}, "egress": [{}]}), (true, true)),
        (json!({"podSelector": {"newer": 1}, "policyTypes": ["Egress"]}), (false, true)),
        (json!({"policyTypes": ["Ingress", "Sideways"]}), (true, true)),
        (json!({"policyTypes": "Ingress"}), (true, true)),
        (json!("nonsense"), (true, true)),
        (json!([]), (true, true)),
    ] {
        let policy = namespaced(spec.clone());
        assert_eq!(policy.problems.len(), 1, "{spec}");
        assert_eq!((policy.ingress.is_some(), policy.egress.is_some()), directions, "{spec}");
        assert!(policy.ingress.iter().chain(&policy.egress).all(Vec::is_empty), "{spec}");
        assert_eq!(policy.subject, all, "{spec}");
    }
}

#[test]
fn what_the_api_allows_is_understood() {
    for spec in [
        json!({"policyTypes": ["Ingress", "Ingress", "Egress"]}),
        json!({"ingress": [{"from": [{"ipBlock": {"cidr": "010.1.2.3/08", "except": ["10.1.2.3/9", "192.0.2.0/24"]}}]}]}),
        json!({"ingress": [{"from": null, "ports": [{"protocol": null, "port": null, "endPort": null}]}], "egress": null}),
        json!({"podSelector": {"matchLabels": null, "matchExpressions": [{"key": "a", "operator": "Exists", "values": []}]}}),
        json!(null),
    ] {
        assert_eq!(problems(&namespaced(spec.clone())), [""; 0], "{spec}");
    }
}

#[test]
fn a_spec_that_is_too_long_isolates_all_pods() {
    let peers: Vec<_> =
        (0..30_000).map(|i| json!({"podSelector": {"matchLabels": {"k": format!("{i:0100}")}}})).collect();
    let policy = namespaced(json!({"ingress": [{"from": peers}]}));
    assert!(problems(&policy)[0].contains("bytes, expected at most 2097152"), "{:?}", problems(&policy));
    assert_eq!((policy.ingress, policy.egress), (Some(Vec::new()), Some(Vec::new())));
}

fn rule(action: &str, peer: Value) -> Value {
    json!({"tier": "Baseline", "priority": 7, "subject": {"namespaces": {}}, "egress": [
        {"name": "first", "action": action, "to": [{"namespaces": {}}, peer]},
        {"action": "Accept", "to": [{"namespaces": {}}]}]})
}

#[test]
fn a_cluster_rule_that_is_not_understood_accepts_nothing_and_denies_everything() {
    for peer in [
        json!({}),
        json!({"newer": {}}),
        json!({"namespaces": {}, "newer": {}}),
        json!({"domainNames": ["example.com"]}),
        json!({"networks": []}),
        json!({"networks": ["10.0.0.0/33"]}),
        json!({"namespaces": {}, "networks": ["10.0.0.0/8"]}),
        json!({"pods": {"namespaceSelector": {}}}),
    ] {
        for (action, effect) in
            [("Accept", "matches nothing"), ("Deny", "denies everything"), ("Pass", "denies everything")]
        {
            let policy = cluster(rule(action, peer.clone()));
            let [problem] = problems(&policy).try_into().unwrap();
            assert!(problem.starts_with("spec.egress[0]") && problem.ends_with(effect), "{problem}");
            let [first, second] = policy.egress.unwrap().try_into().unwrap();
            let expected = match action {
                "Accept" => (Action::Accept, Peers::Of(Vec::new())),
                _ => (Action::Deny, Peers::Any),
            };
            assert_eq!((first.action, first.peers), expected, "{peer}");
            assert_eq!((first.name.as_deref(), second.action), (Some("first"), Action::Accept));
        }
    }
    assert!(problems(&cluster(rule("Accept", json!({"domainNames": ["a.b"]}))))[0].contains("unsupported"));
    // An unknown action denies.
    let policy = cluster(rule("Audit", json!({"namespaces": {}})));
    assert_eq!(policy.egress.unwrap()[0].action, Action::Deny);
}

#[test]
fn cluster_ports_that_are_not_understood_close_their_rule() {
    for protocols in [
        json!([]),
        json!([{}]),
        json!([{"tcp": {}}]),
        json!([{"tcp": {"destinationPort": {}}}]),
        json!([{"tcp": {"destinationPort": {"number": 0}}}]),
        json!([{"tcp": {"destinationPort": {"number": 1, "range": {"start": 1, "end": 2}}}}]),
        json!([{"tcp": {"destinationPort": {"range": {"start": 9, "end": 2}}}}]),
        json!([{"tcp": {"destinationPort": {"number": 1}, "sourcePort": {"number": 1}}}]),
        json!([{"icmp": {}}]),
        json!([{"destinationNamedPort": ""}]),
    ] {
        let mut spec = rule("Accept", json!({"namespaces": {}}));
        spec["egress"][0]["protocols"] = protocols.clone();
        let policy = cluster(spec);
        assert_eq!(policy.problems.len(), 1, "{protocols}");
        assert_eq!(policy.egress.unwrap()[0].peers, Peers::Of(Vec::new()), "{protocols}");
    }
}

#[test]
fn a_cluster_policy_that_is_not_understood_as_a_whole_only_denies() {
    let whole = json!({"tier": "Baseline", "priority": 7, "subject": {"namespaces": {}}, "ingress": [
        {"action": "Accept", "from": [{"namespaces": {}}]}, {"action": "Pass", "from": [{"namespaces": {}}]},
        {"action": "Deny", "from": [{"namespaces": {}}]}]});
    assert_eq!(problems(&cluster(whole.clone())), [""; 0]);
    for (field, value) in [
        ("tier", json!("Urgent")),
        ("priority", json!(1001)),
        ("priority", json!(null)),
        ("subject", json!({})),
        ("subject", json!({"serviceAccounts": {}})),
        ("subject", json!({"namespaces": {}, "pods": {"podSelector": {}}})),
        ("newer", json!({})),
    ] {
        let mut spec = whole.clone();
        spec[field] = value.clone();
        let policy = cluster(spec);
        assert_eq!(policy.problems.len(), 1, "{field}: {value}");
        let rules = policy.ingress.unwrap();
        let actions: Vec<_> = rules.iter().map(|it| (it.action, it.peers == Peers::Of(Vec::new()))).collect();
        assert_eq!(
            actions,
            [(Action::Accept, true), (Action::Deny, false), (Action::Deny, false)],
            "{field}"
        );
    }
    for spec in [json!(null), json!([]), json!("x"), json!(7)] {
        let error = object::cluster_network_policy(&object(spec.clone())).unwrap_err();
        assert!(error.to_string().starts_with("ClusterNetworkPolicy p: spec: "), "{spec}: {error}");
    }
}

/// Objects that the random clusters use, with a part replaced by something else: decoding does not panic, and
/// what has a problem allows nothing that the rest of the policy does not allow.
#[test]
fn mutated_policies_neither_panic_nor_open() {
    let rounds = env::var("FERRULE_POLICY_MUTATIONS").map_or(3_000, |it| it.parse().unwrap());
    let mut rng = Rng::with_seed(7);
    let mut isolated = 0;
    while isolated < rounds {
        let world = random::world(&mut rng);
        for spec in world.policies.values() {
            let mut spec = spec.clone();
            mutate(&mut rng, &mut spec);
            let policy = namespaced(spec.clone());
            if policy.problems.is_empty() {
                continue;
            }
            isolated += 1;
            let lists = [&policy.ingress, &policy.egress];
            assert!(lists.iter().any(|it| it.is_some()), "{spec} isolates in no direction");
            assert!(lists.into_iter().flatten().all(Vec::is_empty), "{spec} allows: {policy:#?}");
        }
        for spec in world.cluster_policies.values() {
            let mut mutated = spec.clone();
            mutate(&mut rng, &mut mutated);
            let Ok(policy) = object::cluster_network_policy(&object(mutated.clone())) else { continue };
            for list in ["ingress", "egress"] {
                let direction = if list == "ingress" { Direction::Ingress } else { Direction::Egress };
                let at = format!("spec.{list}[");
                let wrong =
                    policy.problems.iter().filter_map(|it| it.field.strip_prefix(&at)?.split_once(']'));
                for (index, _) in wrong {
                    let rule = &policy.rules(direction).unwrap()[index.parse::<usize>().unwrap()];
                    let is_closed = match rule.action {
                        Action::Accept => rule.peers == Peers::Of(Vec::new()),
                        Action::Deny => true,
                        Action::Pass => false,
                    };
                    assert!(is_closed, "{mutated} opens: {rule:?}");
                }
            }
        }
    }
}

/// Replaces a random part.
fn mutate(rng: &mut Rng, value: &mut Value) {
    let descend = rng.u8(..8) > 0;
    match value {
        Value::Object(fields) if descend && !fields.is_empty() => {
            let key = fields.keys().nth(rng.usize(..fields.len())).unwrap().clone();
            match rng.u8(..10) {
                0 => rename(fields, &key),
                _ => mutate(rng, &mut fields[&key]),
            }
        }
        Value::Array(items) if descend && !items.is_empty() => {
            let n = rng.usize(..items.len());
            mutate(rng, &mut items[n]);
        }
        _ => {
            let others = [
                json!(null),
                json!({}),
                json!([]),
                json!(""),
                json!("x"),
                json!(-1),
                json!(0),
                json!(65_536),
                json!(true),
                json!([null]),
                json!([{}]),
                json!({"newer": 1}),
                json!("10.0.0.0/99"),
                json!(1e300),
                json!([[]]),
            ];
            *value = others[rng.usize(..others.len())].clone();
        }
    }
}

fn rename(fields: &mut Map<String, Value>, key: &str) {
    let value = fields.remove(key).unwrap();
    fields.insert(format!("{key}X"), value);
}

#[test]
fn objects_of_any_json_do_not_panic_and_undecodable_ones_are_errors() {
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}},
        "spec": {"hostNetwork": false, "containers": [{"ports": [{"name": "x", "containerPort": 1}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}});
    let mut rng = Rng::with_seed(3);
    let mut decoded = 0;
    for _ in 0..5_000 {
        let mut pod = pod.clone();
        mutate(&mut rng, &mut pod);
        if let Ok(pod) = serde_json::from_value::<object::Pod>(pod) {
            decoded += 1;
            Compiler::default().apply([Change::Pod(pod.into())]).unwrap();
        }
    }
    assert!(decoded > 500, "{decoded}");
    for text in ["{}", "[]", "null", r#"{"metadata": {}}"#, r#"{"metadata": {"name": 1}}"#] {
        assert!(serde_json::from_str::<object::Pod>(text).is_err(), "{text}");
        assert!(serde_json::from_str::<PolicyObject>(text).is_err(), "{text}");
        assert!(serde_json::from_str::<object::Namespace>(text).is_err(), "{text}");
        assert!(serde_json::from_str::<object::Node>(text).is_err(), "{text}");
    }
}

#[test]
fn an_isolating_policy_denies_in_the_rows() {
    let mut world = World::default();
    world.add_namespace("web", &[]);
    world.add_pod("web", "server", "10.0.0.1", &[]);
    world.add_pod("web", "client", "10.0.0.2", &[]);
    let mut engine = world.engine();
    engine.apply([network_policy("web", "p", &json!({"ingress": [{"newer": {}}]}))]);
    assert!(!engine.allows(&world, world.end("web/client"), world.end("web/server"), (TCP, 80)));
}
