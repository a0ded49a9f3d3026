//! Fragments: only the first one has ports.

use anyhow::ensure;
use ferrule_tests::packet::{
    DESTINATION_OPTIONS, FRAGMENT, Ipv4, Ipv6, TCP, UDP, data, extension, fragment, tcp, udp,
};
use serde_json::json;

use super::{
    Policed,
    Step::{self, Receives, Sends},
    UPLINK, app, policy, with_policies,
};
use crate::table::{A, B, FAR_V4, FAR_V6, NODE_V4, NODE_V6, Pod};

/// Fragments of one IPv4 datagram from far away, by its identification.
fn of(to: Pod, id: u16, port: u16, at: u16) -> Vec<u8> {
    let more = if at == 0 { Ipv4::MORE_FRAGMENTS } else { 0 };
    let payload = if at == 0 { udp(9, port, &data(16)) } else { data(24) };
    Ipv4 { id, fragment: more | at, ..Ipv4::new(FAR_V4, to.v4, UDP) }.with(&payload)
}

/// The same of IPv6, all with one identification.
fn of6(from: [u8; 16], to: Pod, port: u16, at: u16) -> Vec<u8> {
    let payload = if at == 0 { udp(9, port, &data(16)) } else { data(24) };
    Ipv6::new(from, to.v6, FRAGMENT).with(&fragment(UDP, at, at == 0, &payload))
}

#[test]
fn later_fragments_pass_after_the_first_one() {
    let rules = json!({"ingress": [{"ports": [{"protocol": "UDP", "port": 53}]}]});
    with_policies([policy("b", rules)], |node| {
        node.check(&[
            ("a later one before the first", Receives(B, UPLINK, of(B, 1, 53, 3)), false),
            ("the first", Receives(B, UPLINK, of(B, 1, 53, 0)), true),
            ("a later one", Receives(B, UPLINK, of(B, 1, 53, 3)), true),
            ("of another datagram", Receives(B, UPLINK, of(B, 2, 53, 3)), false),
            ("the first to another port", Receives(B, UPLINK, of(B, 3, 54, 0)), false),
            ("a later one of that", Receives(B, UPLINK, of(B, 3, 54, 3)), false),
            (
                "a first one too short for ports",
                Receives(B, UPLINK, {
                    let ip = Ipv4 { id: 4, fragment: Ipv4::MORE_FRAGMENTS, ..Ipv4::new(FAR_V4, B.v4, UDP) };
                    ip.with(&[0, 9, 0, 53])
                }),
                false,
            ),
            ("IPv6: a later one before the first", Receives(B, UPLINK, of6(FAR_V6, B, 53, 3)), false),
            ("IPv6: the first to another port", Receives(B, UPLINK, of6(FAR_V6, B, 54, 0)), false),
            ("IPv6: the first", Receives(B, UPLINK, of6(FAR_V6, B, 53, 0)), true),
            ("IPv6: a later one", Receives(B, UPLINK, of6(FAR_V6, B, 53, 3)), true),
        ])
    })
    .unwrap();
}

#[test]
fn fragments_of_a_reply_pass() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{}]});
    with_policies([policy("b", rules)], |node| {
        node.check(&[
            ("the first, of no flow", Receives(B, UPLINK, of(B, 1, 5000, 0)), false),
            ("the request", Sends(B, Ipv4::new(B.v4, FAR_V4, UDP).with(&udp(5000, 9, b""))), true),
            ("the first", Receives(B, UPLINK, of(B, 2, 5000, 0)), true),
            ("a later one", Receives(B, UPLINK, of(B, 2, 5000, 3)), true),
        ])
    })
    .unwrap();
}

#[test]
fn fragments_between_siblings_pass_both_pods_rules() {
    let (to, from) = (json!({"egress": [{"to": [app("b")]}]}), json!({"ingress": [{"from": [app("a")]}]}));
    with_policies([policy("a", to), policy("b", from)], |node: &mut Policed<'_>| {
        let part = |at: u16| {
            let payload = if at == 0 { udp(1, 2, &data(16)) } else { data(24) };
            let more = if at == 0 { Ipv4::MORE_FRAGMENTS } else { 0 };
            Ipv4 { fragment: more | at, ..Ipv4::new(A.v4, B.v4, UDP) }.with(&payload)
        };
        let steps: [(&str, Step, bool); 5] = [
            ("a later one before the first", Sends(A, part(3)), false),
            ("the first", Sends(A, part(0)), true),
            ("the first, delivered", Receives(B, A.ifindex, part(0)), true),
            ("a later one", Sends(A, part(3)), true),
            ("a later one, delivered", Receives(B, A.ifindex, part(3)), true),
        ];
        node.check(&steps)
    })
    .unwrap();
}

/// More fragmented packets than the dataplane remembers of all pods.
const FLOOD: u16 = 10_000;

/// The first fragment of a datagram between two pods, or to another host, by its identification.
fn first(from: Pod, to: [u8; 4], id: u16) -> Vec<u8> {
    Ipv4 { id, fragment: Ipv4::MORE_FRAGMENTS, ..Ipv4::new(from.v4, to, UDP) }.with(&udp(9, 53, &data(16)))
}

#[test]
fn a_pod_that_floods_fragments_displaces_only_its_own() {
    let all = json!({"policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]});
    with_policies([policy("a", all.clone()), policy("b", all)], |node| {
        let later = Ipv4 { id: 7, fragment: 3, ..Ipv4::new(B.v4, FAR_V4, UDP) }.with(&data(24));
        node.check(&[
            ("B sends the first of one", Sends(B, first(B, FAR_V4, 7)), true),
            ("B gets the first of another", Receives(B, UPLINK, of(B, 1, 53, 0)), true),
            ("A sends the first of a third", Sends(A, first(A, FAR_V4, 0)), true),
        ])?;
        for id in 1..FLOOD {
            let is_allowed = match id % 3 {
                0 => node.sends(A, &first(A, FAR_V4, id))?,
                1 => node.receives(B, A.ifindex, &first(A, B.v4, id))?,
                _ => {
                    let part = fragment(UDP, 0, true, &udp(id, 53, &data(16)));
                    node.receives(B, A.ifindex, &Ipv6::new(A.v6, B.v6, FRAGMENT).with(&part))?
                }
            };
            ensure!(is_allowed, "packet {id} of the flood");
        }
        let third = Ipv4 { id: 0, fragment: 3, ..Ipv4::new(A.v4, FAR_V4, UDP) }.with(&data(24));
        node.check(&[
            ("the rest of B's", Sends(B, later), true),
            ("the rest of what B gets", Receives(B, UPLINK, of(B, 1, 53, 3)), true),
            ("the rest of A's", Sends(A, third), false),
        ])
    })
    .unwrap();
}

/// Through a NodePort, for instance.
#[test]
fn a_pod_that_floods_fragments_from_the_nodes_address_displaces_only_its_own() {
    with_policies([policy("b", json!({"ingress": [{}]}))], |node| {
        ensure!(node.receives(B, UPLINK, &of(B, 1, 53, 0))?, "the first fragment");
        for id in 0..FLOOD {
            let masqueraded = first(Pod { v4: NODE_V4, ..A }, B.v4, id);
            ensure!(node.receives(B, A.ifindex, &masqueraded)?, "packet {id} of the flood");
        }
        ensure!(node.receives(B, UPLINK, &of(B, 1, 53, 3))?, "a later fragment");
        Ok(())
    })
    .unwrap();
}

#[test]
fn packets_of_both_rings_and_of_other_pods_leave_each_ring_its_order() {
    let all = json!({"policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]});
    with_policies([policy("a", all.clone()), policy("b", all)], |node| {
        for id in 0..200 {
            ensure!(node.sends(B, &first(B, FAR_V4, id))?, "first fragment {id}");
            for other in 0..3 {
                ensure!(node.receives(B, UPLINK, &of(B, 4 * id + other, 53, 0))?, "one from outside");
                ensure!(node.sends(A, &first(A, FAR_V4, 4 * id + other))?, "one of another pod");
            }
        }
        for id in 0..200 {
            let later = Ipv4 { id, fragment: 3, ..Ipv4::new(B.v4, FAR_V4, UDP) }.with(&data(24));
            ensure!(node.sends(B, &later)?, "later fragment {id}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn fragments_from_elsewhere_displace_none_that_the_pod_sends() {
    let all = json!({"policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]});
    with_policies([policy("b", all)], |node| {
        let later = Ipv4 { id: 7, fragment: 3, ..Ipv4::new(B.v4, FAR_V4, UDP) }.with(&data(24));
        ensure!(node.sends(B, &first(B, FAR_V4, 7))?, "the first fragment");
        for id in 0..FLOOD {
            ensure!(node.receives(B, UPLINK, &of(B, id, 53, 0))?, "packet {id} of the flood");
        }
        ensure!(node.sends(B, &later)?, "a later fragment");
        Ok(())
    })
    .unwrap();
}

/// Many threads of a pod send fragmented datagrams at the same time.
#[test]
fn a_pod_has_hundreds_of_fragmented_packets_on_their_way() {
    const ON_THE_WAY: u16 = 250;
    with_policies([policy("b", json!({"policyTypes": ["Egress"], "egress": [{}]}))], |node| {
        for id in 0..ON_THE_WAY {
            ensure!(node.sends(B, &first(B, FAR_V4, id))?, "first fragment {id}");
        }
        for id in 0..ON_THE_WAY {
            let later = Ipv4 { id, fragment: 3, ..Ipv4::new(B.v4, FAR_V4, UDP) }.with(&data(24));
            ensure!(node.sends(B, &later)?, "later fragment {id}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_direction_without_rules_passes_any_fragment() {
    with_policies([policy("b", json!({"policyTypes": ["Ingress"]}))], |node| {
        let out = Ipv4 { fragment: 3, ..Ipv4::new(B.v4, FAR_V4, UDP) }.with(&data(24));
        node.check(&[("a later fragment of the pod", Sends(B, out), true)])
    })
    .unwrap();
}

/// The kernel does not keep the interface of IPv6 fragments that it makes: such a packet may be another's.
#[test]
fn an_ipv6_fragment_without_an_interface_is_not_the_nodes_own() {
    with_policies([policy("b", json!({"policyTypes": ["Ingress"]}))], |node| {
        let whole = Ipv6::new(NODE_V6, B.v6, UDP).with(&udp(1, 2, b""));
        let later = Ipv4 { fragment: 3, ..Ipv4::new(FAR_V4, B.v4, UDP) }.with(&data(24));
        node.check(&[
            ("a fragment", Receives(B, 0, of6(NODE_V6, B, 53, 0)), false),
            ("a whole packet of the node", Receives(B, 0, whole), true),
            ("an IPv4 fragment of the node", Receives(B, 0, later), true),
        ])
    })
    .unwrap();
}

/// The kernel cuts off what the frame has behind the packet, and puts a packet to another port together.
#[test]
fn ports_behind_the_end_of_a_fragmented_packet_allow_nothing() {
    let rules = json!({"policyTypes": ["Egress"], "egress": [{"ports": [{"protocol": "UDP", "port": 53}]}]});
    with_policies([policy("a", rules)], |node| {
        // A header that ends with the identification of `fragment`, as a fragment header does.
        let decoy = [&[UDP, 0, 1, 4, 0, 0, 0, 9], &udp(9, 53, &data(16))[..]].concat();
        let first = fragment(DESTINATION_OPTIONS, 0, true, &extension(DESTINATION_OPTIONS, b""));
        let first = Ipv6::new(A.v6, FAR_V6, FRAGMENT).with(&first);
        let rest = fragment(UDP, 1, false, &extension(TCP, &tcp(9, 22, b"")));
        node.check(&[
            ("the first, with a decoy behind its end", Sends(A, [first.clone(), decoy].concat()), false),
            ("the rest", Sends(A, Ipv6::new(A.v6, FAR_V6, FRAGMENT).with(&rest)), false),
            ("the first, without", Sends(A, first), false),
        ])
    })
    .unwrap();
}
