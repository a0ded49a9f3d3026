//! What nodes send to each other arrives.

use std::{net::IpAddr, path::Path};

use agent_common::{DropReason, Drops, TUNNEL_PORT, TUNNEL_VNI};
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V4, NODE_V6},
    packet::{FRAGMENT, IPV4, Ipv4, UDP, data, fragment},
    program::{Log, Program, Programs},
    sys, wire,
};

use crate::underlay::{OUTSIDE, TUNNEL, datagram, fill_nodes, frame, framed, query, with_underlay};

#[test]
fn what_a_node_sends_arrives_at_the_pod() {
    with_underlay(|underlay| {
        let families = underlay.families()?;
        for (family, inner) in families.iter().enumerate() {
            for source in [inner.senders_pod, inner.sender] {
                for outer in &families {
                    let frame = query(source, inner.pod);
                    let about = format!("{source} by {}", outer.sender);
                    underlay.expect(&about, 0, (None, frame.len()), || {
                        underlay.send([outer.sender, outer.node], TUNNEL_VNI, &frame)
                    })?;
                    let (data, from) = underlay.receive(family).context(about)?;
                    ensure!(data == b"query" && from == source, "{data:?} from {from}");
                    if outer.node.is_ipv4() {
                        underlay.expect("without a checksum", 0, (None, frame.len()), || {
                            underlay.send_plain([outer.sender, outer.node], TUNNEL_VNI, &frame)
                        })?;
                        ensure!(underlay.receive(family)? == (data, from), "without a checksum");
                    }
                }
            }
            // For the node itself; and from the pod of a third node, through that node.
            underlay.expect_from_sender("to the node", &query(inner.senders_pod, inner.node), None)?;
            let frame = query(inner.thirds_pod, inner.pod);
            underlay.expect("from the third node", 0, (None, frame.len()), || {
                underlay.send([inner.third, inner.node], TUNNEL_VNI, &frame)
            })?;
            underlay.receive(family)?;
        }
        Ok(())
    })
    .unwrap();
}

/// With devices and programs at both ends, and answers.
#[test]
fn pods_of_two_nodes_reach_each_other() {
    with_underlay(|underlay| {
        let mut programs = Programs::load(Log::Off)?;
        fill_nodes(&mut programs, 2)?;
        let outside = Path::new(OUTSIDE);
        sys::in_netns(outside, || {
            for line in [
                format!("ip link add {TUNNEL} type vxlan external dstport {TUNNEL_PORT} nolearning"),
                format!("ip link set {TUNNEL} arp off up"),
                "ip link set lo up".to_owned(),
                "ip addr add 10.244.2.5/32 dev lo".to_owned(),
                "ip addr add fd00:10:244:2::5/128 dev lo nodad".to_owned(),
            ] {
                sys::run(&line)?;
            }
            wire::disable_rp_filter()?;
            programs.start_counting_link(nix::net::if_::if_nametoindex(TUNNEL)?)?;
            programs.attach(Program::FromTunnel, TUNNEL)
        })?;
        for (encap, own, other) in [("ip", NODE_V4, "192.0.2.2"), ("ip6", NODE_V6, "2001:db8::2")] {
            // With the outer source, because both ends have several addresses; and with a checksum, without
            // which the kernel refuses UDP over IPv6.
            let route = |to: &str, [from, node]: [&str; 2], source: &str| {
                let encap = format!("encap {encap} id {TUNNEL_VNI} src {from} dst {node} csum");
                format!("ip route replace {to} {encap} dev {TUNNEL} {source}")
            };
            for to in ["10.244.2.0/24", "fd00:10:244:2::/64"] {
                sys::run(&route(to, [own, other], ""))?;
            }
            let sources = [("10.244.0.0/24", "src 10.244.2.5"), ("fd00:10:244::/64", "src fd00:10:244:2::5")];
            for (to, source) in sources {
                sys::in_netns(outside, || sys::run(&route(to, [other, own], source)))?;
            }
            for address in &underlay.pod.addresses {
                sys::run(&format!("ip netns exec outside ping -n -c 2 -i 0.2 -W 2 {address}"))
                    .with_context(|| format!("over {encap}"))?;
            }
            for remote in ["10.244.2.5", "fd00:10:244:2::5"] {
                underlay.pod.ping(remote).with_context(|| format!("over {encap}"))?;
            }
        }
        for counted in [underlay.counted(0)?].into_iter().chain(programs.links()?.into_values()) {
            ensure!(counted.packets >= 12 && counted.drops == Drops::default(), "{counted:?}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn fragments_of_a_nodes_packets_arrive() {
    with_underlay(|underlay| {
        let families = underlay.families()?;
        for (family, inner) in families.iter().enumerate() {
            let whole = datagram(inner.senders_pod, inner.pod, &data(2000));
            let (first, second) = whole.split_at(1200);
            let part = |at: u16, more: bool, payload: &[u8]| match (inner.senders_pod, inner.pod) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    let fragment = at | if more { Ipv4::MORE_FRAGMENTS } else { 0 };
                    let ip = Ipv4 { id: 9, fragment, ..Ipv4::new(from.octets(), to.octets(), UDP) };
                    framed(IPV4, &ip.with(payload))
                }
                (from, to) => frame(from, to, FRAGMENT, &fragment(UDP, at, more, payload)),
            };
            for frame in [part(0, true, first), part(150, false, second)] {
                underlay.expect("an inner fragment", 0, (None, frame.len()), || {
                    underlay.send([inner.sender, inner.node], TUNNEL_VNI, &frame)
                })?;
            }
            let (data, _) = underlay.receive(family)?;
            ensure!(data.len() == 2000, "{} bytes", data.len());
        }
        // The kernel reassembles the outer packet.
        sys::run("ip -n outside link set eth0 mtu 1280")?;
        for (family, inner) in families.iter().enumerate() {
            for outer in &families {
                let payload = datagram(inner.senders_pod, inner.pod, &data(1300));
                let frame = frame(inner.senders_pod, inner.pod, UDP, &payload);
                underlay.expect("outer fragments", 0, (None, frame.len()), || {
                    underlay.send([outer.sender, outer.node], TUNNEL_VNI, &frame)
                })?;
                let (data, _) = underlay.receive(family)?;
                ensure!(data.len() == 1300, "{} bytes", data.len());
                underlay.expect("from a stranger", 0, (Some(DropReason::TunnelOuter), 0), || {
                    underlay.send([outer.stranger, outer.node], TUNNEL_VNI, &frame)
                })?;
            }
        }
        underlay.expect_no_delivery()
    })
    .unwrap();
}
