//! `to_link` at an uplink: what is not the tunnel's does not get to the tunnel's port of a node. Packets that
//! a test gives to a program have no stamp, as those of the node's processes.

use agent_common::{DropReason, NodeEntry, NodeKey, TUNNEL_PORT};
use anyhow::ensure;
use ferrule_tests::{
    packet::{
        self, ARP, Arp, DESTINATION_OPTIONS, FRAGMENT, ICMPV6, IPV4, IPV6, Ipv4, Ipv4Address, Ipv6,
        Ipv6Address, ROUTING, TCP, UDP, data, extension, fragment, frame, tcp, udp,
    },
    program::{Program, Programs, SkBuff, TC_ACT_SHOT, TC_ACT_UNSPEC, verdict_name},
};

use crate::{
    node_tunnel::{add_indexed_nodes, add_nodes},
    table::{A, B, FAR_V4, FAR_V6, NODE_V4, NODE_V6, OTHER_MAC, STRANGER, v6, with_pods},
};

/// The interface that stands for the uplink.
const UPLINK: u32 = STRANGER;
const NODE_MAC: packet::Mac = [2, 0, 0, 0, 0, 1];
/// Of another node: an address, and one in its range.
const OTHER_V4: Ipv4Address = [192, 0, 2, 2];
const OTHER_V6: Ipv6Address = v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 2]);
const REMOTE_V4: Ipv4Address = [10, 244, 2, 5];

/// Runs `to_link` on packets, and checks verdicts and counters: whether each is dropped. With an index of the
/// nodes, and without one.
fn check(rows: &[(&str, Vec<u8>, bool)]) -> anyhow::Result<()> {
    check_on(add_nodes, rows)?;
    check_on(add_indexed_nodes, rows)
}

fn check_on(
    prepare: fn(&mut Programs) -> anyhow::Result<()>,
    rows: &[(&str, Vec<u8>, bool)],
) -> anyhow::Result<()> {
    with_pods(|programs| {
        prepare(programs)?;
        programs.start_counting_link(UPLINK)?;
        let mut expected = programs.links()?.get(&UPLINK).copied().unwrap_or_default();
        for (about, packet, is_dropped) in rows {
            let verdict = if *is_dropped { TC_ACT_SHOT } else { TC_ACT_UNSPEC };
            let ran = programs.run(Program::ToLink, SkBuff::on(UPLINK), packet)?;
            ensure!(ran.verdict == verdict, "{about}: expected {}, {ran:?}", verdict_name(verdict));
            ensure!(ran.packet == *packet, "{about}: changed: {ran:?}");
            expected.drops.add(DropReason::Tunnel, u64::from(*is_dropped));
            let counted = programs.links()?;
            ensure!(counted.get(&UPLINK) == Some(&expected), "{about}: {counted:?}");
            // What the tunnel device sends is never judged so.
            let ran = programs.run(Program::ToTunnel, SkBuff::on(UPLINK), packet)?;
            ensure!(ran.verdict == TC_ACT_UNSPEC, "{about}, by the tunnel: {ran:?}");
        }
        Ok(())
    })
}

fn v4(ip: &Ipv4, payload: &[u8]) -> Vec<u8> {
    frame(OTHER_MAC, NODE_MAC, IPV4, &ip.with(payload))
}

fn v6_of(ip: &Ipv6, payload: &[u8]) -> Vec<u8> {
    frame(OTHER_MAC, NODE_MAC, IPV6, &ip.with(payload))
}

fn to(destination: Ipv4Address) -> Ipv4 {
    Ipv4::new(NODE_V4, destination, UDP)
}

fn to6(destination: Ipv6Address) -> Ipv6 {
    Ipv6::new(NODE_V6, destination, UDP)
}

fn vxlan() -> Vec<u8> {
    udp(40000, TUNNEL_PORT, &data(64))
}

#[test]
fn datagrams_of_the_node_to_the_tunnels_port_of_another_are_dropped() {
    let first = Ipv4 { fragment: Ipv4::MORE_FRAGMENTS, ..to(OTHER_V4) };
    let options = Ipv4 { options: vec![1; 8], ..to(OTHER_V4) };
    let behind = |next_header| Ipv6 { next_header, ..to6(OTHER_V6) };
    check(&[
        ("VXLAN", v4(&to(OTHER_V4), &vxlan()), true),
        ("from an address that is no node's", v4(&Ipv4::new(A.v4, OTHER_V4, UDP), &vxlan()), true),
        ("without data", v4(&to(OTHER_V4), &udp(1, TUNNEL_PORT, b"")), true),
        ("with options", v4(&options, &vxlan()), true),
        ("the first fragment", v4(&first, &vxlan()), true),
        ("IPv6", v6_of(&to6(OTHER_V6), &vxlan()), true),
        ("behind options", v6_of(&behind(DESTINATION_OPTIONS), &extension(UDP, &vxlan())), true),
        ("behind a routing header", v6_of(&behind(ROUTING), &extension(UDP, &vxlan())), true),
        ("IPv6, the first fragment", v6_of(&behind(FRAGMENT), &fragment(UDP, 0, true, &vxlan())), true),
    ])
    .unwrap();
}

#[test]
fn all_else_leaves_by_the_uplink() {
    let later = Ipv4 { fragment: 185, ..to(OTHER_V4) };
    let of = |protocol| Ipv4 { protocol, ..to(OTHER_V4) };
    let of6 = |next_header| Ipv6 { next_header, ..to6(OTHER_V6) };
    let ask = Arp::ask(NODE_MAC, NODE_V4, OTHER_V4).bytes();
    check(&[
        ("another port", v4(&to(OTHER_V4), &udp(1, TUNNEL_PORT + 1, b"")), false),
        ("from the tunnel's port", v4(&to(OTHER_V4), &udp(TUNNEL_PORT, 53, b"")), false),
        ("TCP", v4(&of(TCP), &tcp(1, TUNNEL_PORT, b"")), false),
        ("a later fragment", v4(&later, &vxlan()), false),
        ("to the world", v4(&to(FAR_V4), &vxlan()), false),
        ("to a remote pod", v4(&to(REMOTE_V4), &vxlan()), false),
        ("cut off", v4(&to(OTHER_V4), &[0, 1, 0x12]), false),
        ("ARP", frame(OTHER_MAC, NODE_MAC, ARP, &ask), false),
        ("IPv6, another port", v6_of(&to6(OTHER_V6), &udp(1, TUNNEL_PORT - 1, b"")), false),
        ("IPv6, TCP", v6_of(&of6(TCP), &tcp(1, TUNNEL_PORT, b"")), false),
        ("ICMPv6", v6_of(&of6(ICMPV6), &[128, 0, 0, 0, 0, 0, 0, 0]), false),
        ("IPv6, a later fragment", v6_of(&of6(FRAGMENT), &fragment(UDP, 8, true, &vxlan())), false),
        ("IPv6, to the world", v6_of(&to6(FAR_V6), &vxlan()), false),
    ])
    .unwrap();
}

/// A node can be the router, or the host, of other nodes.
#[test]
fn the_tunnels_packets_of_another_node_are_forwarded_if_they_came_by_an_uplink() {
    const OTHER_UPLINK: u32 = A.ifindex;
    with_pods(|programs| {
        add_nodes(programs)?;
        for link in [UPLINK, OTHER_UPLINK] {
            programs.start_counting_link(link)?;
        }
        let third = [192, 0, 2, 3];
        let address = NodeEntry { id: 3, flags: NodeEntry::ADDRESS, ..NodeEntry::default() };
        programs.add_node(NodeKey::new(third.into(), 32), address)?;
        let to_other = |from| v4(&Ipv4::new(from, OTHER_V4, UDP), &vxlan());
        for (about, from, by, passes) in [
            ("of another node", third, OTHER_UPLINK, true),
            ("of another node, by a pod's interface", third, B.ifindex, false),
            ("of a process here, in the name of another node", third, 0, false),
            ("of this node", NODE_V4, OTHER_UPLINK, false),
            ("of a host that is no node", FAR_V4, OTHER_UPLINK, false),
        ] {
            let way = SkBuff { ingress_ifindex: by, ..SkBuff::on(UPLINK) };
            let ran = programs.run(Program::ToLink, way, &to_other(from))?;
            let expected = if passes { TC_ACT_UNSPEC } else { TC_ACT_SHOT };
            ensure!(ran.verdict == expected, "{about}: expected {}, {ran:?}", verdict_name(expected));
        }
        Ok(())
    })
    .unwrap();
}
