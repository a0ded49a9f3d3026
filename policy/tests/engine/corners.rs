//! Corners of the semantics that random clusters do not ask about.

use std::net::IpAddr;

use ferrule_policy::{
    Change, Direction, Endpoint, EndpointId, MAX_RANGES, Op, Origin, Packet, Reason, RulesetId, lookup,
};
use serde_json::{Value, json};

use super::world::{End, Engine, ICMP, TCP, UDP, World, network_policy};

const HTTP: (u8, u16) = (TCP, 80);

fn world(spec: Value) -> World {
    let mut world = World::default();
    world.add_namespace("web", &[]);
    world.add_pod("web", "server", "10.0.0.1", &[("app", "server")]);
    world.add_pod("web", "client", "10.0.0.2", &[("app", "client")]);
    world.policies.insert(("web".to_owned(), "p".to_owned()), spec);
    world
}

fn packet(direction: Direction, peer: &str, origin: Origin) -> Packet {
    Packet {
        endpoint: EndpointId(1),
        direction,
        own: "10.0.0.1".parse().unwrap(),
        peer: peer.parse().unwrap(),
        protocol: TCP,
        port: 80,
        origin,
        in_pod_range: false,
    }
}

#[test]
fn traffic_of_the_own_node_is_known_by_its_way_and_not_by_its_address() {
    let engine = world(json!({"policyTypes": ["Ingress", "Egress"]})).engine();
    let node = "192.168.0.10";
    for direction in [Direction::Ingress, Direction::Egress] {
        let verdict = lookup(&engine.rows, &packet(direction, node, Origin::OwnNode));
        assert_eq!((verdict.is_allowed, verdict.reason), (true, Reason::OwnNode));
        // An outsider whose address was translated to the node's.
        assert!(!lookup(&engine.rows, &packet(direction, node, Origin::Other)).is_allowed);
    }
}

#[test]
fn a_cluster_policy_may_deny_a_pod_its_node() {
    let mut world = world(json!({"policyTypes": ["Ingress", "Egress"]}));
    let deny = json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
        "egress": [{"action": "Deny", "to": [{"networks": ["192.168.0.0/16"]}]}]});
    world.cluster_policies.insert("c".to_owned(), deny);
    let engine = world.engine();
    assert!(!lookup(&engine.rows, &packet(Direction::Egress, "192.168.0.10", Origin::OwnNode)).is_allowed);
    assert!(lookup(&engine.rows, &packet(Direction::Ingress, "192.168.0.10", Origin::OwnNode)).is_allowed);
}

#[test]
fn a_pod_reaches_itself_and_through_a_service_only_cluster_policies_judge() {
    let mut world = world(json!({"policyTypes": ["Ingress", "Egress"]}));
    let hairpin = packet(Direction::Ingress, "10.0.0.1", Origin::Hairpin);
    let direct = packet(Direction::Egress, "10.0.0.1", Origin::Other);
    let engine = world.engine();
    assert_eq!(lookup(&engine.rows, &hairpin).reason, Reason::Hairpin);
    assert_eq!(lookup(&engine.rows, &direct).reason, Reason::OwnAddress);
    let deny = json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
        "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]});
    world.cluster_policies.insert("c".to_owned(), deny);
    let engine = world.engine();
    assert!(!lookup(&engine.rows, &hairpin).is_allowed);
    assert!(lookup(&engine.rows, &direct).is_allowed);
}

#[test]
fn packets_without_ports_match_only_rules_without_ports() {
    let from = json!([{"podSelector": {}}]);
    for (rule, is_allowed) in [
        (json!({"from": from}), true),
        (json!({"from": from, "ports": []}), true),
        (json!({"from": from, "ports": [{}]}), false),
        (json!({"from": from, "ports": [{"protocol": "UDP"}, {"port": 1, "endPort": 65535}]}), false),
    ] {
        let world = world(json!({ "ingress": [rule] }));
        let allows = |traffic| {
            world.engine().allows(&world, world.end("web/client"), world.end("web/server"), traffic)
        };
        assert_eq!(allows((ICMP, 0)), is_allowed, "{rule}");
        // GRE.
        assert_eq!(allows((47, 0)), is_allowed, "{rule}");
    }
}

#[test]
fn a_port_without_number_is_all_ports_of_its_protocol() {
    let world = world(json!({"ingress": [{"ports": [{"protocol": "UDP"}]}]}));
    let engine = world.engine();
    let allows = |traffic| engine.allows(&world, world.end("web/client"), world.end("web/server"), traffic);
    assert!(allows((UDP, 0)) && allows((UDP, 1)) && allows((UDP, 65535)));
    assert!(!allows((TCP, 1)) && !allows((132, 1)));
}

#[test]
fn more_ranges_than_a_header_has_are_in_a_trie() {
    let ports: Vec<_> = (0..40).map(|i| json!({"port": 100 * i + 1, "endPort": 100 * i + 37})).collect();
    let others: Vec<_> = (0..40).map(|i| json!({"port": 100 * i + 20, "endPort": 100 * i + 60})).collect();
    let world = world(json!({"ingress": [
        {"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": ports},
        {"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": others},
    ]}));
    let engine = world.engine();
    assert!(engine.rows.all().filter(|op| matches!(op, Op::Port(..))).count() > MAX_RANGES);
    let outside = End::Outside("192.0.2.1".parse().unwrap());
    for port in 0..5000 {
        let rest = port % 100;
        let allows = |from| engine.allows(&world, from, world.end("web/server"), (TCP, port));
        assert_eq!(allows(world.end("web/client")), port < 4000 && (1..=37).contains(&rest), "{port}");
        assert_eq!(allows(outside), port < 4000 && (20..=60).contains(&rest), "{port}");
    }
}

#[test]
fn an_unknown_address_among_pods_is_closed_where_labels_matter() {
    let allow = json!({"ingress": [{"from": [{"podSelector": {}}]}, {"from": [{"ipBlock": {"cidr": "10.0.9.0/24"}}]}]});
    let mut world = world(allow);
    let unknown =
        |peer: &str| Packet { in_pod_range: true, ..packet(Direction::Ingress, peer, Origin::Other) };
    let engine = world.engine();
    assert_eq!(lookup(&engine.rows, &unknown("10.0.8.1")).reason, Reason::PeerUnknown);
    assert!(lookup(&engine.rows, &unknown("10.0.9.1")).is_allowed);
    assert_eq!(
        lookup(&engine.rows, &packet(Direction::Ingress, "10.0.8.1", Origin::Other)).reason,
        Reason::NotAllowed
    );
    // Without isolation, only a denial by labels matters: it may mean the address.
    world.policies.clear();
    let rule = |action| {
        json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
        "ingress": [{"action": action, "from": [{"namespaces": {"matchLabels": {"team": "red"}}}]}]})
    };
    for (action, is_allowed) in [("Accept", true), ("Deny", false), ("Pass", false)] {
        world.cluster_policies.insert("c".to_owned(), rule(action));
        let engine = world.engine();
        assert_eq!(lookup(&engine.rows, &unknown("10.0.8.1")).is_allowed, is_allowed, "{action}");
        assert!(
            lookup(&engine.rows, &packet(Direction::Ingress, "10.0.8.1", Origin::Other)).is_allowed,
            "{action}"
        );
    }
}

#[test]
fn an_endpoint_passes_nothing_before_its_pod_and_namespace_are_known() {
    let mut world = world(json!({"ingress": [{}]}));
    world.policies.clear();
    let mut engine = Engine::default();
    engine.apply([network_policy("elsewhere", "p", &json!({}))]);
    let first = packet(Direction::Ingress, "10.0.0.2", Origin::Other);
    for change in [world.endpoint(1), world.pod("web/server")] {
        engine.apply([change]);
        assert_eq!(lookup(&engine.rows, &first).reason, Reason::NotReady);
        assert_eq!(engine.compiler.pending().collect::<Vec<_>>(), [EndpointId(1)]);
    }
    engine.apply([world.namespace("web")]);
    assert!(lookup(&engine.rows, &first).is_allowed);
    assert_eq!(engine.compiler.pending().count(), 0);
    let row = engine.rows.endpoint(EndpointId(1)).unwrap();
    assert_eq!((row.ingress, row.egress), (RulesetId::OPEN, RulesetId::OPEN));
    world.endpoints.clear();
    engine.apply([world.endpoint(1)]);
    assert_eq!(lookup(&engine.rows, &first).reason, Reason::NotReady);
}

#[test]
fn the_rules_of_an_endpoint_are_never_those_of_the_pod_that_had_its_number() {
    let mut world = world(json!({"podSelector": {"matchLabels": {"app": "server"}}}));
    world.endpoints.remove(&2);
    let mut engine = world.engine();
    let first = packet(Direction::Egress, "192.0.2.1", Origin::Other);
    assert!(lookup(&engine.rows, &first).is_allowed);
    let endpoint =
        |uid: &str| Change::Endpoint(Endpoint { id: EndpointId(1), uid: uid.to_owned(), addresses: vec![] });
    engine.apply([endpoint("not-known-yet")]);
    assert_eq!(lookup(&engine.rows, &first).reason, Reason::NotReady);
    engine.apply([endpoint("web/client")]);
    assert_eq!(lookup(&engine.rows, &first).reason, Reason::Default);
}

#[test]
fn plugged_addresses_are_peers_before_the_status_lists_them() {
    let mut world = world(json!({"ingress": [{"from": [{"podSelector": {}}]}]}));
    world.pods.get_mut("web/client").unwrap().addresses.clear();
    let address: IpAddr = "10.0.0.2".parse().unwrap();
    let mut engine = world.engine();
    let allows = |engine: &Engine| {
        lookup(&engine.rows, &packet(Direction::Ingress, &address.to_string(), Origin::Other)).is_allowed
    };
    assert!(!allows(&engine));
    let endpoint = Endpoint { id: EndpointId(2), uid: "web/client".to_owned(), addresses: vec![address] };
    engine.apply([Change::Endpoint(endpoint)]);
    assert!(allows(&engine));
    // An object of another node that claims the same address does not get it, however young.
    let mut thief = world.pods["web/server"].clone();
    thief.addresses = vec![address];
    thief.namespace = "elsewhere".to_owned();
    thief.created = "2030-01-01T00:00:00Z".to_owned();
    world.add_namespace("elsewhere", &[]);
    engine.apply([world.namespace("elsewhere"), Change::Pod(thief.object("thief").into())]);
    assert!(allows(&engine));
}

#[test]
fn a_pod_whose_object_is_gone_stays_policed_until_its_endpoint_is_gone() {
    let mut world = world(json!({"podSelector": {"matchLabels": {"app": "server"}}}));
    let mut engine = world.engine();
    let first = packet(Direction::Ingress, "192.0.2.1", Origin::Other);
    assert!(!lookup(&engine.rows, &first).is_allowed);
    engine.apply([Change::PodGone { uid: "web/server".to_owned() }]);
    assert_eq!(lookup(&engine.rows, &first).reason, Reason::NotAllowed);
    assert!(engine.rows.peer("10.0.0.1".parse::<IpAddr>().unwrap().into()).is_some());
    world.endpoints.remove(&1);
    engine.apply([world.endpoint(1)]);
    assert_eq!(lookup(&engine.rows, &first).reason, Reason::NotReady);
    assert!(engine.rows.peer("10.0.0.1".parse::<IpAddr>().unwrap().into()).is_none());
}

#[test]
fn pods_in_the_network_of_their_node_are_no_peers() {
    let mut world = world(json!({"ingress": [{"from": [{"namespaceSelector": {}}]}]}));
    world.endpoints.remove(&2);
    world.pods.get_mut("web/client").unwrap().host_network = true;
    let engine = world.engine();
    assert!(!lookup(&engine.rows, &packet(Direction::Ingress, "10.0.0.2", Origin::Other)).is_allowed);
}

#[test]
fn ports_of_restartable_init_containers_count() {
    let mut world = world(json!({"ingress": [{"ports": [{"port": "side"}, {"port": "init"}]}]}));
    let mut pod = serde_json::to_value(world.pods["web/server"].object("web/server")).unwrap();
    pod["spec"]["initContainers"] = json!([
        {"restartPolicy": "Always", "ports": [{"name": "side", "containerPort": 81}]},
        {"ports": [{"name": "init", "containerPort": 82}]}]);
    let pod: ferrule_policy::object::Pod = serde_json::from_value(pod).unwrap();
    let mut engine = world.engine();
    engine.apply([Change::Pod(pod.into())]);
    let allows = |port| engine.allows(&world, world.end("web/client"), world.end("web/server"), (TCP, port));
    assert!(allows(81) && !allows(82));
    world.pods.clear();
}

#[test]
fn a_change_that_may_cut_a_flow_renews_the_epoch_and_others_do_not() {
    let mut world = world(json!({"podSelector": {"matchLabels": {"app": "server"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}]}));
    let mut engine = world.engine();
    let epoch = |engine: &Engine, id| engine.rows.endpoint(EndpointId(id)).unwrap().epoch;
    let (server, client) = (epoch(&engine, 1), epoch(&engine, 2));
    let mut relabel = |engine: &mut Engine, key: &str, value: &str| {
        let labels = &mut world.pods.get_mut("web/client").unwrap().labels;
        labels.insert(key.to_owned(), value.to_owned());
        engine.apply([world.pod("web/client")]).ops
    };
    assert_eq!(relabel(&mut engine, "job", "1"), [], "a label of no predicate costs a row");
    assert_eq!(epoch(&engine, 1), server);
    let ops = relabel(&mut engine, "app", "other");
    assert!(epoch(&engine, 1) != server && epoch(&engine, 2) == client, "{ops:?}");
    assert!(!engine.allows(&world, world.end("web/client"), world.end("web/server"), HTTP));
}

#[test]
fn a_label_edit_into_a_known_class_costs_one_row_and_the_epochs() {
    let mut world = world(json!({"podSelector": {"matchLabels": {"app": "server"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}]}));
    for i in 3..9 {
        let app = if i % 2 == 0 { "client" } else { "other" };
        world.add_pod("web", &format!("pod{i}"), &format!("10.0.0.{i}"), &[("app", app)]);
    }
    let mut engine = world.engine();
    world.pods.get_mut("web/pod3").unwrap().labels.insert("app".to_owned(), "client".to_owned());
    let ops = engine.apply([world.pod("web/pod3")]).ops;
    assert!(matches!(ops.as_slice(), [Op::Peer(..), Op::Endpoint(EndpointId(1), Some(_))]), "{ops:?}");
}

/// A packet in between would be allowed by the old row, and its flow with the new epoch.
#[test]
fn the_row_of_a_peer_that_is_gone_is_removed_before_the_epoch_is_renewed() {
    let mut world = world(json!({"podSelector": {"matchLabels": {"app": "server"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}]}));
    world.endpoints.remove(&2);
    let gone = Change::PodGone { uid: "web/client".to_owned() };
    let ops = world.engine().apply([gone.clone()]).ops;
    assert!(
        matches!(ops.as_slice(), [Op::Peer(_, None), Op::Endpoint(EndpointId(1), Some(_)), ..]),
        "{ops:?}"
    );
    // With rules that are switched by the same changes, and still allow the peer.
    let mut engine = world.engine();
    world.policies.values_mut().for_each(|spec| spec["policyTypes"] = json!(["Ingress", "Egress"]));
    let ops = engine.apply([world.policy(&("web".to_owned(), "p".to_owned())), gone]).ops;
    let removed = ops.iter().position(|op| matches!(op, Op::Peer(_, None))).unwrap();
    let epochs = |ops: &[Op]| {
        let of = |op: &Op| if let Op::Endpoint(_, Some(row)) = op { Some(row.epoch) } else { None };
        ops.iter().filter_map(of).max()
    };
    assert!(epochs(&ops[..removed]) < epochs(&ops[removed..]), "{ops:#?}");
}

/// A copy of rules that are about to be switched moves the addresses that it sees, with those of the change.
#[test]
fn a_peer_that_moves_with_the_labels_of_a_namespace_renews_the_epoch_of_those_that_allowed_it() {
    let from = |app: &str| json!([{"podSelector": {"matchLabels": {"app": app}}}]);
    let mut world = world(json!({"podSelector": {"matchLabels": {"app": "server"}},
        "ingress": [{"from": from("client")}]}));
    world.add_pod("web", "other", "10.0.0.3", &[("app", "other")]);
    world.add_pod("apart", "switched", "10.0.0.4", &[]);
    world.add_namespace("apart", &[]);
    let rule = |team: &str, app: &str| {
        json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {"matchLabels": {"team": team}}},
            "ingress": [{"action": "Deny", "from": [{"pods": {"namespaceSelector": {},
                "podSelector": {"matchLabels": {"app": app}}}}]}]})
    };
    world.namespaces.get_mut("apart").unwrap().insert("team".to_owned(), "red".to_owned());
    world.cluster_policies.insert("red".to_owned(), rule("red", "other"));
    let mut engine = world.engine();
    let (server, client) = (world.end("web/server"), world.end("web/client"));
    assert!(engine.allows(&world, client, server, HTTP));
    let epoch = |engine: &Engine| engine.rows.endpoint(EndpointId(1)).unwrap().epoch;
    let before = epoch(&engine);
    world.namespaces.get_mut("apart").unwrap().insert("team".to_owned(), "blue".to_owned());
    let mut moved = world.clone();
    moved.pods.get_mut("web/client").unwrap().labels.insert("app".to_owned(), "other".to_owned());
    engine.apply([moved.namespace("apart"), moved.pod("web/client")]);
    assert!(!engine.allows(&moved, moved.end("web/client"), moved.end("web/server"), HTTP));
    assert_ne!(epoch(&engine), before, "the flow of before is judged again");
}
