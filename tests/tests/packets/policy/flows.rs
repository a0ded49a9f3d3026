//! Known flows: replies, the end of flows, and changes of policies.

use agent_common::policy::View;
use anyhow::{Context as _, ensure};
use ferrule_tests::packet::{TCP, UDP, udp};
use serde_json::json;

use super::{
    ACK, FIN, Policed, REMOTE_V4, RST, SYN,
    Step::{Receives, Sends},
    UPLINK, app, policy, segment, v4, with_policies,
};
use crate::table::{A, B, FAR_V4, ONLY_V4, Pod};

/// `A` may call `B`, port 80; neither may do anything else.
fn only_a_calls_b() -> [ferrule_policy::Change; 2] {
    let from = json!({"policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [app("a")], "ports": [{"port": 80}, {"protocol": "UDP", "port": 80}]}]});
    let to = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{"to": [app("b")]}]});
    [policy("b", from), policy("a", to)]
}

fn there(flags: u8) -> Vec<u8> {
    v4(A.v4, B.v4, TCP, &segment(40000, 80, flags))
}

fn back(flags: u8) -> Vec<u8> {
    v4(B.v4, A.v4, TCP, &segment(80, 40000, flags))
}

fn connect(node: &mut Policed<'_>) -> anyhow::Result<()> {
    node.check(&[
        ("the request", Sends(A, there(SYN)), true),
        ("the answer", Sends(B, back(SYN | ACK)), true),
        ("the confirmation", Sends(A, there(ACK)), true),
    ])
}

fn all(node: &Policed<'_>) -> Vec<View> {
    let flows = [&node.policy_flows, &node.policy_pending];
    flows.into_iter().flat_map(|map| map.iter().filter_map(Result::ok)).map(|(_, view)| view).collect()
}

/// As if so many jiffies had passed since the last packet of all flows.
pub fn age(node: &mut Policed<'_>, jiffies: u64) -> anyhow::Result<()> {
    let programs = &mut **node;
    for map in [&mut programs.policy_flows, &mut programs.policy_pending] {
        for (key, view) in map.iter().collect::<Result<Vec<_>, _>>()? {
            let used = view.used.checked_sub(jiffies).context("the machine was booted too lately")?;
            map.insert(&key, &View { used, ..view }, 0)?;
        }
    }
    Ok(())
}

#[test]
fn replies_pass_without_a_rule_and_nothing_else_does() {
    with_policies(only_a_calls_b(), |node| {
        node.check(&[("a reply without a request", Sends(B, back(SYN | ACK)), false)])?;
        connect(node)?;
        let other =
            |from: Pod, to: Pod, ports: (u16, u16)| v4(from.v4, to.v4, TCP, &segment(ports.0, ports.1, ACK));
        node.check(&[
            ("data of the server", Sends(B, back(ACK)), true),
            ("from another port of the server", Sends(B, other(B, A, (81, 40000))), false),
            ("to another port of the client", Sends(B, other(B, A, (80, 40001))), false),
            ("another pod with these ports", Sends(ONLY_V4, other(ONLY_V4, A, (80, 40000))), false),
            ("the server to another pod", Sends(B, other(B, ONLY_V4, (80, 40000))), false),
            ("another protocol", Sends(B, v4(B.v4, A.v4, UDP, &udp(80, 40000, b""))), false),
        ])
    })
    .unwrap();
}

#[test]
fn replies_of_the_world_pass_at_the_receiver_of_the_stacks_packets() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{"ports": [{"protocol": "UDP", "port": 53}]}]});
    with_policies([policy("a", rules)], |node| {
        let reply = || v4(FAR_V4, A.v4, UDP, &udp(53, 5000, b"answer"));
        node.check(&[
            ("before the request", Receives(A, UPLINK, reply()), false),
            ("the request", Sends(A, v4(A.v4, FAR_V4, UDP, &udp(5000, 53, b""))), true),
            ("the reply", Receives(A, UPLINK, reply()), true),
            ("one more", Receives(A, UPLINK, reply()), true),
            ("from another port", Receives(A, UPLINK, v4(FAR_V4, A.v4, UDP, &udp(54, 5000, b""))), false),
        ])
    })
    .unwrap();
}

#[test]
fn each_pod_has_its_own_view_of_a_flow() {
    // The client's entry lets nothing in at the server.
    let to = json!({"policyTypes": ["Egress"], "egress": [{}]});
    let server = json!({"policyTypes": ["Ingress"]});
    with_policies([policy("a", to), policy("b", server)], |node| {
        node.check(&[
            ("denied by the receiver", Sends(A, there(SYN)), false),
            ("once more", Sends(A, there(SYN)), false),
            ("without SYN", Sends(A, there(ACK)), false),
            ("by the stack", Receives(B, A.ifindex, there(ACK)), false),
        ])
    })
    .unwrap();
}

#[test]
fn a_flow_is_answered_with_the_beginners_packet_after_an_answer() {
    with_policies(only_a_calls_b(), |node| {
        let counts =
            |node: &Policed<'_>| (node.policy_pending.keys().count(), node.policy_flows.keys().count());
        node.check(&[("SYN", Sends(A, there(SYN)), true)])?;
        ensure!(counts(node) == (1, 0), "{:?}", counts(node));
        node.check(&[("SYN and ACK", Sends(B, back(SYN | ACK)), true)])?;
        ensure!(counts(node) == (1, 0), "{:?}", counts(node));
        node.check(&[("ACK", Sends(A, there(ACK)), true)])?;
        ensure!(counts(node) == (0, 1), "{:?}", counts(node));
        let mut ask = |packet: Vec<u8>, from: Pod| node.sends(from, &packet);
        let (request, answer) =
            (v4(A.v4, B.v4, UDP, &udp(9, 80, b"")), v4(B.v4, A.v4, UDP, &udp(80, 9, b"")));
        ensure!(ask(request.clone(), A)? && ask(request.clone(), A)? && ask(answer, B)?);
        ensure!(counts(node) == (1, 1), "a datagram and its answer: {:?}", counts(node));
        ensure!(node.sends(A, &request)? && counts(node) == (0, 2), "{:?}", counts(node));
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_change_of_rules_cuts_a_flow_at_the_next_packet_from_either_end() {
    for first_is_reply in [false, true] {
        with_policies(only_a_calls_b(), |node| {
            connect(node)?;
            let none = json!({"policyTypes": ["Ingress", "Egress"], "ingress": [{"from": [app("c")]}]});
            node.apply([policy("b", none)])?;
            let (forward, reply) = (Sends(A, there(ACK)), Sends(B, back(ACK)));
            let steps = if first_is_reply { [reply, forward] } else { [forward, reply] };
            for step in steps {
                node.check(&[("after the change", step, false)])?;
            }
            node.apply(only_a_calls_b())?;
            node.check(&[
                ("the server first", Sends(B, back(ACK)), true),
                ("the client, in the middle of the connection", Sends(A, there(ACK)), true),
            ])
        })
        .unwrap();
    }
}

#[test]
fn the_server_of_a_cut_connection_does_not_begin_it_the_other_way_round() {
    with_policies(only_a_calls_b(), |node| {
        connect(node)?;
        // What the server begins is allowed.
        node.apply([policy("b", json!({"policyTypes": ["Ingress"], "ingress": [{"from": [app("c")]}]}))])?;
        node.check(&[
            ("the server repeats", Sends(B, back(ACK)), false),
            ("the client", Sends(A, there(ACK)), false),
            ("the server repeats once more", Sends(B, back(ACK)), false),
            ("the client once more", Sends(A, there(ACK)), false),
        ])
    })
    .unwrap();
}

#[test]
fn a_change_that_allows_the_flow_still_leaves_it() {
    with_policies(only_a_calls_b(), |node| {
        connect(node)?;
        let more = json!({"policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [app("a")], "ports": [{"port": 80}]}, {"from": [app("c")]}]});
        node.apply([policy("b", more)])?;
        for pod in [A, B] {
            node.change(pod, |subject| subject.epoch += 1)?;
        }
        node.check(&[
            ("the server first", Sends(B, back(ACK)), true),
            ("the client", Sends(A, there(ACK)), true),
        ])?;
        let [view] = all(node).try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
        let (a, b) = (node.judging(A)?, node.judging(B)?);
        ensure!(view.epoch == a.epoch + b.epoch, "{view:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_connection_of_the_server_on_the_ports_of_a_known_one_is_judged() {
    with_policies(only_a_calls_b(), |node| {
        connect(node)?;
        node.check(&[
            ("SYN of the server", Sends(B, back(SYN)), false),
            ("the connection goes on", Sends(B, back(ACK)), true),
            ("SYN of the client", Sends(A, there(SYN)), true),
        ])?;
        // Now the server may call, too: the new connection replaces the old one.
        let both =
            json!({"policyTypes": ["Ingress", "Egress"], "egress": [{}], "ingress": [{"from": [app("a")]}]});
        let open = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{}], "ingress": [{}]});
        node.apply([policy("b", both), policy("a", open)])?;
        node.check(&[
            ("SYN of the server, allowed", Sends(B, back(SYN)), true),
            ("the client's answer", Sends(A, there(SYN | ACK)), true),
        ])?;
        let [view] = all(node).try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
        // The server has the higher interface.
        ensure!(view.flags == View::BEGUN_BY_PEER && view.peer == B.ifindex, "{view:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_connection_may_be_taken_up_in_the_middle_but_not_at_its_end() {
    with_policies(only_a_calls_b(), |node| {
        for flags in [RST, RST | ACK, FIN, FIN | ACK] {
            node.check(&[("the end", Sends(A, there(flags)), true)])?;
            ensure!(all(node).is_empty(), "flags {flags} begin a flow");
        }
        node.check(&[
            ("the end, of the server", Sends(B, back(RST)), false),
            ("the middle, of the server", Sends(B, back(ACK)), false),
            ("the middle, of the client", Sends(A, there(ACK)), true),
            ("its reply", Sends(B, back(ACK)), true),
        ])
    })
    .unwrap();
}

#[test]
fn a_server_does_not_take_up_a_connection_that_is_older_than_its_policy() {
    with_policies([policy("b", json!({"policyTypes": ["Ingress"]}))], |node| {
        for flags in [ACK, SYN | ACK] {
            node.check(&[
                ("the server, which may send", Sends(B, back(flags)), true),
                ("the client, which may not", Sends(A, there(ACK)), false),
            ])?;
        }
        Ok(())
    })
    .unwrap();
    // The client's own connections go on.
    with_policies([policy("a", json!({"policyTypes": ["Ingress"]}))], |node| {
        node.check(&[
            ("the server, before the client", Sends(B, back(ACK)), false),
            ("the client", Sends(A, there(ACK)), true),
            ("the server", Sends(B, back(ACK)), true),
        ])
    })
    .unwrap();
}

#[test]
fn a_forged_reset_does_not_end_a_flow_in_use() {
    const MINUTE: u64 = 60_000;
    with_policies(only_a_calls_b(), |node| {
        connect(node)?;
        node.check(&[("reset", Sends(B, back(RST)), true), ("data", Sends(B, back(ACK)), true)])?;
        age(node, MINUTE - 10_000)?;
        node.check(&[("in use", Sends(B, back(ACK)), true)])?;
        age(node, MINUTE + 1)?;
        node.check(&[("a minute later", Sends(B, back(ACK)), false)])
    })
    .unwrap();
}

#[test]
fn a_closed_connection_is_opened_again_on_the_same_ports() {
    with_policies(only_a_calls_b(), |node| {
        connect(node)?;
        node.check(&[
            ("FIN of the client", Sends(A, there(FIN | ACK)), true),
            ("FIN of the server", Sends(B, back(FIN | ACK)), true),
            ("the last ACK", Sends(A, there(ACK)), true),
        ])?;
        ensure!(
            all(node).iter().all(|it| (it.closed_by_pod, it.closed_by_peer) == (FIN, FIN)),
            "{:?}",
            all(node)
        );
        connect(node)?;
        ensure!(
            all(node).iter().all(|it| (it.closed_by_pod, it.closed_by_peer) == (0, 0)),
            "{:?}",
            all(node)
        );
        age(node, 61_000)?;
        node.check(&[("after more than a minute", Sends(B, back(ACK)), true)])
    })
    .unwrap();
}

#[test]
fn flows_end_when_they_are_not_used() {
    const HOUR: u64 = 3_600_000;
    with_policies(only_a_calls_b(), |node| {
        connect(node)?;
        let (request, answer) =
            (v4(A.v4, B.v4, UDP, &udp(9, 80, b"")), v4(B.v4, A.v4, UDP, &udp(80, 9, b"")));
        node.check(&[("a datagram", Sends(A, request), true)])?;
        age(node, 119_000)?;
        node.check(&[("the answer in time", Sends(B, answer.clone()), true)])?;
        age(node, 121_000)?;
        node.check(&[("too late", Sends(B, answer), false), ("TCP", Sends(B, back(ACK)), true)])?;
        age(node, 5 * 24 * HOUR + 1000)?;
        node.check(&[
            ("TCP after five days", Sends(B, back(ACK)), false),
            ("the client begins again", Sends(A, there(ACK)), true),
        ])
    })
    .unwrap();
}

#[test]
fn an_untracked_pod_has_no_flows() {
    with_policies([policy("b", json!({"ingress": [{}]}))], |node| {
        node.check(&[("to the world", Sends(A, v4(A.v4, REMOTE_V4, UDP, &udp(1, 2, b""))), true)])?;
        ensure!(all(node).is_empty(), "{:?}", all(node));
        node.check(&[("to a pod with policies", Sends(A, there(SYN)), true)])?;
        let [view] = all(node).try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
        ensure!(view.peer == A.ifindex && view.flags == View::BEGUN_BY_PEER, "{view:?}");
        Ok(())
    })
    .unwrap();
}
