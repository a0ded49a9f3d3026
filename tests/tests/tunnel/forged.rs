//! What a forger outside sends into the tunnel is refused, and counted by what is wrong with it.

use std::{net::IpAddr, path::Path};

use agent_common::{DropReason, TUNNEL_PORT, TUNNEL_VNI};
use ferrule_tests::{
    packet::{
        self, ARP, DESTINATION_OPTIONS, FRAGMENT, IPV4, IPV6, Ipv4, Ipv6, QINQ, TCP, UDP, VLAN, data,
        extension, fragment, tagged, udp,
    },
    sys,
    wire::{self, Wire},
};

use crate::underlay::{CLIENT, OUTSIDE, datagram, frame, framed, ip, query, vxlan, with_underlay};

#[test]
fn only_nodes_may_send_and_only_to_the_nodes_own_address() {
    with_underlay(|underlay| {
        let outer_is = |about: &str, ends, vni, frame: &[u8]| {
            let reason = (Some(DropReason::TunnelOuter), 0);
            underlay.expect(about, 0, reason, || underlay.send(ends, vni, frame))?;
            match ends {
                [IpAddr::V4(_), IpAddr::V4(_)] => {
                    underlay.expect(about, 0, reason, || underlay.send_plain(ends, vni, frame))
                }
                _ => Ok(()),
            }
        };
        let families = underlay.families()?;
        for outer in &families {
            for inner in &families {
                let frame = query(inner.senders_pod, inner.pod);
                outer_is("from a stranger", [outer.stranger, outer.node], TUNNEL_VNI, &frame)?;
                outer_is("to another address", [outer.sender, outer.unreported], TUNNEL_VNI, &frame)?;
                outer_is("of another network", [outer.sender, outer.node], TUNNEL_VNI + 1, &frame)?;
                outer_is("of network 0", [outer.sender, outer.node], 0, &frame)?;
                outer_is(
                    "as a stranger",
                    [outer.stranger, outer.node],
                    TUNNEL_VNI,
                    &query(inner.stranger, inner.pod),
                )?;
            }
        }
        underlay.expect_no_delivery()
    })
    .unwrap();
}

/// The kernel drops an IPv4 packet with an own address as its source, and accepts one of IPv6.
#[test]
fn a_host_outside_cannot_send_as_the_node_itself() {
    with_underlay(|underlay| {
        let [_, family] = underlay.families()?;
        let outside = Path::new(OUTSIDE);
        let neighbour = Wire::open(outside, "eth0")?;
        let (own, node) = (sys::in_netns(outside, || wire::mac("eth0"))?, wire::mac("uplink")?);
        let (IpAddr::V6(from), to) = (family.node, family.node) else { anyhow::bail!("not IPv6") };
        let payload = udp(CLIENT, TUNNEL_PORT, &vxlan(TUNNEL_VNI, &query(family.node, family.pod)));
        let payload = packet::sealed(family.node, to, UDP, 6, payload);
        let outer = Ipv6::new(from.octets(), from.octets(), UDP).with(&payload);
        underlay.expect("as the node", 0, (Some(DropReason::TunnelOuter), 0), || {
            neighbour.send(&packet::frame(node, own, IPV6, &outer))
        })?;
        underlay.expect_no_delivery()
    })
    .unwrap();
}

#[test]
fn a_node_sends_for_itself_and_its_own_pods_only() {
    with_underlay(|underlay| {
        for inner in underlay.families()? {
            let [sibling, unused] = if inner.pod.is_ipv4() {
                [ip("10.244.0.1")?, ip("10.244.0.200")?]
            } else {
                [ip("fd00:10:244::1")?, ip("fd00:10:244::200")?]
            };
            let others = [inner.pod, sibling, unused, inner.node, inner.unreported, inner.third];
            let others = others.into_iter().chain([inner.thirds_pod, inner.stranger, inner.far]);
            for source in others.chain(inner.martians.clone()).chain(inner.groups.clone()) {
                let about = format!("as {source}");
                underlay.expect_from_sender(
                    &about,
                    &query(source, inner.pod),
                    Some(DropReason::TunnelInner),
                )?;
            }
        }
        underlay.expect_no_delivery()
    })
    .unwrap();
}

#[test]
fn packets_end_at_the_node() {
    with_underlay(|underlay| {
        for inner in underlay.families()? {
            let to = |destination, reason| {
                let about = format!("to {destination}");
                underlay.expect_from_sender(&about, &query(inner.senders_pod, destination), Some(reason))
            };
            for destination in [inner.third, inner.thirds_pod, inner.sender, inner.senders_pod] {
                to(destination, DropReason::TunnelDestination)?;
            }
            for destination in [inner.stranger, inner.far, inner.unreported] {
                to(destination, DropReason::TunnelDestination)?;
            }
            inner.martians.iter().try_for_each(|it| to(*it, DropReason::Martian))?;
            inner.groups.iter().try_for_each(|it| to(*it, DropReason::Multicast))?;
        }
        underlay.expect_no_delivery()
    })
    .unwrap();
}

#[test]
fn nothing_is_encapsulated_once_more() {
    with_underlay(|underlay| {
        for inner in underlay.families()? {
            for destination in [inner.node, inner.pod] {
                let nested = |about: &str, protocol, payload: &[u8]| {
                    let frame = frame(inner.senders_pod, destination, protocol, payload);
                    underlay.expect_from_sender(about, &frame, Some(DropReason::TunnelNested))
                };
                let forged = vxlan(TUNNEL_VNI, &query(inner.far, inner.pod));
                nested("VXLAN", UDP, &udp(CLIENT, TUNNEL_PORT, &forged))?;
                nested("VXLAN without a checksum and data", UDP, &udp(CLIENT, TUNNEL_PORT, b""))?;
                nested("IP in IP", 4, &data(40))?;
                nested("IPv6 in IP", 41, &data(60))?;
                nested("GRE", 47, &data(60))?;
            }
            let payload = udp(CLIENT, TUNNEL_PORT, &data(64));
            let first = match (inner.senders_pod, inner.node) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    let ip = Ipv4::new(from.octets(), to.octets(), UDP);
                    vec![framed(IPV4, &Ipv4 { fragment: Ipv4::MORE_FRAGMENTS, ..ip }.with(&payload))]
                }
                (from, to) => vec![
                    frame(from, to, FRAGMENT, &fragment(UDP, 0, true, &payload)),
                    frame(from, to, DESTINATION_OPTIONS, &extension(UDP, &payload)),
                    frame(from, to, DESTINATION_OPTIONS, &extension(4, &data(40))),
                ],
            };
            for frame in first {
                underlay.expect_from_sender("hidden", &frame, Some(DropReason::TunnelNested))?;
            }
            // Another protocol with the same port, and the port as a source.
            let tcp = frame(inner.senders_pod, inner.node, TCP, &packet::tcp(CLIENT, TUNNEL_PORT, b""));
            underlay.expect_from_sender("TCP", &tcp, None)?;
            let answer = frame(inner.senders_pod, inner.node, UDP, &udp(TUNNEL_PORT, CLIENT, b""));
            underlay.expect_from_sender("from the port", &answer, None)?;
        }
        underlay.expect_no_delivery()
    })
    .unwrap();
}

#[test]
fn malformed_frames_are_refused() {
    with_underlay(|underlay| {
        let [v4, v6] = underlay.families()?;
        let (IpAddr::V4(from), IpAddr::V4(to)) = (v4.senders_pod, v4.pod) else { anyhow::bail!("not IPv4") };
        let ip = Ipv4::new(from.octets(), to.octets(), UDP);
        let payload = datagram(v4.senders_pod, v4.pod, b"query");
        let whole = query(v4.senders_pod, v4.pod);
        let whole6 = query(v6.senders_pod, v6.pod);
        let deep = (0..5).fold(data(16), |inner, _| extension(DESTINATION_OPTIONS, &inner));
        // The kernel itself drops frames that end within the IP header.
        let malformed = [
            ("IPv4 of another version", framed(IPV4, &Ipv4 { version: 6, ..ip.clone() }.with(&payload))),
            ("a short header", framed(IPV4, &Ipv4 { ihl: Some(4), ..ip.clone() }.with(&payload))),
            (
                "longer than the frame",
                framed(IPV4, &Ipv4 { total_len: Some(900), ..ip.clone() }.with(&payload)),
            ),
            ("a part of a datagram", packet::cut(&whole, whole.len() - 1)),
            ("a part of a datagram of IPv6", packet::cut(&whole6, whole6.len() - 1)),
            ("IPv4 as IPv6", framed(IPV6, &ip.with(&data(60)))),
            ("too many extension headers", frame(v6.senders_pod, v6.pod, DESTINATION_OPTIONS, &deep)),
        ];
        for (about, frame) in &malformed {
            underlay.expect_from_sender(about, frame, Some(DropReason::Malformed))?;
        }
        for (about, ethertype) in [("ARP", ARP), ("LLDP", 0x88cc), ("MPLS", 0x8847), ("a length", 46)] {
            let frame = framed(ethertype, &data(46));
            underlay.expect_from_sender(about, &frame, Some(DropReason::Ethertype))?;
        }
        for tags in [&[(VLAN, 5)][..], &[(VLAN, 0)], &[(QINQ, 5), (VLAN, 6)]] {
            underlay.expect_from_sender("a VLAN", &tagged(&whole, tags), Some(DropReason::Vlan))?;
        }
        underlay.expect_no_delivery()
    })
    .unwrap();
}
