//! Forgers who do not get as far as the tunnel: pods of the node, and hosts that send as one of its pods. And
//! what operators see of all that.

use std::{
    net::{SocketAddr, UdpSocket},
    path::Path,
};

use agent_common::{DropReason, TUNNEL_PORT, TUNNEL_VNI, Traffic};
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    packet::{QINQ, VLAN, data, tagged},
    sys,
    wire::{self, Wire},
};
use serde_json::Value;

use crate::underlay::{LIMIT, OUTSIDE, ip, query, vxlan, with_underlay};

#[test]
fn a_pod_cannot_send_into_the_tunnel() {
    with_underlay(|underlay| {
        let dropped = || {
            let counters = underlay.programs.counters()?;
            anyhow::Ok(counters.get(&underlay.host_ifindex).map_or(0, |it| it.egress.drops.tunnel))
        };
        for family in underlay.families()? {
            let frame = query(family.senders_pod, family.pod);
            for node in [family.node, family.sender] {
                // In one datagram, and in fragments, of which the first one is dropped.
                for payload in
                    [vxlan(TUNNEL_VNI, &frame), vxlan(TUNNEL_VNI, &[frame.clone(), data(4000)].concat())]
                {
                    let before = dropped()?;
                    let from = SocketAddr::new(family.pod, 0);
                    let socket = sys::bind_in(underlay.pod.path(), from, UdpSocket::bind)?;
                    socket.send_to(&payload, SocketAddr::new(node, TUNNEL_PORT))?;
                    let about = format!("{} bytes to {node}", payload.len());
                    sys::wait_until(&about, LIMIT, || Ok(dropped()? == before + 1))?;
                }
            }
        }
        ensure!(underlay.counted(0)? == Traffic::default(), "{:?}", underlay.counted(0)?);
        underlay.expect_no_delivery()
    })
    .unwrap();
}

#[test]
fn the_uplink_refuses_packets_with_a_pods_source() {
    with_underlay(|underlay| {
        let outside = Path::new(OUTSIDE);
        let neighbour = Wire::open(outside, "eth0")?;
        let (own, node) = (sys::in_netns(outside, || wire::mac("eth0"))?, wire::mac("uplink")?);
        // What else the neighbour's kernel sends would be counted, too.
        sys::run("ip -n outside addr flush dev eth0")?;
        sys::run("ip neigh flush dev uplink")?;
        for inner in underlay.families()? {
            let (spoofed, unused) = if inner.pod.is_ipv4() {
                (DropReason::SpoofedIpv4, ip("10.244.0.200")?)
            } else {
                (DropReason::SpoofedIpv6, ip("fd00:10:244::200")?)
            };
            let to_uplink = |about: &str, frame: &[u8], reason: DropReason| {
                let before = underlay.counted(1)?.drops.get(reason);
                let mut frame = frame.to_vec();
                frame.splice(..12, [node, own].concat());
                neighbour.send(&frame)?;
                sys::wait_until(about, LIMIT, || Ok(underlay.counted(1)?.drops.get(reason) == before + 1))
            };
            for source in [inner.pod, unused] {
                let frame = query(source, inner.pod);
                to_uplink("plain", &frame, spoofed)?;
                to_uplink("with a priority", &tagged(&frame, &[(VLAN, 0xe000)]), spoofed)?;
                to_uplink("with two priorities", &tagged(&frame, &[(VLAN, 0), (VLAN, 0)]), DropReason::Vlan)?;
                to_uplink("with another tag", &tagged(&frame, &[(QINQ, 0), (VLAN, 0)]), DropReason::Vlan)?;
            }
        }
        underlay.expect_no_delivery()?;
        for (family, inner) in underlay.families()?.iter().enumerate() {
            let mut frame = query(inner.far, inner.pod);
            frame.splice(..12, [node, own].concat());
            neighbour.send(&frame)?;
            let (_, from) = underlay.receive(family)?;
            ensure!(from == inner.far);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn drops_of_links_are_shown_without_a_sender_and_counted_by_reason() {
    with_underlay(|underlay| {
        let [inner, _] = underlay.families()?;
        underlay.node.start_again()?;
        let outside = Path::new(OUTSIDE);
        let neighbour = Wire::open(outside, "eth0")?;
        let (own, node) = (sys::in_netns(outside, || wire::mac("eth0"))?, wire::mac("uplink")?);
        let before = underlay.counted(1)?.drops.spoofed_ipv4;
        // As the pod itself, which has not sent it.
        let mut forged = query(inner.pod, inner.pod);
        forged.splice(..12, [node, own].concat());
        neighbour.send(&forged)?;
        let mut shown = String::new();
        sys::wait_until("a record", LIMIT, || {
            shown = underlay.node.ctl(&["drops", "-o", "json"])?;
            Ok(shown.contains("spoofed_ipv4"))
        })?;
        let record: Value =
            serde_json::from_str(shown.lines().find(|it| it.contains("spoofed_ipv4")).context("no record")?)?;
        let text = |pointer: &str| record.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        ensure!(text("/flow/source/pod_name").is_empty(), "{record:#}");
        ensure!(text("/flow/destination/pod_name") == "a", "{record:#}");
        ensure!(text("/flow/traffic_direction") == "INGRESS", "{record:#}");

        let status: Value = serde_json::from_str(&underlay.node.ctl(&["status", "-o", "json"])?)?;
        let links = status.get("links").and_then(Value::as_array).context("no links")?;
        let uplink = links.iter().find(|it| it.get("interface").is_some_and(|name| name == "uplink"));
        let drops = uplink.and_then(|it| it.pointer("/drops/spoofed_ipv4")).and_then(Value::as_u64);
        ensure!(drops == Some(before + 1), "{status:#}");
        let of = |reason: &str| {
            let labels = format!("interface=\"uplink\",reason=\"{reason}\"");
            underlay.node.count(&format!("ferrule_link_drops_total{{{labels}}}"))
        };
        ensure!(of("spoofed_ipv4")? == (before + 1) as f64 && of("tunnel_outer")? == 0.0);
        Ok(())
    })
    .unwrap();
}
