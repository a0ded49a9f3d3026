//! Packets to addresses that the host translates: judged afterwards.

use agent_common::policy::{Peer, View};
use anyhow::ensure;
use ferrule_policy::Table;
use ferrule_tests::packet::{Ipv4Address, TCP};
use serde_json::json;

use super::{
    ACK, Policed, SYN,
    Step::{Receives, Sends},
    app, policy, segment, v4, with_policies,
};
use crate::table::{A, B};

const VIP: Ipv4Address = [10, 96, 0, 10];

fn add_service(node: &mut Policed<'_>) -> anyhow::Result<()> {
    let row = Peer { class: 0, flags: Peer::SERVICE };
    node.rules.add_peer(Table::A, std::net::IpAddr::from(VIP).into(), row)
}

#[test]
fn a_packet_to_a_service_is_not_judged_by_the_services_address_and_its_reply_passes() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{"to": [app("b")], "ports": [{"port": 8080}]}]});
    with_policies([policy("a", rules)], |node| {
        let (there, back) = (v4(A.v4, VIP, TCP, &segment(1000, 80, SYN)), v4(VIP, A.v4, TCP, &segment(80, 1000, SYN | ACK)));
        node.check(&[("not known as a Service", Sends(A, there.clone()), false)])?;
        add_service(node)?;
        node.check(&[
            ("the reply before the request", Receives(A, B.ifindex, back.clone()), false),
            ("the request", Sends(A, there), true),
            ("the reply", Receives(A, B.ifindex, back.clone()), true),
            ("the reply by another way", Receives(A, super::UPLINK, back), true),
        ])?;
        let flags: Vec<_> = node.policy_pending.iter().filter_map(Result::ok).map(|(_, it)| it.flags).collect();
        ensure!(flags == [View::UNJUDGED], "{flags:?}");
        Ok(())
    })
    .unwrap();
}
