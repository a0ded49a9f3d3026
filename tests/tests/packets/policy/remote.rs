//! Packets of other nodes' pods, past the host's stack.

use agent_common::{DropReason, NodeEntry, NodeKey};
use anyhow::ensure;
use ferrule_tests::{
    packet::{IPV4, Ipv4, TCP, UDP, data, frame, udp},
    program::{Program, SkBuff, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC},
    sys,
};
use serde_json::json;

use super::{
    ACK, Policed, REMOTE_V4, SYN,
    Step::{Receives, Sends},
    app, policy, segment, v4, with_policies,
};
use crate::table::{A, B, STRANGER};

const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The range of `REMOTE_V4` is reached by the interface `STRANGER`, past the stack.
fn add_fast_range(node: &mut Policed<'_>) -> anyhow::Result<()> {
    let address = agent_common::EndpointKey::ipv4([192, 0, 2, 2]).address;
    let row = NodeEntry { id: 2, flags: NodeEntry::FAST, address, ifindex: STRANGER, mtu: 1500 };
    node.add_node(NodeKey::new("10.244.2.0".parse()?, 24), row)?;
    node.index_nodes()?;
    // The kernel compares the frame's destination.
    sys::run(&format!("ip link set pod{STRANGER} address 02:00:00:00:00:01"))?;
    node.start_counting_link(STRANGER)
}

fn arrives(node: &mut Policed<'_>, packet: &[u8]) -> anyhow::Result<u32> {
    let frame = frame(NODE_MAC, OTHER_MAC, IPV4, packet);
    Ok(node.run(Program::FromUplink, SkBuff::on(STRANGER), &frame)?.verdict)
}

#[test]
fn what_an_uplink_delivers_past_the_stack_is_judged_and_counted_at_the_pod() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "ingress": [{"ports": [{"port": 80}]}]});
    with_policies([policy("b", rules)], |node| {
        add_fast_range(node)?;
        let to = |port, flags| v4(REMOTE_V4, B.v4, TCP, &segment(1000, port, flags));
        ensure!(arrives(node, &to(80, SYN))? == TC_ACT_REDIRECT);
        ensure!(arrives(node, &to(81, SYN))? == TC_ACT_SHOT);
        ensure!(node.drops(B, DropReason::PolicyIngress)? == (0, 1), "{:?}", node.counters()?);
        let links = node.links()?;
        let link = links.get(&STRANGER).copied().unwrap_or_default();
        ensure!((link.packets, link.drops.policy_ingress) == (1, 0), "{link:?}");
        let [record] = node.records()?.try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
        ensure!((record.ifindex, record.direction) == (B.ifindex, 1), "{record:?}");
        // A fragment goes by the stack, and `to_pod` judges.
        let part = Ipv4 { fragment: Ipv4::MORE_FRAGMENTS, ..Ipv4::new(REMOTE_V4, B.v4, UDP) };
        let part = part.with(&udp(1, 2, &data(16)));
        ensure!(arrives(node, &part)? == TC_ACT_UNSPEC);
        node.check(&[
            ("the fragment at the pod", Receives(B, STRANGER, part), false),
            ("the reply", Sends(B, v4(B.v4, REMOTE_V4, TCP, &segment(80, 1000, SYN | ACK))), true),
            ("another one", Sends(B, v4(B.v4, REMOTE_V4, TCP, &segment(81, 1000, SYN | ACK))), false),
        ])
    })
    .unwrap();
}

#[test]
fn replies_that_pass_the_stack_by_are_of_flows_that_did_too() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{"to": [app("r")]}]});
    with_policies([policy("a", rules)], |node| {
        add_fast_range(node)?;
        let reply = v4(REMOTE_V4, A.v4, UDP, &udp(53, 9, b"answer"));
        ensure!(arrives(node, &reply)? == TC_ACT_SHOT);
        node.check(&[("the request", Sends(A, v4(A.v4, REMOTE_V4, UDP, &udp(9, 53, b""))), true)])?;
        ensure!(arrives(node, &reply)? == TC_ACT_REDIRECT);
        Ok(())
    })
    .unwrap();
}
