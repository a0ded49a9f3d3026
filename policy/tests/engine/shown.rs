//! What `ferrulectl policy` shows.

use ferrule_policy::{Counted, shown};
use ferrule_proto::agent::{JudgedDirection, PolicyName, TracePoliciesResponse};
use serde_json::json;

use super::world::{End, TCP, World};

fn world() -> World {
    let mut world = World::default();
    world.add_namespace("web", &[]);
    world.add_pod("web", "server", "10.0.0.1", &[("app", "server")]);
    world.add_pod("web", "client", "10.0.0.2", &[("app", "client")]);
    // Of another node.
    world.endpoints.remove(&2);
    let allow = json!({"podSelector": {"matchLabels": {"app": "server"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": 80}]}]});
    world.policies.insert(("web".to_owned(), "allow".to_owned()), allow);
    world.policies.insert(("web".to_owned(), "deny".to_owned()), json!({"podSelector": {}}));
    let broken = json!({"podSelector": {"matchLabels": {"app": "server"}}, "ingress": [{"form": []}]});
    world.policies.insert(("web".to_owned(), "broken".to_owned()), broken);
    let deny = json!({"tier": "Admin", "priority": 5, "subject": {"namespaces": {}}, "egress": [
        {"name": "no-dns", "action": "Deny", "to": [{"networks": ["192.0.2.0/24"]}]}]});
    world.cluster_policies.insert("c".to_owned(), deny);
    world
}

fn trace(world: &World, from: End<'_>, to: End<'_>, port: u16) -> TracePoliciesResponse {
    let engine = world.engine();
    shown::trace(&engine.compiler, &engine.trace(world, from, to, (TCP, port)))
}

#[test]
fn a_list_has_the_tier_the_rules_the_pods_and_the_problems_of_each_policy() {
    let engine = world().engine();
    let shown = shown::list(&engine.compiler, Counted::Local);
    let row = |it: &ferrule_proto::agent::PolicySummary| {
        (it.name.clone(), it.tier.clone(), it.priority, it.ingress_rules, it.egress_rules, it.pods)
    };
    let expected = [
        ("c", "Admin", Some(5), None, Some(1), 1),
        ("allow", "NetworkPolicy", None, Some(1), None, 1),
        ("broken", "NetworkPolicy", None, Some(0), None, 1),
        ("deny", "NetworkPolicy", None, Some(0), None, 1),
    ];
    let expected = expected.map(|(name, tier, priority, ingress, egress, pods)| {
        (name.to_owned(), tier.to_owned(), priority, ingress, egress, pods)
    });
    assert_eq!(shown.iter().map(row).collect::<Vec<_>>(), expected);
    let problem = &shown[2].problems[0];
    assert!(problem.starts_with("spec.ingress[0]") && problem.ends_with("allows nothing"), "{problem}");
    let all = shown::list(&engine.compiler, Counted::All);
    assert_eq!(all.iter().map(|it| it.pods).collect::<Vec<_>>(), [2, 1, 1, 2]);
}

#[test]
fn a_trace_says_in_one_line_what_decides() {
    let world = world();
    let (server, client) = (world.end("web/server"), world.end("web/client"));
    let allowed = trace(&world, client, server, 80);
    let ingress = allowed.ingress.unwrap();
    assert_eq!(ingress.because, "NetworkPolicy web/allow ingress[0] accepts");
    let rule = ingress.rule.unwrap();
    assert_eq!((&*rule.field, &*rule.action, &*rule.tier), ("ingress[0]", "Accept", "NetworkPolicy"));
    assert_eq!(allowed.egress.unwrap().because, "no policy decides");
    let denied = trace(&world, client, server, 81);
    let ingress = denied.ingress.unwrap();
    let isolating =
        "NetworkPolicy web/allow, NetworkPolicy web/broken, NetworkPolicy web/deny isolate the pod";
    assert_eq!(ingress.because, format!("no policy allows; {isolating}"));
    let name = |name: &str| PolicyName {
        kind: "NetworkPolicy".to_owned(),
        namespace: "web".to_owned(),
        name: name.to_owned(),
    };
    assert_eq!(ingress.isolated_by, ["allow", "broken", "deny"].map(name));
    let outside = End::Outside("192.0.2.1".parse().unwrap());
    let cluster = trace(&world, client, outside, 53);
    let because = "ClusterNetworkPolicy c (Admin, priority 5) egress[0] \"no-dns\" denies";
    assert_eq!(cluster.egress.unwrap().because, because);
    assert_eq!(cluster.to.unwrap().address, "192.0.2.1");
}

#[test]
fn the_same_words_come_from_a_verdict_of_rows() {
    let world = world();
    let engine = world.engine();
    let (server, client) = (world.end("web/server"), world.end("web/client"));
    let direction = ferrule_policy::Direction::Ingress;
    let verdict = engine.verdict(&world, direction, server, client, (TCP, 80)).unwrap();
    let words = shown::because(&engine.compiler, &verdict, direction, None);
    assert_eq!(words, "NetworkPolicy web/allow ingress[0] accepts");
    let ruleset = engine.rows.endpoint(ferrule_policy::EndpointId(1)).unwrap().ingress;
    let words = shown::not_allowed(&engine.compiler, ruleset);
    assert!(words.contains("web/allow") && words.contains("web/broken"), "{words}");
    let gone = shown::not_allowed(&engine.compiler, ferrule_policy::RulesetId(4711));
    assert_eq!(gone, "no policy allowed; the policies have changed since");
}

#[test]
fn an_explanation_has_the_rules_of_each_direction_in_words() {
    let engine = world().engine();
    let shown = shown::explain(&engine.compiler, "web", "server").unwrap();
    let ingress = shown.ingress.unwrap();
    assert!(ingress.isolates);
    let allow = &ingress.policies[0];
    assert_eq!((&*allow.name, &*allow.subject), ("allow", "pods app=server in the namespace web"));
    let rule = &allow.rules[0];
    let words = [&*rule.field, &*rule.action, &*rule.peers, &*rule.ports];
    assert_eq!(words, ["ingress[0]", "Accept", "pods app=client in the namespace web", "TCP 80"]);
    let egress = shown.egress.unwrap();
    assert_eq!((egress.isolates, egress.policies.len(), &*egress.policies[0].name), (false, 1, "c"));
    assert!(shown::explain(&engine.compiler, "web", "ghost").is_none());
}

#[test]
fn a_pod_that_policies_do_not_see_is_noted() {
    let mut world = world();
    world.pods.get_mut("web/client").unwrap().host_network = true;
    let shown = trace(&world, world.end("web/client"), world.end("web/server"), 80);
    assert!(shown.notes[0].contains("ask with `node`"), "{:?}", shown.notes);
    world.pods.get_mut("web/client").unwrap().host_network = false;
    let shown = trace(&world, world.end("web/client"), world.end("web/server"), 80);
    assert!(shown.notes.is_empty(), "{:?}", shown.notes);
}

#[test]
fn nothing_judges_a_pod_that_policies_do_not_see() {
    let mut world = world();
    let explain = |world: &World| {
        let shown = shown::explain(&world.engine().compiler, "web", "server").unwrap();
        (shown.ingress.unwrap(), shown.egress.unwrap(), shown.notes)
    };
    let (ingress, _, notes) = explain(&world);
    assert!(ingress.isolates && notes.is_empty(), "{notes:?}");
    world.pods.get_mut("web/server").unwrap().host_network = true;
    let (ingress, egress, notes) = explain(&world);
    assert_eq!((ingress, egress), (JudgedDirection::default(), JudgedDirection::default()));
    assert_eq!(notes, ["web/server has ended, or has the network of its node: policies do not see the pod"]);
}
