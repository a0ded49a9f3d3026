//! ClusterNetworkPolicies: before and after NetworkPolicies.

use agent_common::{DropReason, policy::Peer};
use anyhow::ensure;
use ferrule_policy::Table;
use ferrule_tests::packet::TCP;
use serde_json::{Value, json};

use super::{
    FRESH_V4, REMOTE_V4, SYN,
    Step::{Receives, Sends},
    UPLINK, app, cluster_policy, policy, segment, v4, with_policies,
};
use crate::table::{A, B, FAR_V4, NODE_V4, ONLY_V4, Pod};

fn syn(from: Pod, to: Pod, port: u16) -> Vec<u8> {
    v4(from.v4, to.v4, TCP, &segment(40000, port, SYN))
}

fn rule(action: &str, list: &str, peer: &str, port: u16) -> Value {
    json!({"action": action, list: [{"pods": app(peer)}],
        "protocols": [{"tcp": {"destinationPort": {"number": port}}}]})
}

#[test]
fn the_first_rule_decides_and_pass_goes_to_the_next_tier() {
    let admin = json!({"ingress": [
        rule("Deny", "from", "a", 1), rule("Accept", "from", "a", 1),
        rule("Accept", "from", "a", 2), rule("Deny", "from", "a", 2),
        rule("Pass", "from", "a", 3), rule("Deny", "from", "a", 3),
        rule("Pass", "from", "c", 4),
    ]});
    let baseline = json!({"ingress": [rule("Deny", "from", "c", 4), rule("Accept", "from", "c", 5)]});
    let both = [cluster_policy("b", "Admin", admin), cluster_policy("b", "Baseline", baseline)];
    with_policies(both, |node| {
        node.check(&[
            ("deny before accept", Sends(A, syn(A, B, 1)), false),
            ("accept before deny", Sends(A, syn(A, B, 2)), true),
            ("pass, and nothing after", Sends(A, syn(A, B, 3)), true),
            ("pass, and deny in the last tier", Sends(ONLY_V4, syn(ONLY_V4, B, 4)), false),
            ("accept in the last tier", Sends(ONLY_V4, syn(ONLY_V4, B, 5)), true),
            ("no rule", Sends(ONLY_V4, syn(ONLY_V4, B, 6)), true),
        ])?;
        let bits: Vec<_> = node.records()?.iter().map(|it| it.bit).collect();
        ensure!(bits.len() == 2 && !bits.contains(&0), "the records name no bits: {bits:?}");
        // Now a NetworkPolicy isolates.
        node.apply([policy("b", json!({"ingress": [{"ports": [{"port": 4}]}]}))])?;
        node.check(&[
            ("still accepted", Sends(A, syn(A, B, 2)), true),
            ("pass, and not allowed", Sends(A, syn(A, B, 3)), false),
            ("pass, and allowed: the last tier is not asked", Sends(ONLY_V4, syn(ONLY_V4, B, 4)), true),
            ("the last tier is not asked", Sends(ONLY_V4, syn(ONLY_V4, B, 5)), false),
        ])
    })
    .unwrap();
}

#[test]
fn a_rule_that_would_need_a_pods_labels_denies_an_unknown_pod() {
    let admin = json!({"ingress": [{"action": "Deny", "from": [{"pods": app("a")}]}]});
    with_policies([cluster_policy("b", "Admin", admin)], |node| {
        let from = |source| v4(source, B.v4, TCP, &segment(1, 80, SYN));
        node.check(&[
            ("a known pod", Receives(B, UPLINK, from(REMOTE_V4)), true),
            ("an unknown one", Receives(B, UPLINK, from(FRESH_V4)), false),
            ("the world", Receives(B, UPLINK, from(FAR_V4)), true),
        ])?;
        ensure!(node.drops(B, DropReason::PeerUnknown)? == (0, 1), "{:?}", node.counters()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_own_node_is_denied_by_tiers_only_and_only_what_the_pod_begins() {
    let admin = json!({"egress": [{"action": "Deny", "to": [{"nodes": {}}],
        "protocols": [{"tcp": {"destinationPort": {"number": 10250}}}]}]});
    let policies = [cluster_policy("a", "Admin", admin), policy("a", json!({"policyTypes": ["Egress"]}))];
    with_policies(policies, |node| {
        let key = std::net::IpAddr::from(NODE_V4).into();
        let row = *node.compiler.rows().peer(key).unwrap_or_else(|| panic!("no row of the node"));
        let row = Peer::from(row);
        node.rules.add_peer(Table::A, key, Peer { flags: row.flags | Peer::OWN_NODE, ..row })?;
        let to = |from, port, flags| v4(A.v4, NODE_V4, TCP, &segment(from, port, flags));
        let from = |from, port| v4(NODE_V4, A.v4, TCP, &segment(from, port, SYN));
        node.check(&[
            ("what the tier denies", Sends(A, to(1, 10250, SYN)), false),
            ("what only the NetworkPolicy would deny", Sends(A, to(1, 53, SYN)), true),
            ("a probe of the node", Receives(A, 0, from(10250, 80)), true),
            ("the answer to it", Sends(A, to(80, 10250, SYN | super::ACK)), true),
        ])
    })
    .unwrap();
}
