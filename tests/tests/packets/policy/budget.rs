//! Shares of the flow maps: a pod with many flows displaces its own.

use anyhow::ensure;
use ferrule_tests::{
    packet::{UDP, udp},
    program::POLICY_FLOWS_PER_POD,
};
use serde_json::json;

use super::{
    Policed,
    Step::{Receives, Sends},
    UPLINK, app,
    flows::age,
    policy, v4, with_policies,
};
use crate::table::{A, B, FAR_V4, ONLY_V4, Pod};

const SHARE: usize = POLICY_FLOWS_PER_POD as usize;

/// A flow that both ends have used.
fn answered(node: &mut Policed<'_>, from: Pod, to: Pod, port: u16) -> anyhow::Result<()> {
    let there = v4(from.v4, to.v4, UDP, &udp(port, 53, b""));
    let back = v4(to.v4, from.v4, UDP, &udp(53, port, b""));
    ensure!(node.sends(from, &there)? && node.sends(to, &back)? && node.sends(from, &there)?);
    Ok(())
}

#[test]
fn a_flood_of_answered_flows_displaces_those_of_the_pod_that_begins_them() {
    let [a, b] = ["a", "b"]
        .map(|name| policy(name, json!({"egress": [{}], "ingress": [{"from": [app("a"), app("c")]}]})));
    with_policies([a, b], |node| {
        for port in 0..3 {
            answered(node, ONLY_V4, B, 100 + port)?;
        }
        for port in 0..5000 {
            answered(node, A, B, 10_000 + port)?;
        }
        let all: Vec<_> = node.policy_flows.iter().collect::<Result<_, _>>()?;
        let is_of_flood = |own: u16, peer: u16| own >= 10_000 || peer >= 10_000;
        let count = all.iter().filter(|(key, _)| is_of_flood(key.own_port, key.peer_port)).count();
        ensure!((SHARE / 2..=SHARE).contains(&count), "{count} flows of one pod");
        // Replies pass only if their flows are known.
        node.apply([policy(
            "b",
            json!({"policyTypes": ["Egress", "Ingress"], "ingress": [{"from": [app("c")]}]}),
        )])?;
        for port in 0..3 {
            let reply = v4(B.v4, ONLY_V4.v4, UDP, &udp(53, 100 + port, b""));
            ensure!(node.sends(B, &reply)?, "another pod has displaced flow {port}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_flood_that_no_one_answers_displaces_no_request_of_another_pod() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{}]});
    with_policies([policy("a", rules.clone()), policy("b", rules)], |node| {
        let (there, back) =
            (v4(A.v4, FAR_V4, UDP, &udp(1, 53, b"")), v4(FAR_V4, A.v4, UDP, &udp(53, 1, b"")));
        node.check(&[("a request", Sends(A, there), true)])?;
        for port in 0..20_000 {
            ensure!(node.sends(B, &v4(B.v4, FAR_V4, UDP, &udp(port, 9, b"")))?);
        }
        let flooded = node.policy_pending.keys().filter_map(Result::ok);
        let flooded = flooded.filter(|key| key.ifindex == B.ifindex).count();
        ensure!((SHARE / 8..=SHARE / 4).contains(&flooded), "{flooded} flows of one pod");
        node.check(&[("the reply after the flood", Receives(A, UPLINK, back), true)])
    })
    .unwrap();
}

#[test]
fn a_flood_from_outside_displaces_no_request_of_the_pod() {
    let rules = json!({"ingress": [{"ports": [{"protocol": "UDP", "port": 9}]}], "egress": [{}],
        "policyTypes": ["Ingress", "Egress"]});
    with_policies([policy("a", rules)], |node| {
        let (there, back) =
            (v4(A.v4, FAR_V4, UDP, &udp(1, 53, b"")), v4(FAR_V4, A.v4, UDP, &udp(53, 1, b"")));
        node.check(&[("a request", Sends(A, there), true)])?;
        for port in 0..20_000 {
            ensure!(node.receives(A, UPLINK, &v4(FAR_V4, A.v4, UDP, &udp(port, 9, b"")))?);
        }
        let pending = node.policy_pending.keys().count();
        ensure!((SHARE / 8..=SHARE / 4 + 1).contains(&pending), "{pending} flows of one pod");
        node.check(&[("the reply after the flood", Receives(A, UPLINK, back), true)])
    })
    .unwrap();
}

#[test]
fn answered_flows_from_outside_displace_no_flow_that_the_pod_has_begun() {
    const OWN: u16 = 20;
    let ports = json!([{"protocol": "UDP", "port": 9}, {"protocol": "UDP", "port": 100, "endPort": 119}]);
    let rules = json!({"ingress": [{"ports": ports}], "egress": [{}], "policyTypes": ["Ingress", "Egress"]});
    with_policies([policy("a", rules)], |node| {
        let request = |port| v4(A.v4, FAR_V4, UDP, &udp(port, 53, b""));
        let reply = |port| v4(FAR_V4, A.v4, UDP, &udp(53, port, b""));
        // Half of the ends have had flows from outside, which have ended and left their places.
        for port in 100..100 + OWN / 2 {
            ensure!(node.receives(A, UPLINK, &reply(port))? && node.sends(A, &request(port))?);
            ensure!(node.receives(A, UPLINK, &reply(port))?);
        }
        age(node, 150_000)?;
        for port in 100..100 + OWN {
            ensure!(node.sends(A, &request(port))? && node.receives(A, UPLINK, &reply(port))?);
            ensure!(node.sends(A, &request(port))?);
        }
        let share = u16::try_from(SHARE)?;
        for port in 10_000..10_000 + 5 * share {
            let there = v4(FAR_V4, A.v4, UDP, &udp(port, 9, b""));
            let back = v4(A.v4, FAR_V4, UDP, &udp(9, port, b""));
            ensure!(node.receives(A, UPLINK, &there)? && node.sends(A, &back)?);
            ensure!(node.receives(A, UPLINK, &there)?);
        }
        let all: Vec<_> = node.policy_flows.keys().collect::<Result<_, _>>()?;
        let of_flood = all.iter().filter(|key| key.own_port == 9).count();
        ensure!((SHARE / 2..=SHARE).contains(&of_flood), "{of_flood} answered flows from outside");
        ensure!(all.len() - of_flood == usize::from(OWN), "{} of {OWN} own flows", all.len() - of_flood);
        for port in 100..100 + OWN {
            ensure!(node.receives(A, UPLINK, &reply(port))?, "the reply of flow {port}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn exchanges_that_have_ended_give_way_to_requests_of_the_pod_that_wait() {
    const WAITING: u16 = 20;
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{}]});
    with_policies([policy("a", rules)], |node| {
        let request = |port| v4(A.v4, FAR_V4, UDP, &udp(port, 53, b""));
        let reply = |port| v4(FAR_V4, A.v4, UDP, &udp(53, port, b""));
        for port in 0..WAITING {
            ensure!(node.sends(A, &request(port))?);
        }
        let share = u16::try_from(SHARE / 4)?;
        for port in 1000..1000 + 2 * share {
            ensure!(node.sends(A, &request(port))? && node.receives(A, UPLINK, &reply(port))?);
        }
        let mut answered = 0;
        for port in 0..WAITING {
            answered += u16::from(node.receives(A, UPLINK, &reply(port))?);
        }
        // Each has eight places to choose from, and all may be of requests.
        ensure!(answered >= WAITING - 2, "{answered} of {WAITING} late replies passed");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_flood_that_no_one_answers_displaces_no_answered_flow() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{}]});
    with_policies([policy("a", rules.clone()), policy("b", rules)], |node| {
        let (there, back) =
            (v4(A.v4, FAR_V4, UDP, &udp(1, 53, b"")), v4(FAR_V4, A.v4, UDP, &udp(53, 1, b"")));
        node.check(&[
            ("a request", Sends(A, there.clone()), true),
            ("its reply", Receives(A, UPLINK, back.clone()), true),
            ("one more request", Sends(A, there), true),
        ])?;
        for host in 1..=2 {
            for port in 0..20_000 {
                let packet = v4(B.v4, [203, 0, 113, host], UDP, &udp(port, 9, b""));
                ensure!(node.sends(B, &packet)?);
            }
        }
        node.check(&[("the reply after the flood", Receives(A, UPLINK, back), true)])
    })
    .unwrap();
}
