//! Flows between two judged pods of the node, which have one entry for both ends.

use agent_common::{
    VifEntry, VifKey,
    policy::{Subject, View, ViewKey},
};
use anyhow::{Context as _, ensure};
use ferrule_tests::packet::{ICMP, Ipv4, SCTP, TCP, UDP, data, icmp_error, udp};
use serde_json::json;

use super::{
    ACK, Policed, SYN,
    Step::{Receives, Sends},
    app,
    flows::age,
    policy, segment, v4, v6_of, with_policies,
};
use crate::table::{A, B, NEW, Pod};

/// `A` may call `B`, port 80; neither may do anything else.
fn only_a_calls_b() -> [ferrule_policy::Change; 2] {
    let from = json!({"policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [app("a")], "ports": [{"port": 80}, {"protocol": "UDP", "port": 80}]}]});
    let to = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{"to": [app("b")]}]});
    [policy("b", from), policy("a", to)]
}

/// Nothing may pass.
fn none(name: &str) -> ferrule_policy::Change {
    policy(name, json!({"policyTypes": ["Ingress", "Egress"]}))
}

fn there(flags: u8) -> Vec<u8> {
    v4(A.v4, B.v4, TCP, &segment(40000, 80, flags))
}

/// A connection request of `A` to `B`.
fn request(ports: (u16, u16)) -> Vec<u8> {
    v4(A.v4, B.v4, TCP, &segment(ports.0, ports.1, SYN))
}

fn back(flags: u8) -> Vec<u8> {
    v4(B.v4, A.v4, TCP, &segment(80, 40000, flags))
}

/// A packet at its last hop, which goes to the stack.
fn by_stack(from: Pod, to: Pod, ports: (u16, u16)) -> Vec<u8> {
    Ipv4 { ttl: 1, ..Ipv4::new(from.v4, to.v4, TCP) }.with(&segment(ports.0, ports.1, ACK))
}

fn connect(node: &mut Policed<'_>) -> anyhow::Result<()> {
    node.check(&[
        ("the request", Sends(A, there(SYN)), true),
        ("the answer", Sends(B, back(SYN | ACK)), true),
        ("the confirmation", Sends(A, there(ACK)), true),
    ])
}

fn entries(node: &Policed<'_>) -> Vec<(ViewKey, View)> {
    [&node.policy_flows, &node.policy_pending].into_iter().flat_map(|map| map.iter().flatten()).collect()
}

fn the_pair(node: &Policed<'_>) -> anyhow::Result<View> {
    let [(key, view)] = entries(node).try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
    ensure!(key.ifindex == A.ifindex | ViewKey::PAIR && view.peer == B.ifindex, "{key:?} {view:?}");
    Ok(view)
}

#[test]
fn packets_of_a_pair_that_pass_the_stack_are_known_at_each_end() {
    with_policies(only_a_calls_b(), |node| {
        connect(node)?;
        let (forward, reply) = (by_stack(A, B, (40000, 80)), by_stack(B, A, (80, 40000)));
        node.check(&[
            ("the server to the stack", Sends(B, reply.clone()), true),
            ("the stack to the client", Receives(A, B.ifindex, back(ACK)), true),
            ("the client to the stack", Sends(A, forward), true),
            ("the stack to the server", Receives(B, A.ifindex, there(ACK)), true),
            ("another port of the server", Sends(B, by_stack(B, A, (81, 40000))), false),
            ("another port to the client", Receives(A, B.ifindex, by_stack(B, A, (81, 40000))), false),
        ])?;
        the_pair(node)?;
        node.apply([none("b")])?;
        node.check(&[
            ("the server, after a change", Sends(B, reply), false),
            ("the stack to the server, after it", Receives(B, A.ifindex, there(ACK)), false),
            ("the stack to the client, whose rules allow the flow", Receives(A, B.ifindex, back(ACK)), true),
        ])
    })
    .unwrap();
}

#[test]
fn fragments_of_a_reply_of_a_pair_pass() {
    with_policies(only_a_calls_b(), |node| {
        let request = v4(A.v4, B.v4, UDP, &udp(5, 80, b""));
        let part = |id: u16, at: u16| {
            let payload = if at == 0 { udp(80, 5, &data(16)) } else { data(24) };
            let more = if at == 0 { Ipv4::MORE_FRAGMENTS } else { 0 };
            Ipv4 { id, fragment: more | at, ..Ipv4::new(B.v4, A.v4, UDP) }.with(&payload)
        };
        node.check(&[
            ("the first, before the request", Sends(B, part(1, 0)), false),
            ("the request", Sends(A, request), true),
            ("a later one without the first", Sends(B, part(1, 3)), false),
            ("the first", Sends(B, part(2, 0)), true),
            ("a later one", Sends(B, part(2, 3)), true),
            ("the first, delivered", Receives(A, B.ifindex, part(2, 0)), true),
            ("a later one, delivered", Receives(A, B.ifindex, part(2, 3)), true),
        ])?;
        the_pair(node).map(drop)
    })
    .unwrap();
}

#[test]
fn an_ended_view_of_one_end_hides_no_pair() {
    with_policies(only_a_calls_b(), |node| {
        let part = |from: Pod, to: Pod, ports: (u16, u16), id: u16| {
            let ip = Ipv4 { id, fragment: Ipv4::MORE_FRAGMENTS, ..Ipv4::new(from.v4, to.v4, UDP) };
            ip.with(&udp(ports.0, ports.1, &data(16)))
        };
        let (request, reply) = (|id| part(A, B, (5, 80), id), |id| part(B, A, (80, 5), id));
        // By the stack: each end has a view of its own.
        node.check(&[
            ("the first request", Sends(A, request(1)), true),
            ("the same, delivered", Receives(B, A.ifindex, request(1)), true),
            ("a fragmented reply", Sends(B, reply(2)), true),
            ("the same, delivered", Receives(A, B.ifindex, reply(2)), true),
        ])?;
        // No test can stamp them as the stack's packets are stamped, without which they count as translated.
        for flow in node.stack_flows.keys().collect::<Result<Vec<_>, _>>()? {
            node.stack_flows.remove(&flow)?;
        }
        age(node, 121_000)?;
        node.check(&[
            ("a reply, too late", Sends(B, reply(3)), false),
            ("a request past the stack", Sends(A, v4(A.v4, B.v4, UDP, &udp(5, 80, b""))), true),
            ("its fragmented reply", Sends(B, reply(4)), true),
            ("the same, delivered", Receives(A, B.ifindex, reply(4)), true),
        ])?;
        // The rules of the other end are others: the judged end's are asked about the flow of the pair.
        node.change(A, |subject| subject.epoch += 1)?;
        node.check(&[("a reply after that", Sends(B, reply(5)), true)])?;
        let ends: Vec<_> = entries(node).iter().map(|(key, _)| key.ifindex).collect();
        ensure!(!ends.contains(&B.ifindex), "the ended view has come to life again: {ends:?}");
        node.apply([none("b")])?;
        node.check(&[("a reply that is not allowed", Sends(B, reply(6)), false)])
    })
    .unwrap();
}

#[test]
fn an_error_about_a_pair_passes_from_its_receiver_to_its_sender() {
    with_policies(only_a_calls_b(), |node| {
        let request = |port| v4(A.v4, B.v4, UDP, &udp(port, 80, b""));
        let unreachable = |about: &[u8]| icmp_error(3, about);
        let error = |about: &[u8]| v4(B.v4, A.v4, ICMP, &unreachable(about));
        node.check(&[
            ("before the request", Sends(B, error(&request(5))), false),
            ("the request", Sends(A, request(5)), true),
            ("about the request", Sends(B, error(&request(5))), true),
            ("about another one", Sends(B, error(&request(6))), false),
            ("by the stack", Receives(A, B.ifindex, error(&request(5))), true),
        ])?;
        node.apply([none("b")])?;
        node.check(&[("by other rules", Sends(B, error(&request(5))), false)])
    })
    .unwrap();
}

#[test]
fn a_pair_is_judged_again_at_both_ends_whichever_has_changed() {
    for changed in ["a", "b"] {
        for first_is_reply in [false, true] {
            with_policies(only_a_calls_b(), |node| {
                connect(node)?;
                node.apply([none(changed)])?;
                let (forward, reply) = (Sends(A, there(ACK)), Sends(B, back(ACK)));
                let steps = if first_is_reply { [reply, forward] } else { [forward, reply] };
                for step in steps {
                    node.check(&[("after the change", step, false)])?;
                }
                // The reply passes before the client has sent anything.
                node.apply(only_a_calls_b())?;
                node.check(&[("the server first", Sends(B, back(ACK)), true)])?;
                the_pair(node).map(drop)
            })
            .unwrap();
        }
    }
}

#[test]
fn a_pair_outlives_the_policies_of_one_end() {
    for opened in [A, B] {
        with_policies(only_a_calls_b(), |node| {
            connect(node)?;
            let open = agent_common::policy::Subject::OPEN;
            node.change(opened, |subject| (subject.ingress, subject.egress) = (open, open))?;
            node.check(&[
                ("a reply, with an open end", Sends(B, back(ACK)), true),
                ("a packet of the client", Sends(A, there(ACK)), true),
            ])
        })
        .unwrap();
    }
}

#[test]
fn a_pair_of_an_end_that_has_become_open_is_in_use_for_as_long_as_either_end_sends() {
    for opened in [A, B] {
        with_policies(only_a_calls_b(), |node| {
            let (request, reply) =
                (v4(A.v4, B.v4, UDP, &udp(5, 80, b"")), v4(B.v4, A.v4, UDP, &udp(80, 5, b"")));
            node.check(&[
                ("the request", Sends(A, request.clone()), true),
                ("the reply", Sends(B, reply.clone()), true),
            ])?;
            node.change(opened, |subject| {
                (subject.ingress, subject.egress) = (Subject::OPEN, Subject::OPEN);
                subject.epoch += 1;
            })?;
            for _ in 0..3 {
                age(node, 100_000)?;
                node.check(&[("a reply, with an open end", Sends(B, reply.clone()), true)])?;
            }
            let view = the_pair(node)?;
            let (of_a, of_b) = (node.judging(A)?, node.judging(B)?);
            ensure!(view.epoch == of_a.epoch + of_b.epoch, "{view:?}");
            let error = v4(B.v4, A.v4, ICMP, &icmp_error(3, &request));
            node.check(&[
                ("an error about the request", Sends(B, error), true),
                ("one more request", Sends(A, request.clone()), true),
            ])?;
            ensure!(node.policy_flows.keys().count() == 1, "the answered pair is pending");
            // The judged end's rules count.
            node.apply([none(if opened.ifindex == A.ifindex { "b" } else { "a" })])?;
            node.check(&[("other rules", Sends(A, request), false), ("the reply", Sends(B, reply), false)])
        })
        .unwrap();
    }
}

#[test]
fn the_server_of_a_connection_that_is_denied_does_not_begin_it_the_other_way_round() {
    // The client's port is the lower one: nothing in the server's packets tells that they are replies.
    let ports = (5, 50_000);
    let any = json!({"policyTypes": ["Ingress", "Egress"], "ingress": [{"from": [app("a")]}]});
    let [_, of_a] = only_a_calls_b();
    let there = v4(A.v4, B.v4, TCP, &segment(ports.0, ports.1, SYN));
    let back = |flags| v4(B.v4, A.v4, TCP, &segment(ports.1, ports.0, flags));
    // Of SCTP, the programs read no more than the ports.
    let sctp = |ttl| Ipv4 { ttl, ..Ipv4::new(B.v4, A.v4, SCTP) }.with(&udp(ports.1, ports.0, b""));
    let sctp_there = v4(A.v4, B.v4, SCTP, &udp(ports.0, ports.1, b""));
    for [request, answer, reply] in [
        [there.clone(), back(SYN | ACK), back(ACK)],
        [there, back(SYN | ACK), by_stack(B, A, (ports.1, ports.0))],
        [sctp_there.clone(), sctp(64), sctp(64)],
        [sctp_there, sctp(64), sctp(1)],
    ] {
        with_policies([policy("b", any.clone()), of_a.clone()], |node| {
            node.check(&[
                ("the request", Sends(A, request), true),
                ("the answer", Sends(B, answer), true),
                ("the reply", Sends(B, reply.clone()), true),
            ])?;
            // What the server begins is allowed.
            node.apply([
                policy("b", json!({"policyTypes": ["Ingress"]})),
                policy("a", json!({"ingress": [{}]})),
            ])?;
            for _ in 0..3 {
                node.check(&[("the server goes on", Sends(B, reply.clone()), false)])?;
                age(node, 100_000)?;
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn datagrams_of_a_pair_that_is_denied_are_of_a_new_flow_two_minutes_after_the_last_that_passed() {
    for ttl in [64, 1] {
        with_policies(only_a_calls_b(), |node| {
            let request = v4(A.v4, B.v4, UDP, &udp(5, 80, b""));
            let reply = Ipv4 { ttl, ..Ipv4::new(B.v4, A.v4, UDP) }.with(&udp(80, 5, b""));
            node.check(&[
                ("the request", Sends(A, request.clone()), true),
                ("the reply", Sends(B, reply.clone()), true),
            ])?;
            // What the server begins is allowed, and nothing that the client begins.
            node.apply([
                policy("b", json!({"policyTypes": ["Ingress"]})),
                policy("a", json!({"ingress": [{}]})),
            ])?;
            for _ in 0..2 {
                node.check(&[
                    ("a reply", Sends(B, reply.clone()), false),
                    ("the client", Sends(A, request.clone()), false),
                ])?;
                age(node, 61_000)?;
            }
            node.check(&[
                ("the client begins", Sends(A, request.clone()), false),
                ("the server begins", Sends(B, reply.clone()), true),
                ("a reply of the client", Sends(A, request.clone()), true),
            ])
        })
        .unwrap();
    }
}

#[test]
fn a_pair_by_the_stack_that_both_ends_allow_again_is_in_use() {
    with_policies(only_a_calls_b(), |node| {
        let request = v4(A.v4, B.v4, UDP, &udp(5, 80, b""));
        let by_stack = Ipv4 { ttl: 1, ..Ipv4::new(A.v4, B.v4, UDP) }.with(&udp(5, 80, b""));
        node.check(&[("the request", Sends(A, request.clone()), true)])?;
        node.change(B, |subject| subject.epoch += 1)?;
        for _ in 0..3 {
            age(node, 61_000)?;
            node.check(&[
                ("at the sender", Sends(A, by_stack.clone()), true),
                ("at the receiver", Receives(B, A.ifindex, request.clone()), true),
            ])?;
        }
        the_pair(node).map(drop)
    })
    .unwrap();
}

#[test]
fn a_pair_lets_nothing_in_at_the_next_pod_of_the_address() {
    // Once `B` is gone, another pod gets its address, and nothing may call that pod.
    with_policies(only_a_calls_b(), |node| {
        connect(node)?;
        let next = Pod { ifindex: NEW.ifindex, ..B };
        let vif: VifEntry = node.vifs.get(&VifKey { ifindex: B.ifindex }, 0)?;
        node.vifs.insert(&VifKey { ifindex: next.ifindex }, &vif, 0)?;
        let key = agent_common::EndpointKey::ipv4(B.v4);
        let endpoint: agent_common::Endpoint = node.endpoints.get(&key, 0)?;
        node.endpoints.insert(&key, &agent_common::Endpoint { ifindex: next.ifindex, ..endpoint }, 0)?;
        node.apply([none("b")])?;
        let of_b = node.judging(B)?;
        let epoch = the_pair(node)?.epoch;
        let of_a = node.judging(A)?;
        // Even with the epoch of `B`.
        let of_next = agent_common::policy::Subject { epoch: epoch - of_a.epoch, ..of_b };
        node.set_subject(next.ifindex, Some(of_next))?;
        node.check(&[("to the next pod", Sends(A, there(ACK)), false)])?;
        let reply = Sends(next, back(ACK));
        node.check(&[("of the next pod", reply, false)])
    })
    .unwrap();
}

#[test]
fn an_end_that_knows_a_flow_by_itself_goes_on_so() {
    // At first, no policy judges the client.
    let [of_b, of_a] = only_a_calls_b();
    with_policies([of_b], |node| {
        connect(node)?;
        let [(key, _)] = entries(node).try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
        ensure!(key.ifindex == B.ifindex, "{key:?}");
        node.apply([of_a])?;
        node.check(&[
            ("the client, judged now", Sends(A, there(ACK)), true),
            ("the server", Sends(B, back(ACK)), true),
            ("the client", Sends(A, there(ACK)), true),
        ])?;
        let mut ends: Vec<_> = entries(node).iter().map(|(key, _)| key.ifindex).collect();
        ends.sort_unstable();
        ensure!(ends == [A.ifindex, B.ifindex], "{ends:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_allowed_request_lets_only_others_like_it_pass() {
    with_policies(only_a_calls_b(), |node| {
        let reverse = v4(B.v4, A.v4, TCP, &segment(40000, 80, SYN));
        let v6 = v6_of(A.v6, B.v6, TCP, &segment(40000, 80, SYN));
        node.check(&[
            ("a request", Sends(A, request((40000, 80))), true),
            ("from another port", Sends(A, request((40001, 80))), true),
            ("again, after that", Sends(A, request((40001, 80))), true),
            ("to another port", Sends(A, request((40002, 81))), false),
            ("of the other pod", Sends(B, reverse), false),
            ("of the other family", Sends(A, v6), true),
        ])?;
        let mut known: Vec<_> = entries(node).iter().map(|(key, _)| (key.own_port, key.peer_port)).collect();
        known.sort_unstable();
        ensure!(known == [(40000, 80), (40000, 80), (40001, 80)], "{known:?}");
        // Each has its answers and no others.
        let answer = |port| v4(B.v4, A.v4, TCP, &segment(80, port, SYN | ACK));
        node.check(&[
            ("an answer", Sends(B, answer(40001)), true),
            ("an answer without a request", Sends(B, answer(40003)), false),
        ])
    })
    .unwrap();
}

#[test]
fn a_request_like_an_allowed_one_asks_no_rules() {
    with_policies(only_a_calls_b(), |node| {
        node.check(&[("a request", Sends(A, request((40000, 80))), true)])?;
        // Rules that allow nothing, without the new epoch that they have from an agent.
        node.change(B, |subject| subject.ingress = Subject::LAST_RULESET)?;
        node.check(&[
            ("another one like it", Sends(A, request((40001, 80))), true),
            ("to another port", Sends(A, request((40002, 81))), false),
        ])?;
        node.change(B, |subject| subject.epoch += 1)?;
        node.check(&[("with the epoch of other rules", Sends(A, request((40003, 80))), false)])
    })
    .unwrap();
}

#[test]
fn requests_like_an_allowed_one_are_judged_by_the_rules_of_their_time() {
    for changed in ["a", "b"] {
        with_policies(only_a_calls_b(), |node| {
            node.check(&[
                ("a request", Sends(A, request((40000, 80))), true),
                ("another one", Sends(A, request((40001, 80))), true),
            ])?;
            node.apply([none(changed)])?;
            node.check(&[("after the change", Sends(A, request((40002, 80))), false)])?;
            node.apply(only_a_calls_b())?;
            node.check(&[
                ("after the change back", Sends(A, request((40003, 80))), true),
                ("another one", Sends(A, request((40004, 80))), true),
            ])
        })
        .unwrap();
    }
}

#[test]
fn a_request_is_judged_for_each_address_of_a_pod() {
    // By address, IPv6 is not allowed.
    let from = json!({"policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"ipBlock": {"cidr": format!("{}/32", std::net::Ipv4Addr::from(A.v4))}}]}]});
    let [_, to] = only_a_calls_b();
    with_policies([policy("b", from), to], |node| {
        let v6 = |port| v6_of(A.v6, B.v6, TCP, &segment(port, 80, SYN));
        node.check(&[
            ("IPv4", Sends(A, request((40000, 80))), true),
            ("IPv6", Sends(A, v6(40000)), false),
            ("IPv4 once more", Sends(A, request((40001, 80))), true),
            ("IPv6 once more", Sends(A, v6(40001)), false),
        ])
    })
    .unwrap();
}

#[test]
fn each_request_of_an_audited_pod_is_recorded() {
    with_policies(only_a_calls_b(), |node| {
        node.apply([none("b")])?;
        node.change(B, |subject| subject.flags |= agent_common::policy::Subject::AUDIT)?;
        for port in [40000, 40001, 40002] {
            node.check(&[("a request", Sends(A, request((port, 80))), true)])?;
            let records = node.records()?;
            ensure!(records.len() == 1, "{port}: {records:?}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_denied_request_leaves_no_entry() {
    with_policies(only_a_calls_b(), |node| {
        let denied = v4(A.v4, B.v4, UDP, &udp(5, 81, b""));
        node.check(&[("another port", Sends(A, denied), false)])?;
        ensure!(entries(node).is_empty(), "{:?}", entries(node));
        let (request, answer) =
            (v4(A.v4, B.v4, UDP, &udp(5, 80, b"")), v4(B.v4, A.v4, UDP, &udp(80, 5, b"")));
        node.check(&[
            ("an answer without a request", Sends(B, answer.clone()), false),
            ("a request", Sends(A, request), true),
            ("its answer", Sends(B, answer), true),
        ])?;
        let view = the_pair(node).context("a pair")?;
        ensure!(view.answered == 1 && view.flags == 0, "{view:?}");
        Ok(())
    })
    .unwrap();
}
