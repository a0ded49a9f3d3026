//! `from_uplink`: packets from the wire.

use agent_common::{DropReason, EndpointKey, NodeEntry, NodeKey, Traffic};
use anyhow::ensure;
use ferrule_tests::{
    packet::{
        self, ARP, Arp, FRAGMENT, IPV4, IPV6, Ipv4, Ipv4Address, Ipv6, Ipv6Address, QINQ, UDP, VLAN, data,
        frame, tagged, udp,
    },
    program::{Program, Programs, SkBuff, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC, verdict_name},
    sys,
};

use crate::table::{
    A, B, FAR_V4, FAR_V6, NODE_V4, NODE_V6, ONLY_V4, ONLY_V6, OTHER_MAC, STRANGER, v6, with_pods,
};

/// The interface that stands for the uplink.
const UPLINK: u32 = STRANGER;
const NODE_MAC: packet::Mac = [2, 0, 0, 0, 0, 1];
/// In the node's own ranges, and no pod's.
const UNUSED_V4: Ipv4Address = [10, 244, 0, 200];
const UNUSED_V6: Ipv6Address = v6([0xfd00, 0x10, 0x244, 0, 0, 0, 0, 200]);
/// A pod's that is outside of the node's ranges.
const OUTSIDE_V4: Ipv4Address = [10, 99, 0, 1];
/// In another node's ranges.
const REMOTE_V4: Ipv4Address = [10, 244, 2, 5];
const REMOTE_V6: Ipv6Address = v6([0xfd00, 0x10, 0x244, 2, 0, 0, 0, 5]);
/// An address of the node within its own range of pods, as a bridge of an earlier CNI plugin has.
const BRIDGE_V4: Ipv4Address = [10, 244, 0, 1];

fn prepare(programs: &mut Programs, is_indexed: bool) -> anyhow::Result<()> {
    let own = |flags| NodeEntry { id: 1, flags: NodeEntry::OWN | flags, ..NodeEntry::default() };
    let other = |flags| NodeEntry { id: 2, flags, ..NodeEntry::default() };
    for (address, len, node) in [
        ("10.244.0.0", 24, own(0)),
        ("fd00:10:244::", 64, own(0)),
        ("192.0.2.1", 32, own(NodeEntry::ADDRESS)),
        ("2001:db8::1", 128, own(NodeEntry::ADDRESS)),
        ("10.244.0.1", 32, own(NodeEntry::ADDRESS)),
        ("10.244.2.0", 24, other(0)),
        ("fd00:10:244:2::", 64, other(0)),
        ("192.0.2.2", 32, other(NodeEntry::ADDRESS)),
    ] {
        programs.add_node(NodeKey::new(address.parse()?, len), node)?;
    }
    let endpoint = agent_common::Endpoint { ifindex: A.ifindex, mac: A.mac, reserved: [0; 2] };
    programs.endpoints.insert(&agent_common::EndpointKey::ipv4(OUTSIDE_V4), &endpoint, 0)?;
    if is_indexed {
        programs.index_nodes()?;
    }
    programs.start_counting_link(UPLINK)
}

/// Runs `from_uplink` on packets, and checks verdicts, counters, and that no packet is changed: with an index
/// of the nodes, and without one.
fn check(rows: &[(&str, Vec<u8>, Option<DropReason>)]) -> anyhow::Result<()> {
    [false, true].into_iter().try_for_each(|is_indexed| check_on(rows, is_indexed))
}

fn check_on(rows: &[(&str, Vec<u8>, Option<DropReason>)], is_indexed: bool) -> anyhow::Result<()> {
    with_pods(|programs| {
        prepare(programs, is_indexed)?;
        let of_pods = programs.counters()?;
        for (about, packet, reason) in rows {
            let mut expected: Traffic = programs.links()?.get(&UPLINK).copied().unwrap_or_default();
            match reason {
                Some(reason) => expected.drops.add(*reason, 1),
                None => {
                    expected.packets += 1;
                    expected.bytes += packet.len() as u64;
                }
            }
            let verdict = if reason.is_some() { TC_ACT_SHOT } else { TC_ACT_UNSPEC };
            let ran = programs.run(Program::FromUplink, SkBuff::on(UPLINK), packet)?;
            ensure!(ran.verdict == verdict, "{about}: expected {}, {ran:?}", verdict_name(verdict));
            ensure!(ran.packet == *packet, "{about}: changed: {ran:?}");
            let counted = programs.links()?;
            ensure!(counted.len() == 1 && counted.get(&UPLINK) == Some(&expected), "{about}: {counted:?}");
        }
        ensure!(programs.counters()? == of_pods, "counted at a pod");
        Ok(())
    })
}

fn v4(source: Ipv4Address) -> Vec<u8> {
    frame(NODE_MAC, OTHER_MAC, IPV4, &Ipv4::new(source, B.v4, UDP).with(&udp(1, 2, b"data")))
}

fn v6_from(source: Ipv6Address) -> Vec<u8> {
    frame(NODE_MAC, OTHER_MAC, IPV6, &Ipv6::new(source, B.v6, UDP).with(&udp(1, 2, b"data")))
}

#[test]
fn sources_of_the_nodes_pods_are_dropped_and_all_others_pass() {
    let four = Some(DropReason::SpoofedIpv4);
    let six = Some(DropReason::SpoofedIpv6);
    let later = Ipv4 { fragment: 185, ..Ipv4::new(A.v4, B.v4, UDP) }.with(b"a later fragment");
    let with_options = Ipv4 { options: vec![1; 40], ..Ipv4::new(A.v4, B.v4, UDP) }.with(&udp(1, 2, b""));
    let fragment = Ipv6::new(A.v6, B.v6, FRAGMENT).with(&packet::fragment(UDP, 8, false, b"later   "));
    let [a, b, c, d] = A.v4;
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d];
    let to_far = Ipv4::new(A.v4, FAR_V4, UDP).with(&udp(1, 2, b""));
    check(&[
        ("from a pod", v4(A.v4), four),
        ("from a pod to itself", v4(B.v4), four),
        ("from a pod to far away", frame(NODE_MAC, OTHER_MAC, IPV4, &to_far), four),
        ("from a pod without IPv6", v4(ONLY_V4.v4), four),
        ("from an address of the range that no pod has", v4(UNUSED_V4), four),
        ("from a pod outside of the ranges", v4(OUTSIDE_V4), four),
        ("a later fragment", frame(NODE_MAC, OTHER_MAC, IPV4, &later), four),
        ("with options", frame(NODE_MAC, OTHER_MAC, IPV4, &with_options), four),
        ("from a pod, IPv6", v6_from(A.v6), six),
        ("from a pod without IPv4, IPv6", v6_from(ONLY_V6.v6), six),
        ("from an address of the range that no pod has, IPv6", v6_from(UNUSED_V6), six),
        ("a fragment, IPv6", frame(NODE_MAC, OTHER_MAC, IPV6, &fragment), six),
        ("from a pod's IPv4 address, as IPv6", v6_from(mapped), six),
        ("from far away", v4(FAR_V4), None),
        ("from a remote pod", v4(REMOTE_V4), None),
        ("from another node", v4([192, 0, 2, 2]), None),
        ("from the node, which the kernel judges", v4(NODE_V4), None),
        ("from the node's address within the range", v4(BRIDGE_V4), None),
        ("from nowhere, as a DHCP client", v4([0; 4]), None),
        ("from far away, IPv6", v6_from(FAR_V6), None),
        ("from a remote pod, IPv6", v6_from(REMOTE_V6), None),
        ("from the node, IPv6", v6_from(NODE_V6), None),
        ("from a link-local address", v6_from(A.link_local()), None),
    ])
    .unwrap();
}

#[test]
fn what_is_no_ip_packet_is_left_to_the_stack() {
    let ask = Arp::ask(OTHER_MAC, A.v4, B.v4).bytes();
    let odd = Ipv4 { version: 6, ..Ipv4::new(FAR_V4, B.v4, UDP) }.with(&udp(1, 2, b""));
    check(&[
        ("ARP, which a pod could have sent", frame(NODE_MAC, OTHER_MAC, ARP, &ask), None),
        ("LLDP", frame([1, 0x80, 0xc2, 0, 0, 0x0e], OTHER_MAC, 0x88cc, &[0; 46]), None),
        ("the shortest frame", vec![0; 14], None),
        ("IPv4 of another version", frame(NODE_MAC, OTHER_MAC, IPV4, &odd), None),
    ])
    .unwrap();
}

/// The kernel keeps the first tag beside the frame: one in the frame is a second one.
#[test]
fn a_tag_behind_a_tag_without_a_vlan_is_dropped() {
    let vlan = Some(DropReason::Vlan);
    check(&[
        ("a pod's packet", tagged(&v4(A.v4), &[(VLAN, 0)]), vlan),
        ("another one, in a VLAN", tagged(&v4(FAR_V4), &[(VLAN, 5)]), vlan),
        ("802.1ad", tagged(&v6_from(A.v6), &[(QINQ, 0)]), vlan),
    ])
    .unwrap();
}

#[test]
fn packets_of_remote_pods_go_past_the_stack_to_the_pods() {
    const BYTES: u64 = 14 + 20 + 8 + 64;
    let payload = udp(1, 2, &data(64));
    let (ip, ip6) = (Ipv4::new(REMOTE_V4, B.v4, UDP), Ipv6::new(REMOTE_V6, B.v6, UDP));
    let less = (Ipv4 { ttl: ip.ttl - 1, ..ip.clone() }, Ipv6 { hop_limit: ip6.hop_limit - 1, ..ip6.clone() });
    let rows = [
        (IPV4, ip.with(&payload), less.0.with(&payload), BYTES),
        (IPV6, ip6.with(&payload), less.1.with(&payload), BYTES + 20),
    ];
    for is_indexed in [false, true] {
        with_pods(|programs| {
            prepare(programs, is_indexed)?;
            let address = EndpointKey::ipv4([192, 0, 2, 2]).address;
            let node = NodeEntry { id: 2, flags: NodeEntry::FAST, address, ifindex: UPLINK, mtu: 1500 };
            programs.add_node(NodeKey::new("10.244.2.0".parse()?, 24), node)?;
            programs.add_node(NodeKey::new("fd00:10:244:2::".parse()?, 64), node)?;
            if is_indexed {
                programs.index_nodes()?;
            }
            let mac = NODE_MAC.map(|byte| format!("{byte:02x}")).join(":");
            sys::run(&format!("ip link set pod{UPLINK} address {mac}"))?;
            let (mut of_pods, mut of_links) = (programs.counters()?, programs.links()?);
            for (ethertype, packet, routed, bytes) in &rows {
                let sent = frame(NODE_MAC, OTHER_MAC, *ethertype, packet);
                let ran = programs.run(Program::FromUplink, SkBuff::on(UPLINK), &sent)?;
                ran.expect(TC_ACT_REDIRECT)?;
                ensure!(ran.packet == B.receives(*ethertype, routed), "{ran:?}");
                for traffic in
                    [&mut of_pods.entry(B.ifindex).or_default().ingress, of_links.entry(UPLINK).or_default()]
                {
                    traffic.packets += 1;
                    traffic.bytes += bytes;
                }
                ensure!(programs.counters()? == of_pods && programs.links()? == of_links);
                // A switch floods what is for a machine that it does not know.
                let flooded = frame(A.mac, OTHER_MAC, *ethertype, packet);
                let ran = programs.run(Program::FromUplink, SkBuff::on(UPLINK), &flooded)?;
                ran.expect(TC_ACT_UNSPEC)?;
                of_links = programs.links()?;
                ensure!(programs.counters()? == of_pods, "counted at a pod");
            }
            Ok(())
        })
        .unwrap();
    }
}
