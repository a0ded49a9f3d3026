//! The tunnel between nodes: what another node sends arrives, and what a forger sends is refused and counted.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    time::Duration,
};

use agent_common::{DropReason, Drops, NodeEntry, NodeKey, TUNNEL_PORT, TUNNEL_VNI, Traffic};
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V4, NODE_V6, Node, PINS, POD_V4, POD_V6, on_node},
    packet::{
        self, ARP, DESTINATION_OPTIONS, FRAGMENT, IPV4, IPV6, Ipv4, Ipv6, Mac, QINQ, TCP, UDP, VLAN, data,
        extension, fragment, tagged, udp,
    },
    pod::Pod,
    program::{Log, Program, Programs},
    sys,
    wire::{self, Wire},
};

/// A node's end of the tunnel and of the uplink, with the programs attached and a pod behind; and outside, two
/// other nodes and a stranger.
struct Underlay<'a> {
    node: &'a Node,
    pod: &'a Pod,
    programs: Programs,
    /// Of the tunnel device and of the uplink.
    links: [u32; 2],
    /// The pod's servers, of both families.
    servers: [UdpSocket; 2],
}

/// Addresses of one family.
struct Family {
    pod: IpAddr,
    /// The node under test: its address, and one that it does not report.
    node: IpAddr,
    unreported: IpAddr,
    /// The node that sends, and a pod of it.
    sender: IpAddr,
    senders_pod: IpAddr,
    /// A third node, and a pod of it.
    third: IpAddr,
    thirds_pod: IpAddr,
    /// Hosts that are no nodes: on the wire, and far away.
    stranger: IpAddr,
    far: IpAddr,
    martians: Vec<IpAddr>,
    groups: Vec<IpAddr>,
}

const OUTSIDE: &str = "/run/netns/outside";
const TUNNEL: &str = "tunnel";
const CLIENT: u16 = 40000;
const SERVER: u16 = 8080;
const LIMIT: Duration = Duration::from_secs(5);
/// Nobody's MAC addresses.
const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8]];

fn ip(address: &str) -> anyhow::Result<IpAddr> {
    address.parse().with_context(|| address.to_owned())
}

fn ips(addresses: &[&str]) -> anyhow::Result<Vec<IpAddr>> {
    addresses.iter().map(|address| ip(address)).collect()
}

fn with_underlay(run: impl FnOnce(&mut Underlay<'_>) -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
    on_node(|node| {
        // As if the agent knew that the other nodes' pods get no address of this node.
        let kept = ["--non-masquerade-cidr", "10.244.0.0/16", "--non-masquerade-cidr", "fd00:10:244::/48"];
        let flags = ["--standalone", "--pod-cidr", POD_V4, "--pod-cidr", POD_V6];
        node.start_agent_with(&[&flags[..], &kept].concat())?;
        let pod = node.attach("a")?;
        for line in [
            format!("ip link add {TUNNEL} type vxlan external dstport {TUNNEL_PORT} nolearning"),
            format!("ip link set {TUNNEL} arp off up"),
            "ip addr add 192.0.2.77/24 dev uplink".to_owned(),
            "ip addr add 2001:db8::77/64 dev uplink nodad".to_owned(),
        ] {
            sys::run(&line)?;
        }
        for host in [2, 3, 9] {
            sys::run(&format!("ip -n outside addr add 192.0.2.{host}/24 dev eth0"))?;
            sys::run(&format!("ip -n outside addr add 2001:db8::{host}/64 dev eth0 nodad"))?;
        }
        wire::disable_rp_filter()?;
        let mut programs = Programs::load_pinned(PINS)?;
        fill_nodes(&mut programs, 1)?;
        let links = [(TUNNEL, Program::FromTunnel), ("uplink", Program::FromUplink)];
        let links = links.map(|(name, program)| {
            let ifindex = nix::net::if_::if_nametoindex(name)?;
            programs.start_counting_link(ifindex)?;
            programs.attach(program, name)?;
            anyhow::Ok(ifindex)
        });
        let [Ok(tunnel), Ok(uplink)] = links else { anyhow::bail!("cannot attach: {links:?}") };
        let server = |address: Option<&IpAddr>| {
            let address = SocketAddr::new(*address.context("no address")?, SERVER);
            let server = sys::bind_in(pod.path(), address, UdpSocket::bind)?;
            server.set_read_timeout(Some(LIMIT))?;
            anyhow::Ok(server)
        };
        let servers = [server(pod.addresses.first())?, server(pod.addresses.get(1))?];
        run(&mut Underlay { node, pod: &pod, programs, links: [tunnel, uplink], servers })
    })
}

/// Fills `NODES` as the agent of a node does.
fn fill_nodes(programs: &mut Programs, own: u32) -> anyhow::Result<()> {
    const ADDRESS: u32 = NodeEntry::ADDRESS;
    for (address, len, id, flags) in [
        (NODE_V4, 32, 1, ADDRESS),
        (NODE_V6, 128, 1, ADDRESS),
        ("10.244.0.0", 24, 1, 0),
        ("fd00:10:244::", 64, 1, 0),
        ("192.0.2.2", 32, 2, ADDRESS),
        ("2001:db8::2", 128, 2, ADDRESS),
        ("10.244.2.0", 24, 2, 0),
        ("fd00:10:244:2::", 64, 2, 0),
        ("192.0.2.3", 32, 3, ADDRESS),
        ("2001:db8::3", 128, 3, ADDRESS),
        ("10.244.3.0", 24, 3, 0),
        ("fd00:10:244:3::", 64, 3, 0),
    ] {
        let flags = if id == own { flags | NodeEntry::OWN } else { flags };
        programs.add_node(NodeKey::new(ip(address)?, len), NodeEntry { id, flags, address: [0; 16] })?;
    }
    Ok(())
}

fn vxlan(vni: u32, frame: &[u8]) -> Vec<u8> {
    // RFC 7348, 5: the flag "VNI is valid".
    [&[8, 0, 0, 0], (vni << 8).to_be_bytes().as_slice(), frame].concat()
}

fn framed(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let [destination, source] = MACS;
    packet::frame(destination, source, ethertype, packet)
}

/// A frame with an IP packet.
fn frame(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            framed(IPV4, &Ipv4::new(source.octets(), destination.octets(), protocol).with(payload))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            framed(IPV6, &Ipv6::new(source.octets(), destination.octets(), protocol).with(payload))
        }
        _ => Vec::new(),
    }
}

/// A datagram to the server's port, with a correct checksum.
fn datagram(source: IpAddr, destination: IpAddr, data: &[u8]) -> Vec<u8> {
    packet::sealed(source, destination, UDP, 6, udp(CLIENT, SERVER, data))
}

fn query(source: IpAddr, destination: IpAddr) -> Vec<u8> {
    frame(source, destination, UDP, &datagram(source, destination, b"query"))
}

// === impl Underlay ===

impl Underlay<'_> {
    fn families(&self) -> anyhow::Result<[Family; 2]> {
        let mut pods = self.pod.addresses.iter().copied();
        let mut pod = || pods.next().context("no address");
        Ok([
            Family {
                pod: pod()?,
                node: ip(NODE_V4)?,
                unreported: ip("192.0.2.77")?,
                sender: ip("192.0.2.2")?,
                senders_pod: ip("10.244.2.5")?,
                third: ip("192.0.2.3")?,
                thirds_pod: ip("10.244.3.5")?,
                stranger: ip("192.0.2.9")?,
                far: ip("203.0.113.9")?,
                martians: ips(&["127.0.0.1", "127.9.9.9", "0.0.0.0", "0.1.2.3"])?,
                groups: ips(&["224.0.0.1", "239.1.2.3", "255.255.255.255", "240.0.0.1"])?,
            },
            Family {
                pod: pod()?,
                node: ip(NODE_V6)?,
                unreported: ip("2001:db8::77")?,
                sender: ip("2001:db8::2")?,
                senders_pod: ip("fd00:10:244:2::5")?,
                third: ip("2001:db8::3")?,
                thirds_pod: ip("fd00:10:244:3::5")?,
                stranger: ip("2001:db8::9")?,
                far: ip("2001:db8:ff::9")?,
                martians: ips(&["::1", "::", "::ffff:10.244.0.5", "::10.244.0.5"])?,
                groups: ips(&["ff02::1", "ff05::2", "ff0e::1"])?,
            },
        ])
    }

    fn counted(&self, link: usize) -> anyhow::Result<Traffic> {
        let links = self.programs.links()?;
        Ok(self.links.get(link).and_then(|it| links.get(it)).copied().unwrap_or_default())
    }

    /// Checks that a link counts `drops` packets for `reason`, or one packet that passes, and nothing else.
    fn expect(
        &self,
        about: &str,
        link: usize,
        (reason, len): (Option<DropReason>, usize),
        send: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut expected = self.counted(link)?;
        match reason {
            Some(reason) => expected.drops.add(reason, 1),
            None => {
                expected.packets += 1;
                expected.bytes += len as u64;
            }
        }
        send().with_context(|| about.to_owned())?;
        let is_counted = sys::wait_until(about, LIMIT, || Ok(self.counted(link)? == expected));
        let found = self.counted(link)?;
        is_counted.with_context(|| format!("expected {expected:?}, found {found:?}"))
    }

    /// Sends a frame through the tunnel as a host outside does.
    fn send(&self, [from, to]: [IpAddr; 2], vni: u32, frame: &[u8]) -> anyhow::Result<()> {
        let port = SocketAddr::new(to, TUNNEL_PORT);
        let socket = sys::bind_in(Path::new(OUTSIDE), SocketAddr::new(from, 0), UdpSocket::bind)?;
        Ok(socket.send_to(&vxlan(vni, frame), port).map(drop)?)
    }

    /// A frame from the sending node, through either family.
    fn expect_from_sender(
        &self,
        about: &str,
        frame: &[u8],
        reason: Option<DropReason>,
    ) -> anyhow::Result<()> {
        for outer in self.families()? {
            let about = format!("{about}, from {}", outer.sender);
            self.expect(&about, 0, (reason, frame.len()), || {
                self.send([outer.sender, outer.node], TUNNEL_VNI, frame)
            })?;
        }
        Ok(())
    }

    fn expect_no_delivery(&self) -> anyhow::Result<()> {
        for server in &self.servers {
            server.set_nonblocking(true)?;
            let received = server.recv(&mut [0; 1500]);
            server.set_nonblocking(false)?;
            ensure!(
                received.is_err_and(|it| it.kind() == ErrorKind::WouldBlock),
                "a forged packet was delivered"
            );
        }
        Ok(())
    }

    fn receive(&self, family: usize) -> anyhow::Result<(Vec<u8>, IpAddr)> {
        let mut room = vec![0; 4000];
        let server = self.servers.get(family).context("no server")?;
        let (len, from) = server.recv_from(&mut room).context("nothing arrived at the pod")?;
        room.truncate(len);
        Ok((room, from.ip()))
    }
}

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
            // With the outer source, because both ends have several addresses; and with a checksum, without which
            // the kernel refuses UDP over IPv6.
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
fn only_nodes_may_send_and_only_to_the_nodes_own_address() {
    with_underlay(|underlay| {
        let outer_is = |about: &str, ends, vni, frame: &[u8]| {
            underlay.expect(about, 0, (Some(DropReason::TunnelOuter), 0), || underlay.send(ends, vni, frame))
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
fn nobody_outside_sends_as_the_node_itself() {
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
            ("more headers than are looked at", frame(v6.senders_pod, v6.pod, DESTINATION_OPTIONS, &deep)),
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

#[test]
fn a_pod_cannot_send_into_the_tunnel() {
    with_underlay(|underlay| {
        let dropped =
            || anyhow::Ok(underlay.node.drops(underlay.pod)?.get("tunnel").copied().unwrap_or_default());
        for family in underlay.families()? {
            let frame = query(family.senders_pod, family.pod);
            for node in [family.node, family.sender] {
                // In one datagram, and in fragments, of which the first one is dropped.
                for payload in
                    [vxlan(TUNNEL_VNI, &frame), vxlan(TUNNEL_VNI, &[frame.clone(), data(4000)].concat())]
                {
                    let before: u64 = dropped()?;
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
        // As the pod itself, which has not sent it.
        let forged = query(inner.pod, inner.pod);
        underlay.expect("forged", 0, (Some(DropReason::TunnelInner), 0), || {
            underlay.send([inner.sender, inner.node], TUNNEL_VNI, &forged)
        })?;
        let mut shown = String::new();
        sys::wait_until("a record", LIMIT, || {
            shown = underlay.node.ctl(&["drops", "-o", "json"])?;
            Ok(shown.contains("tunnel_inner"))
        })?;
        let record: serde_json::Value =
            serde_json::from_str(shown.lines().find(|it| it.contains("tunnel_inner")).context("no record")?)?;
        let text =
            |pointer: &str| record.pointer(pointer).and_then(serde_json::Value::as_str).unwrap_or_default();
        ensure!(text("/flow/source/pod_name").is_empty(), "{record:#}");
        ensure!(text("/flow/destination/pod_name") == "a", "{record:#}");
        ensure!(text("/flow/traffic_direction") == "INGRESS", "{record:#}");

        let status: serde_json::Value = serde_json::from_str(&underlay.node.ctl(&["status", "-o", "json"])?)?;
        let links = status.get("links").and_then(serde_json::Value::as_array).context("no links")?;
        let tunnel = links.iter().find(|it| it.get("interface").is_some_and(|name| name == TUNNEL));
        let drops =
            tunnel.and_then(|it| it.pointer("/drops/tunnel_inner")).and_then(serde_json::Value::as_u64);
        ensure!(drops == Some(1), "{status:#}");
        let of = |reason: &str| {
            underlay
                .node
                .count(&format!("ferrule_link_drops_total{{interface=\"{TUNNEL}\",reason=\"{reason}\"}}"))
        };
        ensure!(of("tunnel_inner")? == 1.0 && of("tunnel_outer")? == 0.0);
        Ok(())
    })
    .unwrap();
}
