//! A pod does not reach the port of the tunnel between nodes: whatever came out there would count as sent by
//! the pod's node.

use agent_common::{DropReason, NodeEntry, NodeKey, TUNNEL_PORT};
use ferrule_tests::{
    packet::{
        DESTINATION_OPTIONS, FRAGMENT, IPV4, IPV6, Ipv4, Ipv4Address, Ipv6, Ipv6Address, TCP, UDP, data,
        extension, fragment, tcp, udp,
    },
    program::{Program, Programs},
};

use crate::table::{A, B, FAR_V4, FAR_V6, NODE_V4, NODE_V6, Row, add_routes, check_on, v6};

/// Of another node.
const OTHER_V4: Ipv4Address = [192, 0, 2, 2];
const OTHER_V6: Ipv6Address = v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 2]);
/// In the range of another node's pods.
const REMOTE_V4: Ipv4Address = [10, 244, 2, 5];
const REMOTE_V6: Ipv6Address = v6([0xfd00, 0x10, 0x244, 2, 0, 0, 0, 5]);

/// `NODES` as the agent fills it.
pub fn add_nodes(programs: &mut Programs) -> anyhow::Result<()> {
    for (address, len, id, flags) in [
        ("192.0.2.1", 32, 1, NodeEntry::OWN | NodeEntry::ADDRESS),
        ("2001:db8::1", 128, 1, NodeEntry::OWN | NodeEntry::ADDRESS),
        ("10.244.0.0", 24, 1, NodeEntry::OWN),
        ("192.0.2.2", 32, 2, NodeEntry::ADDRESS),
        ("2001:db8::2", 128, 2, NodeEntry::ADDRESS),
        ("10.244.2.0", 24, 2, NodeEntry::VXLAN),
        ("fd00:10:244:2::", 64, 2, NodeEntry::VXLAN),
    ] {
        programs
            .add_node(NodeKey::new(address.parse()?, len), NodeEntry { id, flags, ..NodeEntry::default() })?;
    }
    Ok(())
}

/// The same with the index.
pub fn add_indexed_nodes(programs: &mut Programs) -> anyhow::Result<()> {
    add_nodes(programs)?;
    programs.index_nodes()
}

fn to(destination: Ipv4Address) -> Ipv4 {
    Ipv4::new(A.v4, destination, UDP)
}

fn to6(destination: Ipv6Address) -> Ipv6 {
    Ipv6::new(A.v6, destination, UDP)
}

fn vxlan() -> Vec<u8> {
    udp(40000, TUNNEL_PORT, &data(64))
}

#[test]
fn datagrams_to_the_tunnels_port_of_a_node_are_dropped() {
    let dropped = |about, packet| Row::dropped(about, A.ifindex, packet, DropReason::Tunnel);
    let mut rows = Vec::new();
    for (node, node6) in [(NODE_V4, NODE_V6), (OTHER_V4, OTHER_V6)] {
        let first = Ipv4 { fragment: Ipv4::MORE_FRAGMENTS, ..to(node) };
        let first6 = fragment(UDP, 0, true, &vxlan());
        let options = Ipv6 { next_header: DESTINATION_OPTIONS, ..to6(node6) };
        let fragments = Ipv6 { next_header: FRAGMENT, ..to6(node6) };
        rows.extend([
            dropped("VXLAN", A.sends_v4(&to(node).with(&vxlan()))),
            dropped("without data", A.sends_v4(&to(node).with(&udp(1, TUNNEL_PORT, b"")))),
            dropped("with TTL 1", A.sends_v4(&Ipv4 { ttl: 1, ..to(node) }.with(&vxlan()))),
            dropped("with options", A.sends_v4(&Ipv4 { options: vec![1; 8], ..to(node) }.with(&vxlan()))),
            dropped("the first fragment", A.sends_v4(&first.with(&vxlan()))),
            dropped("the first fragment, of eight bytes", A.sends_v4(&first.with(&udp(1, TUNNEL_PORT, b"")))),
            dropped("IPv6", A.sends_v6(&to6(node6).with(&vxlan()))),
            dropped("IPv6, behind options", A.sends_v6(&options.with(&extension(UDP, &vxlan())))),
            dropped("IPv6, the first fragment", A.sends_v6(&fragments.with(&first6))),
            dropped(
                "IPv6, an atomic fragment",
                A.sends_v6(&fragments.with(&fragment(UDP, 0, false, &vxlan()))),
            ),
            dropped(
                "IPv6, the first fragment behind options",
                A.sends_v6(&options.with(&extension(FRAGMENT, &first6))),
            ),
        ]);
    }
    check_on(Program::FromPod, add_nodes, &rows).unwrap();
    check_on(Program::FromPod, add_indexed_nodes, &rows).unwrap();
}

#[test]
fn other_packets_to_nodes_and_vxlan_to_others_pass() {
    let stack = |about, packet| Row::stack(about, A, packet);
    let later = Ipv4 { fragment: 185, ..to(NODE_V4) };
    let later6 = Ipv6 { next_header: FRAGMENT, ..to6(NODE_V6) };
    let rows = [
        stack("another port", A.sends_v4(&to(NODE_V4).with(&udp(1, TUNNEL_PORT + 1, b"")))),
        stack(
            "the port, bytes swapped",
            A.sends_v4(&to(NODE_V4).with(&udp(1, TUNNEL_PORT.swap_bytes(), b""))),
        ),
        stack("from the tunnel's port", A.sends_v4(&to(NODE_V4).with(&udp(TUNNEL_PORT, 53, b"")))),
        stack("TCP", A.sends_v4(&Ipv4 { protocol: TCP, ..to(NODE_V4) }.with(&tcp(1, TUNNEL_PORT, b"")))),
        stack("a later fragment", A.sends_v4(&later.with(&vxlan()))),
        stack("too short for UDP", A.sends_v4(&to(NODE_V4).with(&[0, 1, 0x12, 0xb5, 0, 7, 0]))),
        stack("to the world", A.sends_v4(&to(FAR_V4).with(&vxlan()))),
        stack("to a remote pod", A.sends_v4(&to(REMOTE_V4).with(&vxlan()))),
        stack("IPv6, another port", A.sends_v6(&to6(OTHER_V6).with(&udp(1, TUNNEL_PORT - 1, b"")))),
        stack(
            "IPv6, TCP",
            A.sends_v6(&Ipv6 { next_header: TCP, ..to6(NODE_V6) }.with(&tcp(1, TUNNEL_PORT, b""))),
        ),
        stack("IPv6, a later fragment", A.sends_v6(&later6.with(&fragment(UDP, 8, true, &vxlan())))),
        stack("IPv6, to the world", A.sends_v6(&to6(FAR_V6).with(&vxlan()))),
        stack("IPv6, to a remote pod", A.sends_v6(&to6(REMOTE_V6).with(&vxlan()))),
        // The segments of SCTP have different sizes, which are not known (`GSO_BY_FRAGS`).
        stack("to a remote pod, segmented later", A.sends_v4(&to(REMOTE_V4).with(&udp(1, 2, b""))))
            .with_gso(0xffff),
        Row::delivered(
            "to a pod of the node",
            A,
            A.sends_v4(&to(B.v4).with(&vxlan())),
            B,
            B.receives(IPV4, &Ipv4 { ttl: 63, ..to(B.v4) }.with(&vxlan())),
        ),
        Row::delivered(
            "to a pod of the node, IPv6",
            A,
            A.sends_v6(&to6(B.v6).with(&vxlan())),
            B,
            B.receives(IPV6, &Ipv6 { hop_limit: 63, ..to6(B.v6) }.with(&vxlan())),
        ),
    ];
    for add in [add_nodes, add_indexed_nodes] {
        let prepare = |programs: &mut Programs| add(programs).and_then(|()| add_routes(programs));
        check_on(Program::FromPod, prepare, &rows).unwrap();
    }
}
