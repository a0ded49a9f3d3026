//! Packets to addresses that the host translates: judged afterwards.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    time::Duration,
};

use agent_common::{
    DropReason, GATEWAY_MAC,
    policy::{Peer, View},
};
use anyhow::{Context as _, ensure};
use ferrule_policy::{Change, Table};
use ferrule_tests::{
    packet::{
        FRAGMENT, IPV4, IPV6, Ipv4, Ipv4Address, Ipv6, Ipv6Address, Mac, TCP, UDP, data, fragment, sealed,
        udp,
    },
    program::Program,
    sys,
    wire::{self, Wire},
};
use serde_json::{Value, json};

use super::{
    ACK, Policed, SYN,
    Step::{Receives, Sends},
    app, cluster_policy, policy, segment, v4, with_policies,
};
use crate::table::{A, B, FAR_V4, FAR_V6, NODE_V4, NODE_V6, ONLY_V4, Pod, v6};

const VIP: Ipv4Address = [10, 96, 0, 10];
const VIP_V6: Ipv6Address = v6([0xfd00, 0x96, 0, 0, 0, 0, 0, 10]);
/// Ports of the Service, which leads to port 8080 of pod `B`, of a host outside, and of pod `A` itself.
const TO_B: u16 = 80;
const TO_FAR: u16 = 81;
const TO_A: u16 = 82;
/// This one leads to a host behind another program's tunnel.
const TO_TUNNEL: u16 = 84;
/// The tunnel's port.
const TUNNEL: u16 = 8472;
/// A port that the Service does not have at first.
const LATER: u16 = 83;
const BACKEND: u16 = 8080;
const CLIENT: u16 = 40000;
/// The network namespace of the pods' ends, and of the other end of the uplink.
const ENDS: &str = "/run/netns/ends";
const PATIENCE: Duration = Duration::from_secs(3);
/// Longer than a packet on the node takes.
const SILENCE: Duration = Duration::from_millis(300);

/// A node with all programs, whose stack translates a Service. `ONLY_V4`'s interface is an uplink, or the
/// tunnel.
struct Node<'a, 'b> {
    policed: &'a mut Policed<'b>,
    a: Wire,
    b: Wire,
    far: Wire,
}

fn with_node(
    policies: impl IntoIterator<Item = Change> + Send,
    masquerades: bool,
    run: impl FnOnce(&mut Node<'_, '_>) -> anyhow::Result<()> + Send,
) -> anyhow::Result<()> {
    with_node_by(Program::ToLink, policies, masquerades, run)
}

/// `link`: the program of the interface by which packets leave the node.
fn with_node_by(
    link: Program,
    policies: impl IntoIterator<Item = Change> + Send,
    masquerades: bool,
    run: impl FnOnce(&mut Node<'_, '_>) -> anyhow::Result<()> + Send,
) -> anyhow::Result<()> {
    with_policies(policies, |policed| {
        add_service(policed)?;
        sys::mount_private("tmpfs", "/run")?;
        std::fs::create_dir("/run/netns")?;
        let ends = Path::new(ENDS);
        sys::make_netns(ends)?;
        sys::in_netns(ends, || Ok(std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")?))?;
        for pod in [A, B, ONLY_V4] {
            plug(policed, pod, link)?;
        }
        sys::run("ip link set lo up")?;
        sys::run(&format!("ip addr add 192.0.2.1/32 dev pod{}", ONLY_V4.ifindex))?;
        sys::run(&format!("ip addr add 2001:db8::1/128 dev pod{} nodad", ONLY_V4.ifindex))?;
        sys::run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
        wire::disable_rp_filter()?;
        translate(masquerades)?;
        let open = |pod: Pod| Wire::open(ends, &format!("peer{}", pod.ifindex));
        let (a, b, far) = (open(A)?, open(B)?, open(ONLY_V4)?);
        run(&mut Node { policed, a, b, far })
    })
}

fn plug(policed: &mut Policed<'_>, pod: Pod, link: Program) -> anyhow::Result<()> {
    let colons = |mac: Mac| mac.map(|byte| format!("{byte:02x}")).join(":");
    let (host, peer, is_uplink) =
        (format!("pod{}", pod.ifindex), format!("peer{}", pod.ifindex), pod.ifindex == ONLY_V4.ifindex);
    sys::run(&format!("ip link set {peer} netns ends address {} up", colons(pod.mac)))?;
    sys::run(&format!("ip link set {host} address {} up", colons(GATEWAY_MAC)))?;
    let (v4, v6) = if is_uplink { (FAR_V4, FAR_V6) } else { (pod.v4, pod.v6) };
    for address in [std::net::IpAddr::from(v4), std::net::IpAddr::from(v6)] {
        sys::run(&format!("ip neigh replace {address} lladdr {} dev {host} nud permanent", colons(pod.mac)))?;
        sys::run(&format!("ip route replace {address} dev {host}"))?;
    }
    if is_uplink {
        return policed.attach(link, &host);
    }
    policed.attach(Program::FromPod, &host)?;
    policed.attach(Program::ToPod, &host)
}

fn translate(masquerades: bool) -> anyhow::Result<()> {
    let v4 = std::net::Ipv4Addr::from;
    let v6 = std::net::Ipv6Addr::from;
    sys::run("nft add table inet services")?;
    sys::run("nft add chain inet services there { type nat hook prerouting priority dstnat ; }")?;
    sys::run("nft add chain inet services back { type nat hook postrouting priority srcnat ; }")?;
    for protocol in ["tcp", "udp"] {
        for (port, to, to6) in [(TO_B, B.v4, B.v6), (TO_FAR, FAR_V4, FAR_V6), (TO_A, A.v4, A.v6)] {
            let (vip, vip6, to, to6) = (v4(VIP), v6(VIP_V6), v4(to), v6(to6));
            let rule = "nft add rule inet services there";
            sys::run(&format!("{rule} ip daddr {vip} {protocol} dport {port} dnat ip to {to}:{BACKEND}"))?;
            sys::run(&format!(
                "{rule} ip6 daddr {vip6} {protocol} dport {port} dnat ip6 to [{to6}]:{BACKEND}"
            ))?;
        }
    }
    if masquerades {
        sys::run("nft add rule inet services back ct status dnat masquerade")?;
    }
    Ok(())
}

fn to_vip(port: u16, flags: u8) -> Vec<u8> {
    A.sends_v4(&v4(A.v4, VIP, TCP, &whole(A.v4.into(), VIP.into(), segment(CLIENT, port, flags))))
}

fn to_vip_v6(port: u16, flags: u8) -> Vec<u8> {
    let segment = whole(A.v6.into(), VIP_V6.into(), segment(CLIENT, port, flags));
    A.sends_v6(&Ipv6::new(A.v6, VIP_V6, TCP).with(&segment))
}

/// With its checksum, without which conntrack does not know the packet.
fn whole(from: std::net::IpAddr, to: std::net::IpAddr, segment: Vec<u8>) -> Vec<u8> {
    sealed(from, to, TCP, 16, segment)
}

/// TCP ports of a frame: source and destination.
fn ports(frame: &[u8]) -> Option<[u16; 2]> {
    let at = if frame.get(12..14)? == IPV4.to_be_bytes() { 34 } else { 54 };
    let port = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    Some([port(at)?, port(at + 2)?])
}

/// An IP packet with TCP to a port.
fn is_to(port: u16) -> impl Fn(&[u8]) -> bool {
    move |frame| {
        let is_ip = frame.get(12..14).is_some_and(|it| it == IPV4.to_be_bytes() || it == IPV6.to_be_bytes());
        is_ip && ports(frame).is_some_and(|[_, to]| to == port)
    }
}

fn egress_to(peer: Value, port: u16) -> Change {
    policy(
        "a",
        json!({"policyTypes": ["Ingress", "Egress"], "egress": [{"to": [peer], "ports": [{"port": port}, {"protocol": "UDP", "port": port}]}]}),
    )
}

// === impl Node ===

impl Node<'_, '_> {
    /// Sends a frame of pod `A`, and checks where it comes out.
    fn expect(&self, about: &str, frame: &[u8], to: Option<&Wire>) -> anyhow::Result<Vec<u8>> {
        self.a.send(frame)?;
        let wanted = is_to(BACKEND);
        let (wire, patience) = to.map_or((&self.b, SILENCE), |wire| (wire, PATIENCE));
        let found = wire.receive(patience, &wanted)?;
        let elsewhere = if to.is_none() { self.far.receive(SILENCE, &wanted)? } else { None };
        ensure!(found.is_some() == to.is_some() && elsewhere.is_none(), "{about}: {found:?} {elsewhere:?}");
        Ok(found.unwrap_or_default())
    }

    /// Drops by a policy: of what `A` sends, and of what it receives.
    fn drops(&self, pod: Pod) -> anyhow::Result<(u64, u64)> {
        Ok((
            self.policed.drops(pod, DropReason::PolicyEgress)?.0,
            self.policed.drops(pod, DropReason::PolicyIngress)?.1,
        ))
    }
}

fn add_service(node: &mut Policed<'_>) -> anyhow::Result<()> {
    let row = Peer { class: 0, flags: Peer::SERVICE };
    node.rules.add_peer(Table::A, std::net::IpAddr::from(VIP_V6).into(), row)?;
    node.rules.add_peer(Table::A, std::net::IpAddr::from(VIP).into(), row)
}

#[test]
fn a_packet_to_a_service_is_not_judged_by_the_services_address_and_its_reply_passes() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{"to": [app("b")], "ports": [{"port": 8080}]}]});
    with_policies([policy("a", rules)], |node| {
        let (there, back) =
            (v4(A.v4, VIP, TCP, &segment(1000, 80, SYN)), v4(VIP, A.v4, TCP, &segment(80, 1000, SYN | ACK)));
        node.check(&[("not known as a Service", Sends(A, there.clone()), false)])?;
        add_service(node)?;
        node.check(&[
            ("the reply before the request", Receives(A, B.ifindex, back.clone()), false),
            ("the request", Sends(A, there), true),
            ("the reply", Receives(A, B.ifindex, back.clone()), true),
            ("the reply by another way", Receives(A, super::UPLINK, back), true),
        ])?;
        let flags: Vec<_> =
            node.policy_pending.iter().filter_map(Result::ok).map(|(_, it)| it.flags).collect();
        ensure!(flags == [View::UNJUDGED], "{flags:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pod_of_the_node_behind_a_service_is_judged_by_its_own_address_and_port() {
    with_node([egress_to(app("b"), BACKEND)], false, |node| {
        let arrived = node.expect("SYN", &to_vip(TO_B, SYN), Some(&node.b))?;
        ensure!(ports(&arrived) == Some([CLIENT, BACKEND]), "{arrived:?}");
        let reply = whole(B.v4.into(), A.v4.into(), segment(BACKEND, CLIENT, SYN | ACK));
        node.b.send(&B.sends_v4(&v4(B.v4, A.v4, TCP, &reply)))?;
        let reply = node.a.receive(PATIENCE, is_to(CLIENT))?.context("no reply")?;
        ensure!(reply.get(26..30) == Some(&VIP) && ports(&reply) == Some([TO_B, CLIENT]), "{reply:?}");
        node.expect("ACK", &to_vip(TO_B, ACK), Some(&node.b))?;
        node.expect("IPv6", &to_vip_v6(TO_B, SYN), Some(&node.b))?;
        ensure!(node.drops(A)? == (0, 0));
        // Other rules: the connection ends, and no other begins.
        node.policed.apply([egress_to(app("b"), TO_B)])?;
        node.expect("a known flow", &to_vip(TO_B, ACK), None)?;
        node.expect("a new one, IPv6", &to_vip_v6(TO_B, SYN), None)?;
        ensure!(node.drops(A)? == (2, 0), "{:?}", node.policed.counters()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_host_behind_a_service_is_judged_where_packets_leave() {
    let far = json!({"ipBlock": {"cidr": "203.0.113.0/24"}});
    for link in [Program::ToLink, Program::ToTunnel] {
        let leaves = egress_to(far.clone(), BACKEND);
        with_node_by(link, [leaves], true, |node| {
            node.expect("SYN", &to_vip(TO_FAR, SYN), Some(&node.far))?;
            node.expect("IPv6, of no block", &to_vip_v6(TO_FAR, SYN), None)?;
            ensure!(node.drops(A)? == (1, 0), "{:?}", node.policed.counters()?);
            let far_v6 = json!({"ipBlock": {"cidr": "2001:db8:ff::/48"}});
            node.policed.apply([egress_to(far_v6, BACKEND)])?;
            node.expect("IPv6", &to_vip_v6(TO_FAR, SYN), Some(&node.far))?;
            node.expect("IPv4, of no block", &to_vip(TO_FAR, SYN), None)?;
            ensure!(node.drops(A)? == (2, 0), "{:?}", node.policed.counters()?);
            node.policed.apply([egress_to(far.clone(), TO_FAR)])?;
            node.expect("by the Service's port", &to_vip(TO_FAR, SYN), None)?;
            ensure!(node.drops(A)? == (3, 0), "{:?}", node.policed.counters()?);
            Ok(())
        })
        .with_context(|| format!("by {}", link.name()))
        .unwrap();
    }
}

/// The rules do not see the packet inside, and must not judge the tunnel's other end in its place.
#[test]
fn a_packet_to_a_service_that_another_programs_tunnel_carries_passes_the_uplink() {
    with_node([egress_to(json!({"ipBlock": {"cidr": "10.99.0.0/16"}}), BACKEND)], false, |node| {
        let uplink = format!("pod{}", ONLY_V4.ifindex);
        for (device, family, backend, (local, remote), service) in [
            ("other4", "ip", "10.99.0.9", ("192.0.2.1", std::net::IpAddr::from(FAR_V4)), VIP.into()),
            ("other6", "ip6", "fd00:99::9", ("2001:db8::1", FAR_V6.into()), std::net::IpAddr::from(VIP_V6)),
        ] {
            let ends = format!("local {local} remote {remote} dev {uplink}");
            sys::run(&format!("ip link add {device} type vxlan id 1 dstport {TUNNEL} {ends}"))?;
            sys::run(&format!("ip link set {device} up"))?;
            sys::run(&format!("ip route add {backend} dev {device}"))?;
            sys::run(&format!("ip neigh add {backend} lladdr 02:00:00:00:00:09 dev {device} nud permanent"))?;
            let to = if service.is_ipv4() { format!("{backend}:{BACKEND}") } else { format!("[{backend}]:{BACKEND}") };
            sys::run(&format!(
                "nft add rule inet services there {family} daddr {service} tcp dport {TO_TUNNEL} dnat {family} to {to}"
            ))?;
        }
        for frame in [to_vip(TO_TUNNEL, SYN), to_vip_v6(TO_TUNNEL, SYN)] {
            node.a.send(&frame)?;
            // The tunnel's device sends packets of its own, too.
            let is_outer = |frame: &[u8]| {
                let headers = if frame.get(12..14) == Some(&IPV4.to_be_bytes()) { 50 } else { 70 };
                is_to(TUNNEL)(frame) && frame.get(headers..).is_some_and(is_to(BACKEND))
            };
            let outer = node.far.receive(PATIENCE, is_outer)?;
            ensure!(outer.is_some(), "{:?}", node.policed.counters()?);
        }
        // What no tunnel carries is judged as before.
        node.expect("to another host", &to_vip(TO_FAR, SYN), None)?;
        ensure!(node.drops(A)? == (1, 0), "{:?}", node.policed.counters()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_flow_to_a_port_that_a_service_gets_later_is_judged_by_the_backend() {
    // Any peer, at the Service's port only.
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{"ports": [{"port": LATER}]}]});
    with_node([policy("a", rules)], false, |node| {
        let (v4, v6) = (std::net::Ipv4Addr::from, std::net::Ipv6Addr::from);
        for (vip, far) in [(v4(VIP).into(), v4(FAR_V4).into()), (v6(VIP_V6).into(), v6(FAR_V6).into())]
            as [(std::net::IpAddr, std::net::IpAddr); 2]
        {
            sys::run(&format!("ip route add {vip} via {far} dev pod{} onlink", ONLY_V4.ifindex))?;
        }
        let (syn, syn_v6) = (to_vip(LATER, SYN), to_vip_v6(LATER, SYN));
        for _ in 0..2 {
            for frame in [&syn, &syn_v6] {
                node.a.send(frame)?;
                let left = node.far.receive(PATIENCE, is_to(LATER))?;
                ensure!(left.is_some(), "not translated, by the uplink: {:?}", node.policed.counters()?);
            }
        }
        let rule = "nft add rule inet services there";
        sys::run(&format!(
            "{rule} ip daddr {} tcp dport {LATER} dnat ip to {}:{BACKEND}",
            v4(VIP),
            v4(B.v4)
        ))?;
        let (vip, b) = (v6(VIP_V6), v6(B.v6));
        sys::run(&format!("{rule} ip6 daddr {vip} tcp dport {LATER} dnat ip6 to [{b}]:{BACKEND}"))?;
        for family in ["ipv4", "ipv6"] {
            sys::run(&format!("conntrack -D -f {family} -p tcp"))?;
        }
        node.expect("translated now", &syn, None)?;
        node.expect("translated now, IPv6", &syn_v6, None)?;
        ensure!(node.drops(A)? == (2, 0), "{:?}", node.policed.counters()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_flow_older_than_its_service_is_judged_afterwards_also_if_a_reply_comes_first() {
    let rules = json!({"policyTypes": ["Ingress", "Egress"], "egress": [{}]});
    with_policies([policy("a", rules)], |node| {
        let (there, back) =
            (v4(A.v4, VIP, TCP, &segment(1000, 80, SYN)), v4(VIP, A.v4, TCP, &segment(80, 1000, SYN | ACK)));
        node.check(&[("the request, judged by the address", Sends(A, there), true)])?;
        add_service(node)?;
        node.change(A, |subject| subject.epoch += 1)?;
        node.check(&[("the reply", Receives(A, super::UPLINK, back), true)])?;
        let flags: Vec<_> =
            node.policy_pending.iter().filter_map(Result::ok).map(|(_, it)| it.flags).collect();
        ensure!(flags == [View::UNJUDGED], "{flags:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_process_of_the_node_behind_a_service_is_reached_whatever_denies_the_node() {
    let all = json!({"networks": ["0.0.0.0/0", "::/0"]});
    let denies = json!({"egress": [{"name": "all", "action": "Deny", "to": [all]}]});
    with_node([cluster_policy("a", "Admin", denies)], false, |node| {
        let datagram = |to: IpAddr, port| {
            let of = |from: IpAddr| sealed(from, to, UDP, 6, udp(CLIENT, port, b"datagram"));
            match to {
                IpAddr::V4(to) => A.sends_v4(&v4(A.v4, to.octets(), UDP, &of(A.v4.into()))),
                IpAddr::V6(to) => A.sends_v6(&Ipv6::new(A.v6, to.octets(), UDP).with(&of(A.v6.into()))),
            }
        };
        let families = [("ip", VIP.into(), NODE_V4.into()), ("ip6", VIP_V6.into(), NODE_V6.into())];
        for (family, service, own) in families as [(_, IpAddr, IpAddr); 2] {
            let to = SocketAddr::new(own, BACKEND);
            let matching = format!("{family} daddr {service} udp dport {LATER}");
            sys::run(&format!("nft add rule inet services there {matching} dnat {family} to {to}"))?;
            let process = UdpSocket::bind(to)?;
            process.set_read_timeout(Some(SILENCE))?;
            node.a.send(&datagram(own, BACKEND))?;
            ensure!(process.recv(&mut [0; 64]).is_err(), "a rule denies the address {own}");
            process.set_read_timeout(Some(PATIENCE))?;
            node.a.send(&datagram(service, LATER))?;
            ensure!(process.recv(&mut [0; 64]).is_ok(), "{service}: {:?}", node.policed.counters()?);
        }
        ensure!(node.drops(A)? == (2, 0), "{:?}", node.policed.counters()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_receiver_behind_a_service_knows_the_sender_also_after_masquerading() {
    for masquerades in [false, true] {
        let from =
            |name| policy("b", json!({"ingress": [{"from": [app(name)], "ports": [{"port": BACKEND}]}]}));
        with_node([from("a")], masquerades, |node| {
            let arrived = node.expect("the peer", &to_vip(TO_B, SYN), Some(&node.b))?;
            ensure!((arrived.get(26..30) == Some(&A.v4)) != masquerades, "{arrived:?}");
            node.policed.apply([from("c")])?;
            node.expect("no longer", &to_vip(TO_B, SYN), None)?;
            node.expect("no longer, IPv6", &to_vip_v6(TO_B, SYN), None)?;
            ensure!(node.drops(A)? == (0, 0) && node.drops(B)? == (0, 2), "{:?}", node.policed.counters()?);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_pod_reaches_itself_through_a_service() {
    for masquerades in [false, true] {
        with_node([policy("a", json!({"policyTypes": ["Ingress", "Egress"]}))], masquerades, |node| {
            node.expect("to itself", &to_vip(TO_A, SYN), Some(&node.a))?;
            node.expect("to another pod", &to_vip(TO_B, SYN), None)?;
            ensure!(node.drops(A)? == (1, 0), "{:?}", node.policed.counters()?);
            Ok(())
        })
        .unwrap();
    }
}

/// The stack puts fragments together to translate them, and sends fragments again.
#[test]
fn fragments_through_a_service_are_judged_after_the_translation() {
    for (port, passes) in [(BACKEND, true), (TO_B, false)] {
        with_node([egress_to(app("b"), port)], false, |node| {
            let datagram = |from: std::net::IpAddr, to: std::net::IpAddr| {
                sealed(from, to, UDP, 6, udp(CLIENT, TO_B, &data(1600)))
            };
            let (first, later) = (0..1000, 1000..1608);
            let whole = datagram(A.v4.into(), VIP.into());
            let part = |fragment, range: std::ops::Range<usize>| {
                let ip = Ipv4 { fragment, ..Ipv4::new(A.v4, VIP, UDP) };
                A.sends_v4(&ip.with(whole.get(range).unwrap_or_default()))
            };
            node.a.send(&part(Ipv4::MORE_FRAGMENTS, first.clone()))?;
            node.a.send(&part(125, later.clone()))?;
            let is_of = |source: Vec<u8>, at: usize| {
                move |frame: &[u8]| frame.get(at..at + source.len()) == Some(&source)
            };
            let patience = if passes { PATIENCE } else { SILENCE };
            for _ in 0..2 {
                let got = node.b.receive(patience, is_of(A.v4.to_vec(), 26))?;
                ensure!(got.is_some() == passes, "port {port}: {got:?}");
            }
            let whole = datagram(A.v6.into(), VIP_V6.into());
            let part = |at: u16, more, range: std::ops::Range<usize>| {
                let payload = fragment(UDP, at, more, whole.get(range).unwrap_or_default());
                A.sends_v6(&Ipv6::new(A.v6, VIP_V6, FRAGMENT).with(&payload))
            };
            node.a.send(&part(0, true, first))?;
            node.a.send(&part(125, false, later))?;
            for _ in 0..2 {
                let got = node.b.receive(patience, is_of(A.v6.to_vec(), 22))?;
                ensure!(got.is_some() == passes, "IPv6, port {port}: {got:?}");
            }
            Ok(())
        })
        .unwrap();
    }
}
