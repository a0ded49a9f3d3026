//! Verdicts on fresh flows.

use agent_common::{DropReason, policy::Subject};
use anyhow::ensure;
use ferrule_policy::Table;
use ferrule_tests::packet::{Ipv4, SCTP, TCP, UDP, udp};
use serde_json::json;

use super::{
    FRESH_V4, REMOTE_V4, REMOTE_V6, SYN,
    Step::{Receives, Sends},
    UPLINK, app, policy, segment, v4, v6_of, with_policies,
};
use crate::table::{A, B, FAR_V4, NEW, NODE_V4, ONLY_V4, Pod};

fn syn(from: Pod, to: Pod, port: u16) -> Vec<u8> {
    v4(from.v4, to.v4, TCP, &segment(40000, port, SYN))
}

#[test]
fn an_isolated_pod_receives_nothing_but_what_its_own_node_sends() {
    with_policies([policy("b", json!({"policyTypes": ["Ingress"]}))], |node| {
        node.check(&[
            ("from a sibling", Sends(A, syn(A, B, 80)), false),
            ("from a sibling, IPv6", Sends(A, v6_of(A.v6, B.v6, UDP, &udp(1, 2, b""))), false),
            ("from a sibling by the stack", Receives(B, A.ifindex, syn(A, B, 80)), false),
            ("from a remote pod", Receives(B, UPLINK, v4(REMOTE_V4, B.v4, TCP, &segment(1, 80, SYN))), false),
            (
                "from a remote pod, IPv6",
                Receives(B, UPLINK, v6_of(REMOTE_V6, B.v6, TCP, &segment(1, 80, SYN))),
                false,
            ),
            ("from the world", Receives(B, UPLINK, v4(FAR_V4, B.v4, TCP, &segment(1, 80, SYN))), false),
            (
                "from another host as the node",
                Receives(B, UPLINK, v4(NODE_V4, B.v4, TCP, &segment(1, 80, SYN))),
                false,
            ),
            ("a protocol without ports", Receives(B, UPLINK, v4(FAR_V4, B.v4, 47, &[0; 20])), false),
            ("from the own node", Receives(B, 0, v4(NODE_V4, B.v4, TCP, &segment(1, 80, SYN))), true),
            (
                "from the own node by an unknown address",
                Receives(B, 0, v4([198, 51, 100, 1], B.v4, TCP, &segment(1, 80, SYN))),
                true,
            ),
            ("to a sibling", Sends(B, syn(B, A, 80)), true),
            ("to a sibling that no policy isolates", Sends(A, syn(A, ONLY_V4, 80)), true),
            ("to the world", Sends(B, v4(B.v4, FAR_V4, TCP, &segment(1, 80, SYN))), true),
            ("to itself", Sends(B, syn(B, B, 80)), true),
        ])?;
        ensure!(node.drops(B, DropReason::PolicyIngress)? == (0, 8), "{:?}", node.counters()?);
        let records = node.records()?;
        let [first, ..] = records.as_slice() else { anyhow::bail!("no records") };
        // The drop is the receiver's, also where the sender's program denies.
        ensure!(
            (first.ifindex, first.direction, first.bit, first.audit) == (B.ifindex, 1, 0, 0),
            "{first:?}"
        );
        ensure!(first.reason == DropReason::PolicyIngress as u32 && first.ruleset != u32::MAX, "{first:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_isolated_pod_sends_nothing_but_to_its_own_node() {
    with_policies([policy("a", json!({"policyTypes": ["Egress"]}))], |node| {
        let own = agent_common::policy::Peer { class: 0, flags: agent_common::policy::Peer::OWN_NODE };
        node.rules.add_peer(Table::A, std::net::IpAddr::from(NODE_V4).into(), own)?;
        node.check(&[
            ("to a sibling", Sends(A, syn(A, B, 80)), false),
            ("to a sibling, IPv6", Sends(A, v6_of(A.v6, B.v6, UDP, &udp(1, 2, b""))), false),
            (
                "to a sibling by the stack",
                Sends(A, Ipv4 { options: vec![1; 4], ..Ipv4::new(A.v4, B.v4, UDP) }.with(&udp(1, 2, b""))),
                false,
            ),
            ("to a remote pod", Sends(A, v4(A.v4, REMOTE_V4, TCP, &segment(1, 80, SYN))), false),
            ("to the world", Sends(A, v4(A.v4, FAR_V4, TCP, &segment(1, 80, SYN))), false),
            ("a protocol without ports", Sends(A, v4(A.v4, FAR_V4, 132, &[0; 3])), false),
            ("to the node", Sends(A, v4(A.v4, NODE_V4, TCP, &segment(1, 10250, SYN))), true),
            ("to itself", Sends(A, syn(A, A, 80)), true),
            ("from a sibling", Sends(B, syn(B, A, 80)), true),
        ])?;
        ensure!(node.drops(A, DropReason::PolicyEgress)? == (6, 0), "{:?}", node.counters()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn peers_ports_ranges_and_names_differ() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "ingress": [
        {"from": [app("a")], "ports": [{"port": 80}, {"protocol": "UDP", "port": 1000, "endPort": 2000}]},
        {"from": [{"ipBlock": {"cidr": "203.0.113.0/24", "except": ["203.0.113.128/25"]}}]},
    ], "egress": [{"to": [app("c"), app("r")], "ports": [{"port": "web"}]}]});
    with_policies([policy("b", rules)], |node| {
        let world = |host, port| v4([203, 0, 113, host], B.v4, TCP, &segment(1, port, SYN));
        let datagram = |port| v4(A.v4, B.v4, UDP, &udp(9, port, b""));
        node.check(&[
            ("the peer and its port", Sends(A, syn(A, B, 80)), true),
            ("another port", Sends(A, syn(A, B, 81)), false),
            ("another peer", Sends(ONLY_V4, syn(ONLY_V4, B, 80)), false),
            ("another protocol", Sends(A, v4(A.v4, B.v4, SCTP, &segment(1, 80, 0))), false),
            ("the first of a range", Sends(A, datagram(1000)), true),
            ("the last of a range", Sends(A, datagram(2000)), true),
            ("below a range", Sends(A, datagram(999)), false),
            ("above a range", Sends(A, datagram(2001)), false),
            ("a block", Receives(B, UPLINK, world(5, 7777)), true),
            ("what a block leaves out", Receives(B, UPLINK, world(200, 7777)), false),
            ("by IPv6, the same rules", Sends(A, v6_of(A.v6, B.v6, TCP, &segment(3, 80, SYN))), true),
            ("a named port of the destination", Sends(B, syn(B, ONLY_V4, 80)), true),
            ("the port of that name elsewhere", Sends(B, syn(B, ONLY_V4, 8080)), false),
            ("a named port of a remote pod", Sends(B, v4(B.v4, REMOTE_V4, TCP, &segment(2, 80, SYN))), true),
            (
                "a named port of a remote pod, IPv6",
                Sends(B, v6_of(B.v6, REMOTE_V6, TCP, &segment(2, 80, SYN))),
                true,
            ),
            ("no ports at all", Sends(A, v4(A.v4, B.v4, TCP, &[0, 1, 0, 80, 0, 0])), false),
        ])
    })
    .unwrap();
}

#[test]
fn all_ports_that_a_ruleset_contains_are_found() {
    const MOST: u16 = agent_common::policy::MAX_RANGES as u16;
    let of = |protocol: &str, first: u16| json!({"protocol": protocol, "port": first, "endPort": first + 1});
    let both = |first| [of("TCP", first), of("UDP", first)];
    let ports: Vec<_> = (0..MOST / 2).flat_map(|number| both(100 + 3 * number)).collect();
    with_policies([policy("b", json!({"ingress": [{"from": [app("a")], "ports": ports}]}))], |node| {
        for port in 99..=100 + 3 * MOST / 2 {
            let datagram = v4(A.v4, B.v4, UDP, &udp(1, port, b""));
            let is_allowed = (100..100 + 3 * MOST / 2).contains(&port) && (port - 100) % 3 < 2;
            let about = format!("port {port}");
            node.check(&[
                (&about, Sends(A, syn(A, B, port)), is_allowed),
                (&about, Sends(A, datagram), is_allowed),
            ])?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn more_ports_than_a_ruleset_contains_are_in_a_trie() {
    let ports: Vec<_> = (0..40).map(|number| json!({"port": 100 + 3 * number})).collect();
    with_policies([policy("b", json!({"ingress": [{"from": [app("a")], "ports": ports}]}))], |node| {
        node.check(&[
            ("the first", Sends(A, syn(A, B, 100)), true),
            ("the last", Sends(A, syn(A, B, 217)), true),
            ("between two", Sends(A, syn(A, B, 101)), false),
            ("another protocol", Sends(A, v4(A.v4, B.v4, UDP, &udp(1, 100, b""))), false),
        ])
    })
    .unwrap();
}

#[test]
fn blocks_of_one_family_contain_no_addresses_of_the_other() {
    let rules = json!({"ingress": [{"from": [{"ipBlock": {"cidr": "::/0"}}]}]});
    with_policies([policy("b", rules)], |node| {
        node.check(&[
            ("IPv4", Receives(B, UPLINK, v4(FAR_V4, B.v4, UDP, &udp(1, 2, b""))), false),
            ("IPv6", Receives(B, UPLINK, v6_of(crate::table::FAR_V6, B.v6, UDP, &udp(1, 2, b""))), true),
        ])
    })
    .unwrap();
}

#[test]
fn a_pod_without_a_row_passes_nothing_in_neither_direction() {
    with_policies([], |node| {
        let ask = ferrule_tests::packet::Arp::ask(NEW.mac, NEW.v4, agent_common::GATEWAY_IPV4).bytes();
        let frame = NEW.sends(ferrule_tests::packet::ARP, &ask);
        let skb = ferrule_tests::program::SkBuff::on(NEW.ifindex);
        node.run(ferrule_tests::program::Program::FromPod, skb, &frame)?
            .expect(ferrule_tests::program::TC_ACT_SHOT)?;
        node.check(&[
            ("to the world", Sends(NEW, v4(NEW.v4, FAR_V4, UDP, &udp(1, 2, b""))), false),
            ("to itself", Sends(NEW, syn(NEW, NEW, 80)), false),
            ("from a sibling", Sends(A, syn(A, NEW, 80)), false),
            ("from its node", Receives(NEW, 0, v4(NODE_V4, NEW.v4, UDP, &udp(1, 2, b""))), false),
        ])?;
        ensure!(node.drops(NEW, DropReason::PolicyUnknown)? == (3, 2), "{:?}", node.counters()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_ruleset_that_is_missing_denies() {
    with_policies([policy("b", json!({"ingress": [{}]}))], |node| {
        node.check(&[("before", Sends(A, syn(A, B, 80)), true)])?;
        node.change(B, |subject| (subject.ingress, subject.epoch) = (77, subject.epoch + 1))?;
        node.check(&[
            ("a known flow", Sends(A, syn(A, B, 80)), false),
            ("a new one", Sends(A, syn(A, B, 81)), false),
        ])?;
        ensure!(node.drops(B, DropReason::PolicyUnknown)? == (0, 2), "{:?}", node.counters()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_is_denied_to_an_audited_pod_passes_with_a_record() {
    with_policies([policy("b", json!({"policyTypes": ["Ingress", "Egress"]}))], |node| {
        node.change(B, |subject| subject.flags |= Subject::AUDIT)?;
        node.check(&[
            ("to the pod", Sends(A, syn(A, B, 80)), true),
            ("of the same flow", Sends(A, syn(A, B, 80)), true),
            ("from the pod", Sends(B, v4(B.v4, FAR_V4, UDP, &udp(1, 2, b""))), true),
        ])?;
        let records = node.records()?;
        let facts: Vec<_> =
            records.iter().map(|it| (it.ifindex, it.direction, it.reason, it.audit)).collect();
        let expected = [
            (B.ifindex, 1, DropReason::PolicyIngress as u32, 1),
            (B.ifindex, 2, DropReason::PolicyEgress as u32, 1),
        ];
        ensure!(facts == expected, "{records:?}");
        ensure!(
            node.drops(B, DropReason::PolicyIngress)? == (0, 0),
            "a packet that passes is counted as dropped"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pod_whose_labels_are_not_known_yet_is_no_peer_and_has_a_reason_of_its_own() {
    let rules = json!({"ingress": [
        {"from": [app("r")]},
        {"from": [{"ipBlock": {"cidr": "10.244.2.0/24"}}], "ports": [{"port": 7}]},
    ]});
    with_policies([policy("b", rules)], |node| {
        let from = |source, port| v4(source, B.v4, TCP, &segment(1, port, SYN));
        node.check(&[
            ("the peer", Receives(B, UPLINK, from(REMOTE_V4, 80)), true),
            ("an unknown pod", Receives(B, UPLINK, from(FRESH_V4, 80)), false),
            ("a block that contains it", Receives(B, UPLINK, from(FRESH_V4, 7)), true),
            ("the world", Receives(B, UPLINK, from(FAR_V4, 80)), false),
        ])?;
        ensure!(node.drops(B, DropReason::PeerUnknown)? == (0, 1), "{:?}", node.counters()?);
        ensure!(node.drops(B, DropReason::PolicyIngress)? == (0, 1), "{:?}", node.counters()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_sender_behind_a_translated_address_is_the_pod_of_its_interface() {
    let rules = json!({"ingress": [{"from": [app("a")]}]});
    with_policies([policy("b", rules)], |node| {
        let masqueraded = |port| v4(NODE_V4, B.v4, TCP, &segment(port, 80, SYN));
        node.check(&[
            ("a pod that may", Receives(B, A.ifindex, masqueraded(1)), true),
            ("a pod that may not", Receives(B, ONLY_V4.ifindex, masqueraded(2)), false),
            ("another host", Receives(B, UPLINK, masqueraded(3)), false),
            ("the node", Receives(B, 0, masqueraded(4)), true),
            ("the pod itself, through a Service", Receives(B, B.ifindex, masqueraded(5)), true),
        ])
    })
    .unwrap();
}
