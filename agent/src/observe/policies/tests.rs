//! Traces of a running agent: what the rows say beside the policies.

use std::sync::Arc;

use agent_common::policy::Peer;
use ferrule_policy::{Change, Endpoint, EndpointId, EndpointRow, Op, Recorded, RulesetId, Table, object};
use serde_json::json;
use tonic::Code;

use super::*;
use crate::nodes::Node;

/// The Node's address, and one that only the host knows.
const HOST: [&str; 2] = ["192.0.2.1", "169.254.20.10"];

/// The second address of the pod `front`.
const SECOND: &str = "10.1.9.2";

fn compiler() -> Compiler {
    let pod = |name: &str, address: &str| -> object::Pod {
        let metadata = json!({"namespace": "web", "name": name, "uid": name, "labels": {"app": name}});
        serde_json::from_value(json!({"metadata": metadata, "status": {"podIP": address}})).unwrap()
    };
    let policy = json!({"metadata": {"namespace": "web", "name": "front"}, "spec": {
        "podSelector": {"matchLabels": {"app": "front"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": 80}]}]}});
    let policy = serde_json::from_str(&policy.to_string()).unwrap();
    let mut compiler = Compiler::default();
    compiler
        .apply([
            Change::Namespace(serde_json::from_value(json!({"metadata": {"name": "web"}})).unwrap()),
            Change::Policy(Arc::new(object::network_policy(&policy))),
            Change::Pod(pod("front", "10.1.0.2").into()),
            Change::Pod(pod("client", "10.2.0.2").into()),
            Change::HostAddresses(HOST.map(|it| it.parse().unwrap()).to_vec()),
            Change::Endpoint(Endpoint { id: EndpointId(7), uid: "front".to_owned(), addresses: Vec::new() }),
            // Another interface of the same pod.
            Change::Endpoint(Endpoint {
                id: EndpointId(8),
                uid: "front".to_owned(),
                addresses: vec![SECOND.parse().unwrap()],
            }),
        ])
        .unwrap();
    compiler
}

fn nodes() -> Nodes {
    let node = |name: &str, address: &str, range: &str| Node {
        uid: Arc::from(name),
        name: name.into(),
        zone: None,
        addresses: vec![address.parse().unwrap()],
        ranges: vec![range.parse().unwrap()],
    };
    Nodes {
        is_synced: true,
        own: Some(node("n1", "192.0.2.1", "10.1.0.0/16")),
        others: vec![node("n2", "192.0.2.2", "10.2.0.0/16")],
        refused: Vec::new(),
    }
}

fn pod(name: &str) -> PolicyEnd {
    PolicyEnd { namespace: "web".to_owned(), name: name.to_owned(), ..PolicyEnd::default() }
}

fn address(address: &str) -> PolicyEnd {
    PolicyEnd { address: address.to_owned(), ..PolicyEnd::default() }
}

/// What the compiler wanted to be written.
fn as_compiled(compiler: &Compiler, packet: &Packet) -> Recorded {
    let ruleset = compiler.rows().endpoint(packet.endpoint).map(|row| match packet.direction {
        ferrule_policy::Direction::Ingress => row.ingress,
        ferrule_policy::Direction::Egress => row.egress,
    });
    let peer = compiler.rows().peer(packet.peer.into()).map(|row| Peer::from(*row));
    Recorded { rows: compiler.rows().clone(), ruleset, peer, is_audited: false }
}

fn ask(
    from: PolicyEnd,
    to: PolicyEnd,
    port: u32,
    judging: impl Fn(&Compiler, &Packet) -> Result<Recorded, String>,
) -> Result<TracePoliciesResponse, Status> {
    let (compiler, nodes) = (compiler(), nodes());
    let request = TracePoliciesRequest { from: Some(from), to: Some(to), protocol: 6, port };
    let question = Question::try_from(request)?;
    let trace = question.trace(&compiler, &nodes)?;
    let mut shown = shown::trace(&compiler, &trace);
    let traffic = (question.protocol, question.port);
    let sides = rows::sides(&trace, traffic, &nodes, |packet| judging(&compiler, packet));
    rows::show(&sides, &compiler, &mut shown);
    Ok(shown)
}

#[test]
fn rows_answer_for_pods_of_this_node_and_agree() {
    let judging = |compiler: &Compiler, packet: &Packet| Ok(as_compiled(compiler, packet));
    for (port, allowed) in [(80, true), (81, false)] {
        let shown = ask(pod("client"), pod("front"), port, judging).unwrap();
        assert_eq!((shown.allowed, shown.disagree), (allowed, false));
        let (egress, ingress) = (shown.egress.unwrap(), shown.ingress.unwrap());
        assert_eq!((egress.rows, &*egress.no_rows_because), (None, "web/client is not on this node"));
        let rows = ingress.rows.unwrap();
        assert_eq!((rows.allowed, rows.because), (allowed, ingress.because));
    }
}

#[test]
fn rows_that_decide_otherwise_disagree() {
    let open = |_: &Compiler, packet: &Packet| {
        let mut recorded = Recorded { ruleset: Some(RulesetId::OPEN), ..Recorded::default() };
        let (ingress, egress) = (RulesetId::OPEN, RulesetId::OPEN);
        let row = EndpointRow { ingress, egress, table: Table::A, epoch: 0, audit: false };
        recorded.rows.apply(&Op::Endpoint(packet.endpoint, Some(row)));
        Ok(recorded)
    };
    let shown = ask(pod("client"), pod("front"), 81, open).unwrap();
    assert!(shown.disagree && !shown.allowed);
    let nothing = |_: &Compiler, _: &Packet| Ok(Recorded::default());
    let shown = ask(pod("client"), pod("front"), 80, nothing).unwrap();
    assert!(shown.disagree && shown.allowed);
    assert_eq!(shown.ingress.unwrap().rows.unwrap().because, "the pod has no rows: nothing passes");
}

#[test]
fn a_pod_reaches_its_other_interface_whatever_rows_say() {
    let judging = |compiler: &Compiler, packet: &Packet| Ok(as_compiled(compiler, packet));
    for (from, to) in [(pod("front"), address(SECOND)), (address(SECOND), pod("front"))] {
        let shown = ask(from, to, 80, judging).unwrap();
        assert_eq!((shown.allowed, shown.disagree), (true, false));
        let (egress, ingress) = (shown.egress.unwrap(), shown.ingress.unwrap());
        assert!(egress.because.starts_with("both ends are the same pod"), "{}", egress.because);
        assert_eq!((egress.rows, ingress.rows), (None, None));
    }
}

#[test]
fn maps_that_cannot_be_read_and_services_give_no_answer() {
    let failing = |_: &Compiler, _: &Packet| Err("no such map".to_owned());
    let shown = ask(pod("client"), pod("front"), 80, failing).unwrap();
    assert_eq!((shown.disagree, &*shown.ingress.unwrap().no_rows_because), (false, "no such map"));
    let service = |compiler: &Compiler, packet: &Packet| {
        let peer = Some(Peer { class: 0, flags: Peer::SERVICE });
        Ok(Recorded { peer, ..as_compiled(compiler, packet) })
    };
    let shown = ask(pod("front"), address("10.96.0.1"), 80, service).unwrap();
    assert!(shown.egress.unwrap().no_rows_because.contains("ask about the backend"));
}

#[test]
fn an_address_of_a_range_of_pods_whose_pod_is_not_known_is_denied_and_noted() {
    let judging = |compiler: &Compiler, packet: &Packet| Ok(as_compiled(compiler, packet));
    let shown = ask(address("10.2.0.9"), pod("front"), 80, judging).unwrap();
    assert_eq!((shown.allowed, shown.disagree), (false, false));
    let outside = ask(address("203.0.113.9"), pod("front"), 80, judging).unwrap();
    assert!(!outside.allowed && outside.notes.is_empty());
}

#[test]
fn the_own_node_is_known_by_its_address_and_reaches_its_pods() {
    let judging = |compiler: &Compiler, packet: &Packet| Ok(as_compiled(compiler, packet));
    let node = PolicyEnd { own_node: true, ..PolicyEnd::default() };
    for from in [node, address("192.0.2.1")] {
        let shown = ask(from, pod("front"), 22, judging).unwrap();
        assert!(shown.allowed && !shown.disagree);
        assert_eq!(shown.from.unwrap(), PolicyEnd { own_node: true, ..address("192.0.2.1") });
    }
    let shown = ask(address("192.0.2.2"), pod("front"), 22, judging).unwrap();
    assert!(!shown.allowed, "another node is no own node");
}

#[test]
fn each_address_of_the_host_is_the_own_nodes_for_policies_and_by_its_flag_for_rows() {
    let judging = |compiler: &Compiler, packet: &Packet| Ok(as_compiled(compiler, packet));
    for host in HOST {
        for (from, to) in [(pod("front"), address(host)), (address(host), pod("front"))] {
            let shown = ask(from, to, 53, judging).unwrap();
            assert!(shown.allowed && !shown.disagree, "{host}");
        }
    }
    let unmarked =
        |compiler: &Compiler, packet: &Packet| Ok(Recorded { peer: None, ..as_compiled(compiler, packet) });
    let shown = ask(pod("front"), address("169.254.20.10"), 53, unmarked).unwrap();
    assert!(shown.allowed && shown.disagree, "the programs would judge it as an address of the world");
    let world = ask(pod("front"), address("169.254.20.11"), 53, judging).unwrap();
    assert!(!world.allowed && !world.disagree);
}

#[test]
fn what_is_not_known_or_makes_no_sense_is_refused() {
    let judging = |compiler: &Compiler, packet: &Packet| Ok(as_compiled(compiler, packet));
    let code = |from, to, port| ask(from, to, port, judging).unwrap_err().code();
    assert_eq!(code(pod("ghost"), pod("front"), 80), Code::NotFound);
    assert_eq!(code(address("web"), pod("front"), 80), Code::InvalidArgument);
    assert_eq!(code(pod("client"), pod("front"), 65536), Code::InvalidArgument);
    assert_eq!(code(address("fd00::1"), pod("front"), 80), Code::NotFound);
    let error = unknown(
        &Compiler::default(),
        &TraceError::UnknownPod { namespace: "a".to_owned(), name: "b".to_owned() },
    );
    assert!(error.message().contains("every packet passes"), "{error}");
}

#[test]
fn a_list_has_the_policies_that_cannot_be_decoded_with_the_reason() {
    let known = shown::list(&compiler(), Counted::Local);
    let why = || "spec: found a list, expected an object".to_owned();
    let earlier = PolicyId::namespaced("web", "front");
    let list = with_undecodable(known, vec![(PolicyId::cluster("odd"), why()), (earlier, why())]);
    let [odd, front] = list.as_slice() else { panic!("{list:#?}") };
    assert_eq!(
        (odd.kind.as_str(), odd.name.as_str(), odd.ingress_rules),
        ("ClusterNetworkPolicy", "odd", None)
    );
    assert_eq!(odd.problems, [format!("{}; nothing of the policy applies", why())]);
    assert_eq!((front.name.as_str(), front.ingress_rules), ("front", Some(1)));
    assert_eq!(front.problems, [format!("{}; the last decodable version applies", why())]);
}
