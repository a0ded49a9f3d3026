//! Packets to pods of other nodes, past the host's stack.

use agent_common::{EndpointKey, NodeEntry, NodeKey};
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    packet::{Ipv4, Ipv6, TCP, UDP, data, tcp, udp},
    program::{Program, Programs, SkBuff, TC_ACT_REDIRECT, TC_ACT_UNSPEC},
};

use crate::table::{A, FAR_V4, STRANGER, v6, with_pods};

#[test]
fn packets_leave_for_the_next_hop_in_the_row_and_by_the_stack_without_one() {
    with_pods(|programs| {
        let payload = udp(1, 2, &data(64));
        let remote = Ipv4::new(A.v4, [10, 244, 2, 5], UDP);
        let remote6 = Ipv6::new(A.v6, v6([0xfd00, 0x10, 0x244, 2, 0, 0, 0, 5]), UDP);
        let routed = Ipv4 { ttl: remote.ttl - 1, ..remote.clone() };
        let routed6 = Ipv6 { hop_limit: remote6.hop_limit - 1, ..remote6.clone() };
        let cases = [
            ("10.244.2.0", 24, A.sends_v4(&remote.with(&payload)), A.sends_v4(&routed.with(&payload))),
            ("fd00:10:244:2::", 64, A.sends_v6(&remote6.with(&payload)), A.sends_v6(&routed6.with(&payload))),
        ];
        let next_hops = [EndpointKey::ipv4([192, 0, 2, 2]), EndpointKey::ipv6([0xfe; 16])];
        for (range, len, sent, forwarded) in cases {
            for next in next_hops.map(|it| it.address).into_iter().chain([[0; 16]]) {
                let flags = NodeEntry::FAST;
                let row = NodeEntry { id: 2, flags, address: next, ifindex: STRANGER, mtu: 1500 };
                programs.add_node(NodeKey::new(range.parse()?, len), row)?;
                let ran = programs.run(Program::FromPod, SkBuff::on(A.ifindex), &sent)?;
                let is_known = next != [0; 16];
                ran.expect(if is_known { TC_ACT_REDIRECT } else { TC_ACT_UNSPEC })?;
                // The neighbour's MAC replaces that of the frame later.
                let expected = if is_known { &forwarded } else { &sent };
                ensure!(ran.packet == *expected, "to {range}, next hop {next:?}: {ran:?}");
            }
        }
        Ok(())
    })
    .unwrap();
}

/// A segment has 20 bytes of TCP header, and those of IP: as many bytes as the way takes, or one more.
#[test]
fn packets_that_are_segmented_later_are_as_large_as_their_segments() {
    with_pods(|programs| {
        let payload = tcp(1, 2, &data(3000));
        let sent = A.sends_v4(&Ipv4::new(A.v4, [10, 244, 2, 5], TCP).with(&payload));
        let sent6 =
            A.sends_v6(&Ipv6::new(A.v6, v6([0xfd00, 0x10, 0x244, 2, 0, 0, 0, 5]), TCP).with(&payload));
        let next_hops = [EndpointKey::ipv4([192, 0, 2, 2]), EndpointKey::ipv6([0xfe; 16])];
        for (range, len, next, sent, headers) in
            [("10.244.2.0", 24, next_hops[0], sent, 40), ("fd00:10:244:2::", 64, next_hops[1], sent6, 60)]
        {
            for mtu in [1400, 1500] {
                let (flags, address) = (NodeEntry::FAST, next.address);
                let row = NodeEntry { id: 2, flags, address, ifindex: STRANGER, mtu };
                programs.add_node(NodeKey::new(range.parse()?, len), row)?;
                for (size, verdict) in [(mtu - headers, TC_ACT_REDIRECT), (mtu - headers + 1, TC_ACT_UNSPEC)]
                {
                    let skb = SkBuff { gso_size: size, ..SkBuff::on(A.ifindex) };
                    let ran = programs.run(Program::FromPod, skb, &sent)?;
                    ran.expect(verdict).with_context(|| format!("{range}, {mtu}, segments of {size}"))?;
                }
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_range_is_found_in_the_index_and_what_an_incomplete_index_lacks_in_the_trie() {
    with_pods(|programs| {
        let address = EndpointKey::ipv4([192, 0, 2, 2]).address;
        let row = NodeEntry { id: 2, flags: NodeEntry::FAST, address, ifindex: STRANGER, mtu: 1500 };
        let range = |text: &str, len| anyhow::Ok(NodeKey::new(text.parse()?, len));
        programs.add_node(range("10.244.2.0", 24)?, row)?;
        programs.index_nodes()?;
        // Only in the trie.
        programs.add_node(range("10.244.3.0", 24)?, row)?;
        let goes = |programs: &mut Programs, to, verdict| {
            let packet = A.sends_v4(&Ipv4::new(A.v4, to, UDP).with(&udp(1, 2, &data(64))));
            programs.run(Program::FromPod, SkBuff::on(A.ifindex), &packet)?.expect(verdict)
        };
        goes(programs, [10, 244, 2, 5], TC_ACT_REDIRECT)?;
        goes(programs, [10, 244, 3, 5], TC_ACT_UNSPEC)?;
        goes(programs, FAR_V4, TC_ACT_UNSPEC)?;
        // Of another length: the index is complete no more.
        programs.add_node(range("10.244.4.0", 25)?, row)?;
        programs.index_nodes()?;
        programs.add_node(range("10.244.5.0", 24)?, row)?;
        for to in [[10, 244, 2, 5], [10, 244, 3, 5], [10, 244, 4, 127], [10, 244, 5, 5]] {
            goes(programs, to, TC_ACT_REDIRECT)?;
        }
        for to in [[10, 244, 4, 128], [10, 244, 6, 5], FAR_V4] {
            goes(programs, to, TC_ACT_UNSPEC)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn ranges_of_each_length_are_found_in_the_index() {
    let inside = v6([0xfd00, 0x5, 0, 0x1ff, 0x8001, 0, 0, 5]);
    for (range, len, outside) in [
        ("fd00:5::", 32, [0xfd00, 0x6, 0, 0, 0, 0, 0, 5]),
        ("fd00:5:0:100::", 56, [0xfd00, 0x5, 0, 0x200, 0, 0, 0, 5]),
        ("fd00:5:0:1ff::", 64, [0xfd00, 0x5, 0, 0x1fe, 0x8001, 0, 0, 5]),
        ("fd00:5:0:1ff:8000::", 65, [0xfd00, 0x5, 0, 0x1ff, 0x7fff, 0, 0, 5]),
        ("fd00:5:0:1ff:8001::", 80, [0xfd00, 0x5, 0, 0x1ff, 0x8000, 0, 0, 5]),
        ("fd00:5:0:1ff:8001::4", 127, [0xfd00, 0x5, 0, 0x1ff, 0x8001, 0, 0, 6]),
    ] {
        with_pods(|programs| {
            let address = EndpointKey::ipv6([0xfe; 16]).address;
            let row = NodeEntry { id: 2, flags: NodeEntry::FAST, address, ifindex: STRANGER, mtu: 1500 };
            programs.add_node(NodeKey::new(range.parse()?, len), row)?;
            // Complete, so that the programs do not ask the trie.
            programs.index_nodes()?;
            for (to, verdict) in [(inside, TC_ACT_REDIRECT), (v6(outside), TC_ACT_UNSPEC)] {
                let packet = A.sends_v6(&Ipv6::new(A.v6, to, UDP).with(&udp(1, 2, &data(64))));
                programs.run(Program::FromPod, SkBuff::on(A.ifindex), &packet)?.expect(verdict)?;
            }
            Ok(())
        })
        .unwrap();
    }
}
