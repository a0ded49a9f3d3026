//! Echoes, and ICMP errors about known flows.

use ferrule_tests::packet::{
    DESTINATION_OPTIONS, FRAGMENT, ICMP, ICMPV6, Ipv4, TCP, UDP, cut, data, extension, fragment, icmp_error,
    udp,
};
use serde_json::json;

use super::{
    REMOTE_V4, SYN,
    Step::{Receives, Sends},
    UPLINK, app, policy, segment, v4, v6_of, with_policies,
};
use crate::table::{A, B, FAR_V4, FAR_V6, NODE_V4, ONLY_V4};

fn echo(kind: u8, id: u16) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    vec![kind, 0, 0, 0, high, low, 0, 1]
}

#[test]
fn an_echo_request_never_passes_as_a_reply() {
    let rules = || json!({"policyTypes": ["Ingress", "Egress"], "egress": [{}]});
    for id in [0, 1, 7, u16::MAX] {
        let (next, last) = (id.wrapping_add(1), id.wrapping_sub(1));
        with_policies([policy("a", rules())], |node| {
            let from_far = |kind, id| Receives(A, UPLINK, v4(FAR_V4, A.v4, ICMP, &echo(kind, id)));
            let from_far6 = |kind, id| Receives(A, UPLINK, v6_of(FAR_V6, A.v6, ICMPV6, &echo(kind, id)));
            node.check(&[
                ("a reply without a request", from_far(0, id), false),
                ("a request of the pod", Sends(A, v4(A.v4, FAR_V4, ICMP, &echo(8, id))), true),
                ("its reply", from_far(0, id), true),
                ("a reply with another identifier", from_far(0, next), false),
                ("a reply with the one before", from_far(0, last), false),
                ("a request to the pod", from_far(8, id), false),
                ("a request with another identifier", from_far(8, next), false),
                ("a request with the one before", from_far(8, last), false),
                ("a reply of the pod to nothing", Sends(A, v4(A.v4, FAR_V4, ICMP, &echo(0, next))), true),
                ("a request after that", from_far(8, next), false),
                ("a reply after that", from_far(0, next), false),
                ("another message", from_far(13, id), false),
                ("another message without an identifier", from_far(13, 0), false),
                ("IPv6: a request of the pod", Sends(A, v6_of(A.v6, FAR_V6, ICMPV6, &echo(128, id))), true),
                ("IPv6: its reply", from_far6(129, id), true),
                ("IPv6: a request to the pod", from_far6(128, id), false),
                ("IPv6: another message", from_far6(150, id), false),
            ])
        })
        .unwrap();
    }
}

#[test]
fn rules_without_ports_match_echoes_and_rules_with_ports_do_not() {
    let rules = json!({"ingress": [{"from": [app("a")]}, {"from": [app("c")], "ports": [{"port": 80}]}]});
    with_policies([policy("b", rules)], |node| {
        node.check(&[
            ("without ports", Sends(A, v4(A.v4, B.v4, ICMP, &echo(8, 1))), true),
            ("the reply", Sends(B, v4(B.v4, A.v4, ICMP, &echo(0, 1))), true),
            ("with ports", Sends(ONLY_V4, v4(ONLY_V4.v4, B.v4, ICMP, &echo(8, 1))), false),
        ])
    })
    .unwrap();
}

#[test]
fn an_error_passes_if_it_is_about_a_known_flow_of_the_pod() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{"ports": [{"protocol": "UDP"}]}]});
    with_policies([policy("a", rules)], |node| {
        let sent = v4(A.v4, FAR_V4, UDP, &udp(1000, 53, b""));
        let about = |quote: &[u8]| v4(NODE_V4, A.v4, ICMP, &icmp_error(3, quote));
        let sent6 = v6_of(A.v6, FAR_V6, UDP, &udp(1000, 53, b""));
        let other = v4(A.v4, FAR_V4, UDP, &udp(1001, 53, b""));
        let of_b = v4(B.v4, FAR_V4, UDP, &udp(1000, 53, b""));
        let reversed = v4(FAR_V4, A.v4, UDP, &udp(53, 1000, b""));
        let with_options =
            Ipv4 { options: vec![1; 8], ..Ipv4::new(A.v4, FAR_V4, UDP) }.with(&udp(1000, 53, b""));
        node.check(&[
            ("before the flow", Receives(A, UPLINK, about(&sent)), false),
            ("the flow", Sends(A, sent.clone()), true),
            ("about the flow, from a router", Receives(A, UPLINK, about(&sent)), true),
            ("about the flow, quoted with options", Receives(A, UPLINK, about(&with_options)), true),
            ("about another port", Receives(A, UPLINK, about(&other)), false),
            ("about another pod's flow", Receives(A, UPLINK, about(&of_b)), false),
            ("about a packet to the pod", Receives(A, UPLINK, about(&reversed)), false),
            ("with a quote that is cut off", Receives(A, UPLINK, about(&sent[..24])), false),
            ("IPv6: the flow", Sends(A, sent6.clone()), true),
            (
                "IPv6: about the flow",
                Receives(A, UPLINK, v6_of(FAR_V6, A.v6, ICMPV6, &icmp_error(1, &sent6))),
                true,
            ),
            (
                "IPv6: about another",
                Receives(A, UPLINK, v6_of(FAR_V6, A.v6, ICMPV6, &icmp_error(1, &sent6[..44]))),
                false,
            ),
        ])
    })
    .unwrap();
}

/// A pod that knows the MTU of a way fragments its datagrams itself, and a router with a smaller one quotes a
/// fragment.
#[test]
fn an_error_passes_if_it_is_about_the_first_fragment_of_a_known_flow() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{"ports": [{"protocol": "UDP"}]}]});
    with_policies([policy("a", rules)], |node| {
        let part = |port, at| fragment(UDP, at, true, &udp(port, 53, &data(16)));
        let quoted = |next, payload: &[u8]| v6_of(A.v6, FAR_V6, next, payload);
        let first = quoted(FRAGMENT, &part(1000, 0));
        let too_big = |quote: &[u8]| v6_of(FAR_V6, A.v6, ICMPV6, &icmp_error(2, quote));
        let about = |quote: &[u8]| Receives(A, UPLINK, too_big(quote));
        // The fragment header is behind options, or before them.
        let options = quoted(DESTINATION_OPTIONS, &extension(FRAGMENT, &part(1000, 0)));
        let behind = extension(UDP, &udp(1000, 53, &data(16)));
        let behind = quoted(FRAGMENT, &fragment(DESTINATION_OPTIONS, 0, true, &behind));
        let many = (0..4).fold(part(1000, 0), |it, number| {
            extension(if number == 0 { FRAGMENT } else { DESTINATION_OPTIONS }, &it)
        });
        node.check(&[
            ("before the flow", about(&first), false),
            ("the first fragment of the flow", Sends(A, first.clone()), true),
            ("about it", about(&first), true),
            ("about it, cut off in the fragment header", about(&cut(&first, 44)), false),
            ("about it, cut off in the ports", about(&cut(&first, 51)), false),
            ("about another flow", about(&quoted(FRAGMENT, &part(1001, 0))), false),
            ("about a later fragment", about(&quoted(FRAGMENT, &part(1000, 3))), false),
            ("about one with options", about(&options), true),
            ("about one with options behind", about(&behind), true),
            ("about one with too many headers", about(&quoted(DESTINATION_OPTIONS, &many)), false),
        ])
    })
    .unwrap();
}

#[test]
fn a_pod_sends_errors_to_the_other_end_of_a_known_flow_only() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "ingress": [{}]});
    with_policies([policy("b", rules)], |node| {
        let request = v4(REMOTE_V4, B.v4, UDP, &udp(9, 53, b""));
        let error = |to, quote: &[u8]| v4(B.v4, to, ICMP, &icmp_error(3, quote));
        let other = v4(REMOTE_V4, B.v4, UDP, &udp(9, 54, b""));
        let foreign = v4(FAR_V4, B.v4, UDP, &udp(9, 53, b""));
        node.check(&[
            ("before the flow", Sends(B, error(REMOTE_V4, &request)), false),
            ("the flow", Receives(B, UPLINK, request.clone()), true),
            ("about the flow", Sends(B, error(REMOTE_V4, &request)), true),
            ("to someone else", Sends(B, error(FAR_V4, &request)), false),
            ("about another packet", Sends(B, error(REMOTE_V4, &other)), false),
            ("about a packet of someone else", Sends(B, error(FAR_V4, &foreign)), false),
        ])
    })
    .unwrap();
}

#[test]
fn an_error_about_a_flow_of_earlier_rules_is_judged_by_the_new_ones() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{}]});
    with_policies([policy("a", rules)], |node| {
        let sent = v4(A.v4, FAR_V4, TCP, &segment(1000, 80, SYN));
        let error = v4(NODE_V4, A.v4, ICMP, &icmp_error(3, &sent));
        node.check(&[
            ("the flow", Sends(A, sent), true),
            ("about it", Receives(A, UPLINK, error.clone()), true),
        ])?;
        node.apply([policy("a", json!({"policyTypes": ["Ingress", "Egress"]}))])?;
        node.check(&[("after the change", Receives(A, UPLINK, error), false)])
    })
    .unwrap();
}
