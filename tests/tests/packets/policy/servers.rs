//! Connections that are older than the policies of their pods: who is the client, and takes them up.
//!
//! The host gives flows that it translates client ports from 1024 to 32767, so that a client's port is often
//! below the server's.

use agent_common::{EndpointKey, FlowKey};
use anyhow::ensure;
use ferrule_tests::packet::{Ipv4Address, TCP};
use serde_json::json;

use super::{
    ACK, Policed, REMOTE_V4, SYN,
    Step::{self, Receives, Sends},
    UPLINK, app, policy, segment, v4, with_policies,
};
use crate::table::{A, B};

/// Ports of clients and servers: the client's is the lower one, or the higher one.
const PORTS: [(u16, u16); 4] = [(5000, 27017), (5000, 50051), (20000, 8080), (40000, 80)];

/// A connection to `B`, port `server`, that the stack delivers.
#[derive(Clone, Copy)]
struct Connection {
    client: Ipv4Address,
    via: u32,
    ports: (u16, u16),
}

/// From a pod of the node, and from another node's.
fn connections() -> impl Iterator<Item = Connection> {
    let clients = [(A.v4, A.ifindex), (REMOTE_V4, UPLINK)];
    let of = |(client, via)| PORTS.map(|ports| Connection { client, via, ports });
    clients.into_iter().flat_map(of)
}

// === impl Connection ===

impl Connection {
    /// As it comes out of the stack, translated.
    fn there(self, flags: u8) -> Step {
        let Self { client, via, ports: (from, to) } = self;
        Receives(B, via, v4(client, B.v4, TCP, &segment(from, to, flags)))
    }

    fn back(self, flags: u8) -> Step {
        let (client, server) = self.ports;
        Sends(B, v4(B.v4, self.client, TCP, &segment(server, client, flags)))
    }

    /// Before any policy.
    fn open(self, node: &mut Policed<'_>) -> anyhow::Result<()> {
        node.check(&[
            ("the request", self.there(SYN), true),
            ("the answer", self.back(SYN | ACK), true),
            ("the confirmation", self.there(ACK), true),
        ])
    }
}

/// The interface of the server of the only recorded flow.
fn server(node: &Policed<'_>) -> anyhow::Result<u32> {
    let all: Vec<_> = node.stack_flows.iter().collect::<Result<_, _>>()?;
    let [(_, flow)] = all.try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
    Ok(flow.ifindex)
}

#[test]
fn a_server_behind_a_service_does_not_take_up_a_connection_that_its_policy_denies() {
    for it in connections() {
        with_policies([], |node| {
            it.open(node)?;
            node.apply([policy("b", json!({"policyTypes": ["Ingress"]}))])?;
            for _ in 0..2 {
                node.check(&[
                    ("the server, which may send", it.back(ACK), true),
                    ("the client, which may not", it.there(ACK), false),
                ])?;
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn the_client_of_a_service_takes_up_a_connection_that_the_servers_policy_allows() {
    for it in connections() {
        with_policies([], |node| {
            it.open(node)?;
            let from = [app("a"), app("r")];
            let rules = json!({"policyTypes": ["Ingress", "Egress"], "ingress": [{"from": from}]});
            node.apply([policy("b", rules)])?;
            node.check(&[
                ("the server, before the client", it.back(ACK), false),
                ("the client", it.there(ACK), true),
                ("the server", it.back(ACK), true),
            ])
        })
        .unwrap();
    }
}

#[test]
fn a_client_with_a_port_of_translated_flows_takes_up_its_own_connection() {
    for ports in PORTS {
        let it = Connection { client: A.v4, via: A.ifindex, ports };
        with_policies([], |node| {
            it.open(node)?;
            node.apply([policy("a", json!({"policyTypes": ["Ingress"]}))])?;
            let (from, to) = ports;
            let back = || Receives(A, B.ifindex, v4(B.v4, A.v4, TCP, &segment(to, from, ACK)));
            let there = v4(A.v4, B.v4, TCP, &segment(from, to, ACK));
            node.check(&[
                ("the server, before the client", back(), false),
                ("the client", Sends(A, there), true),
                ("the server", back(), true),
            ])
        })
        .unwrap();
    }
}

#[test]
fn the_next_connection_between_the_same_ends_may_be_the_servers() {
    let it = Connection { client: A.v4, via: A.ifindex, ports: (5000, 27017) };
    with_policies([], |node| {
        it.open(node)?;
        ensure!(server(node)? == B.ifindex);
        node.check(&[("a forged answer of the client", it.there(SYN | ACK), true)])?;
        ensure!(server(node)? == B.ifindex);
        let request = v4(B.v4, A.v4, TCP, &segment(27017, 5000, SYN));
        node.check(&[("a request of the server", Receives(A, B.ifindex, request), true)])?;
        ensure!(server(node)? == A.ifindex);
        node.check(&[("the answer", it.there(SYN | ACK), true)])?;
        ensure!(server(node)? == A.ifindex);
        // The pod with the address is another one by now.
        let key = FlowKey::between(TCP, (EndpointKey::ipv4(A.v4), 5000), (EndpointKey::ipv4(B.v4), 27017));
        let flow = node.stack_flows.get(&key, 0)?;
        node.stack_flows.insert(&key, &agent_common::Flow { ifindex: 9999, ..flow }, 0)?;
        node.check(&[("the next request", it.there(SYN), true)])?;
        ensure!(server(node)? == B.ifindex);
        Ok(())
    })
    .unwrap();
}

/// With IPv4 options or beyond the MTU, a segment takes the stack, and its connection is recorded then.
#[test]
fn the_server_of_a_connection_is_known_whichever_segment_is_recorded_first() {
    let reply = |to, via, from, by| Receives(to, via, v4(from, by, TCP, &segment(80, 40000, ACK)));
    for (step, expected) in [
        (reply(A, B.ifindex, B.v4, A.v4), B.ifindex),
        (reply(A, UPLINK, REMOTE_V4, A.v4), 0),
        (Receives(B, A.ifindex, v4(A.v4, B.v4, TCP, &segment(40000, 80, ACK))), B.ifindex),
    ] {
        with_policies([], |node| {
            node.check(&[("a segment", step, true)])?;
            ensure!(server(node)? == expected);
            Ok(())
        })
        .unwrap();
    }
}

/// On an interface without our filter, packets from other nodes have no stamp, and `to_pod` records all.
#[test]
fn a_recorded_answer_is_the_servers() {
    with_policies([], |node| {
        let answer = |flags| Receives(A, UPLINK, v4(REMOTE_V4, A.v4, TCP, &segment(80, 40000, flags)));
        node.check(&[("an answer", answer(SYN | ACK), true)])?;
        ensure!(server(node)? == 0);
        node.apply([policy("a", json!({"policyTypes": ["Ingress"]}))])?;
        node.check(&[
            ("the server, before the client", answer(ACK), false),
            ("the client", Sends(A, v4(A.v4, REMOTE_V4, TCP, &segment(40000, 80, ACK))), true),
            ("the server", answer(ACK), true),
        ])
    })
    .unwrap();
}
