//! Addresses of Services, and of this node.

use std::net::IpAddr;

use ferrule_policy::{
    Capacities, Change, ClassId, Compiler, EndpointId, Op, Party, PeerRow, Resource, Table, TraceError,
    object,
};
use serde_json::{Value, json};

use super::world::{End, Engine, TCP, World};

fn service(uid: &str, spec: Value, balanced: &[&str]) -> Change {
    let ingress: Vec<_> = balanced.iter().map(|ip| json!({"ip": ip, "hostname": "x"})).collect();
    let object = json!({"metadata": {"namespace": "web", "name": uid, "uid": uid}, "spec": spec,
        "status": {"loadBalancer": {"ingress": ingress}}});
    Change::Service(serde_json::from_value(object).unwrap())
}

fn host(addresses: &[&str]) -> Change {
    Change::HostAddresses(addresses.iter().map(|it| it.parse().unwrap()).collect())
}

fn row(engine: &Engine, address: &str) -> Option<PeerRow> {
    engine.rows.peer(address.parse::<IpAddr>().unwrap().into()).copied()
}

/// Pod, Service, own node.
fn flags(engine: &Engine, address: &str) -> Option<(bool, bool, bool)> {
    row(engine, address).map(|it| (it.is_pod, it.is_service, it.is_own_node))
}

const SERVICE: Option<(bool, bool, bool)> = Some((false, true, false));
const OWN_NODE: Option<(bool, bool, bool)> = Some((false, false, true));
const POD: Option<(bool, bool, bool)> = Some((true, false, false));

fn world() -> World {
    let mut world = World::default();
    world.add_namespace("web", &[]);
    world.add_pod("web", "server", "10.0.0.1", &[]);
    world
}

#[test]
fn all_addresses_of_a_service_are_known_as_long_as_it_has_them() {
    let mut engine = world().engine();
    let spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00:96::1"],
        "externalIPs": ["192.0.2.1"], "type": "LoadBalancer", "ports": [{"port": 80}]});
    engine.apply([service("s", spec, &["198.51.100.1"])]);
    for address in ["10.96.0.1", "fd00:96::1", "192.0.2.1", "198.51.100.1"] {
        assert_eq!(flags(&engine, address), SERVICE, "{address}");
    }
    let delta = engine.apply([service("s", json!({"clusterIP": "10.96.0.1"}), &[])]);
    assert_eq!(delta.ops.len(), 3, "{delta:?}");
    assert_eq!(flags(&engine, "10.96.0.1"), SERVICE);
    engine.apply([Change::ServiceGone { uid: "other".to_owned() }]);
    assert_eq!(flags(&engine, "10.96.0.1"), SERVICE);
    engine.apply([Change::ServiceGone { uid: "s".to_owned() }]);
    assert_eq!(flags(&engine, "10.96.0.1"), None);
}

#[test]
fn an_address_of_the_cluster_is_no_nodes_although_the_host_has_it_and_other_addresses_are() {
    let mut engine = world().engine();
    let addresses = ["10.96.0.1", "fd00:96::1", "192.0.2.1"];
    let spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00:96::1"]});
    engine.apply([host(&addresses), service("s", spec, &["192.0.2.1"])]);
    let all = |engine: &Engine| addresses.map(|it| flags(engine, it));
    const BOTH: Option<(bool, bool, bool)> = Some((false, true, true));
    assert_eq!(all(&engine), [SERVICE, SERVICE, BOTH]);
    // The same addresses, of another kind.
    engine.apply([service("s", json!({"externalIPs": ["10.96.0.1", "fd00:96::1"]}), &["192.0.2.1"])]);
    assert_eq!(all(&engine), [BOTH; 3]);
    engine.apply([service("s", json!({"clusterIP": "10.96.0.1"}), &[])]);
    assert_eq!(all(&engine), [SERVICE, OWN_NODE, OWN_NODE]);
    engine.apply([Change::ServiceGone { uid: "s".to_owned() }]);
    assert_eq!(all(&engine), [OWN_NODE; 3]);
}

#[test]
fn a_service_without_an_address_has_no_row_and_a_shared_address_stays_with_the_other() {
    let mut engine = world().engine();
    let none = service("headless", json!({"clusterIP": "None", "clusterIPs": ["None"]}), &[]);
    assert!(engine.apply([none, service("named", json!({"type": "ExternalName"}), &[])]).ops.is_empty());
    let shared = json!({"externalIPs": ["192.0.2.1"]});
    engine.apply([service("a", shared.clone(), &[]), service("b", shared, &[])]);
    engine.apply([Change::ServiceGone { uid: "a".to_owned() }]);
    assert_eq!(flags(&engine, "192.0.2.1"), SERVICE);
    engine.apply([Change::ServiceGone { uid: "b".to_owned() }]);
    assert_eq!(flags(&engine, "192.0.2.1"), None);
}

#[test]
fn a_pods_address_is_no_services_whichever_is_known_first() {
    let world = world();
    let claim = || service("s", json!({"externalIPs": ["10.0.0.1"]}), &[]);
    let mut engine = world.engine();
    assert!(engine.apply([claim()]).ops.is_empty());
    assert_eq!(flags(&engine, "10.0.0.1"), POD);
    let mut engine = Engine::default();
    engine.apply([claim()]);
    assert_eq!(flags(&engine, "10.0.0.1"), SERVICE);
    engine.apply(world.changes());
    assert_eq!(flags(&engine, "10.0.0.1"), POD);
    engine.apply([
        Change::PodGone { uid: "web/server".to_owned() },
        Change::EndpointGone { id: EndpointId(1) },
    ]);
    assert_eq!(flags(&engine, "10.0.0.1"), SERVICE);
}

/// Such a flow was judged by the Service's address: with another epoch, it is judged by its backend's.
#[test]
fn a_service_or_an_own_address_that_becomes_known_renews_the_epochs_of_those_whose_egress_is_judged_once() {
    let mut world = world();
    world.add_pod("web", "receiver", "10.0.0.2", &[("app", "receiver")]);
    for (name, app, way) in [("p", "sender", "Egress"), ("q", "receiver", "Ingress")] {
        let spec = json!({"podSelector": {"matchLabels": {"app": app}}, "policyTypes": [way]});
        world.policies.insert(("web".to_owned(), name.to_owned()), spec);
    }
    world.pods.get_mut("web/server").unwrap().labels = super::world::labels(&[("app", "sender")]);
    world.nodes.insert("n".to_owned(), (Default::default(), vec!["192.168.0.1".parse().unwrap()]));
    let deny = json!({"tier": "Baseline", "priority": 1, "subject": {"namespaces": {}},
        "ingress": [{"action": "Deny", "from": [{"namespaces": {"matchLabels": {"no": "such"}}}]}]});
    world.cluster_policies.insert("c".to_owned(), deny);
    let mut engine = world.engine();
    let renewed = |engine: &mut Engine, changes: Vec<Change>| -> Vec<_> {
        let ops = engine.apply(changes).ops;
        let of = |op: &Op| if let Op::Endpoint(id, _) = op { Some(id.0) } else { None };
        ops.iter().filter_map(of).collect()
    };
    let both = vec![
        service("s", json!({"clusterIP": "10.96.0.1"}), &[]),
        service("t", json!({"clusterIPs": ["10.96.0.2", "10.96.0.3"]}), &[]),
    ];
    assert_eq!(renewed(&mut engine, both), [1]);
    assert_eq!(renewed(&mut engine, vec![host(&["192.168.0.1"])]), [1]);
    let marked = service("s", json!({"clusterIP": "10.96.0.1"}), &["192.168.0.1"]);
    assert_eq!(renewed(&mut engine, vec![marked]), [1], "the mark of a row that exists");
    let same = service("t", json!({"clusterIPs": ["10.96.0.2"]}), &[]);
    let gone = Change::ServiceGone { uid: "s".to_owned() };
    assert_eq!(
        renewed(&mut engine, vec![same, gone, host(&[])]),
        [0; 0],
        "nothing is translated from now on"
    );
    let epoch = engine.compiler.epoch();
    engine.compiler.renew(Table::B).unwrap();
    let rows = engine.compiler.rows();
    let epochs = [1, 2].map(|id| rows.endpoint(EndpointId(id)).unwrap().epoch);
    assert_eq!(epochs, [epoch + 1; 2], "a table from scratch");
}

/// No rule asks for a label: both keys have no predicate.
#[test]
fn an_address_that_ceases_to_be_a_pods_and_stays_a_services_renews_the_epoch_of_those_that_allow_any_pod() {
    let mut world = world();
    world.policies.insert(
        ("web".to_owned(), "p".to_owned()),
        json!({"ingress": [{"from": [{"namespaceSelector": {}}]}]}),
    );
    world.add_pod("web", "client", "10.0.0.2", &[]);
    world.endpoints.remove(&2);
    world.services.insert("s".to_owned(), vec!["10.0.0.2".parse().unwrap()]);
    let mut engine = world.engine();
    let epoch = |engine: &Engine| engine.rows.endpoint(EndpointId(1)).unwrap().epoch;
    let before = epoch(&engine);
    assert!(engine.allows(&world, world.end("web/client"), world.end("web/server"), (TCP, 80)));
    engine.apply([Change::PodGone { uid: "web/client".to_owned() }]);
    assert!(!engine.allows(&world, world.end("web/client"), world.end("web/server"), (TCP, 80)));
    assert_ne!(epoch(&engine), before);
}

#[test]
fn a_service_has_the_class_of_its_blocks_only_and_follows_them() {
    let mut world = world();
    world.policies.insert(
        ("web".to_owned(), "p".to_owned()),
        json!({"policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": {"cidr": "10.96.0.0/16"}}]}]}),
    );
    let mut engine = world.engine();
    engine.apply([service("s", json!({"clusterIP": "10.96.0.1", "externalIPs": ["192.0.2.1"]}), &[])]);
    assert_eq!(row(&engine, "192.0.2.1").unwrap().class, ClassId::NONE);
    assert_ne!(row(&engine, "10.96.0.1").unwrap().class, ClassId::NONE);
    let allows = |engine: &Engine, to: &str| {
        engine.allows(&world, world.end("web/server"), End::Outside(to.parse().unwrap()), (TCP, 80))
    };
    assert!(allows(&engine, "10.96.0.1") && !allows(&engine, "192.0.2.1"));
    let mut other = world.clone();
    other.policies.values_mut().for_each(|it| {
        *it = json!({"policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]});
    });
    engine.apply([other.policy(&("web".to_owned(), "p".to_owned()))]);
    assert!(!allows(&engine, "10.96.0.1") && allows(&engine, "192.0.2.1"));
    assert_eq!(flags(&engine, "192.0.2.1"), SERVICE);
}

#[test]
fn own_addresses_replace_each_other_and_keep_the_class_of_the_node_object() {
    let mut world = world();
    world.cluster_policies.insert(
        "c".to_owned(),
        json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "egress": [{"action": "Deny", "to": [{"nodes": {"matchLabels": {"role": "db"}}}]}]}),
    );
    let labels = super::world::labels(&[("role", "db")]);
    world.nodes.insert("n".to_owned(), (labels, vec!["192.168.0.1".parse().unwrap()]));
    let mut engine = world.engine();
    let class = row(&engine, "192.168.0.1").unwrap().class;
    assert_ne!(class, ClassId::NONE);
    engine.apply([host(&["192.168.0.1", "10.0.0.254", "fd00::1"])]);
    assert_eq!(row(&engine, "192.168.0.1").unwrap().class, class);
    for address in ["192.168.0.1", "10.0.0.254", "fd00::1"] {
        assert_eq!(flags(&engine, address), OWN_NODE, "{address}");
    }
    let denied = End::OwnNode("192.168.0.1".parse().unwrap());
    assert!(!engine.allows(&world, world.end("web/server"), denied, (TCP, 80)));
    assert!(engine.apply([host(&["fd00::1", "10.0.0.254", "192.168.0.1"])]).ops.is_empty());
    engine.apply([host(&["fd00::1"])]);
    assert_eq!(flags(&engine, "192.168.0.1"), Some((false, false, false)));
    assert_eq!((flags(&engine, "10.0.0.254"), flags(&engine, "fd00::1")), (None, OWN_NODE));
    engine.apply([host(&["192.168.0.1"]), service("s", json!({"externalIPs": ["192.168.0.1"]}), &[])]);
    assert_eq!(flags(&engine, "192.168.0.1"), Some((false, true, true)));
}

#[test]
fn services_that_do_not_fit_leave_no_trace_and_one_service_cannot_fill_the_map() {
    let capacities = Capacities { peers: 2, ..Capacities::default() };
    let mut compiler = Compiler::new(Table::A, capacities);
    let external = |n: usize| json!({"externalIPs": (1..=n).map(|i| format!("10.0.{}.{}", i / 250, i % 250)).collect::<Vec<_>>()});
    compiler.apply([service("a", external(2), &[])]).unwrap();
    let refused = compiler.apply([service("a", external(3), &[])]).unwrap_err();
    assert_eq!((refused.resource, refused.policy), (Resource::Peers, None));
    assert_eq!(compiler.usage_of(Resource::Peers).0, 2);
    compiler.apply([Change::ServiceGone { uid: "a".to_owned() }]).unwrap();
    assert_eq!(compiler.usage_of(Resource::Peers).0, 0);
    let mut engine = Engine::default();
    engine.apply([service("b", external(1000), &[])]);
    assert_eq!(engine.compiler.usage_of(Resource::Peers).0, 64);
}

#[test]
fn null_is_missing_in_a_service() {
    let read = |json: &str| serde_json::from_str::<object::Service>(json).unwrap();
    for json in [
        r#"{"metadata":{"name":"a"},"spec":null,"status":null}"#,
        r#"{"metadata":{"name":"a"},"spec":{"clusterIP":null,"clusterIPs":null,"externalIPs":null},
            "status":{"loadBalancer":null}}"#,
        r#"{"metadata":{"name":"a"},"status":{"loadBalancer":{"ingress":null}}}"#,
    ] {
        assert_eq!(read(json).addresses().filter(|it| !it.is_empty()).count(), 0);
    }
}

/// Denied or allowed would both be wrong: the backend decides.
#[test]
fn a_trace_to_a_service_has_no_answer_but_one_to_the_nodes_own_address_has() {
    let mut engine = World::default().engine();
    let addresses = ["10.96.0.1", "192.168.0.1"].map(|it| it.parse::<IpAddr>().unwrap());
    engine.apply([host(&["192.168.0.1"])]);
    engine.apply([service("s", json!({"clusterIP": "10.96.0.1"}), &["192.168.0.1"])]);
    let trace = |to| {
        let from = Party::Address("192.0.2.7".parse().unwrap());
        engine.compiler.trace(&from, &Party::Address(to), TCP, 80)
    };
    assert_eq!(trace(addresses[0]), Err(TraceError::Service(addresses[0])));
    assert!(trace(addresses[1]).unwrap().is_allowed);
}
