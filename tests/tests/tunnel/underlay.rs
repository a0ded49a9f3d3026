//! A node with the tunnel and the uplink, and other hosts on the wire.

use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    path::Path,
    time::Duration,
};

use agent_common::{
    DropReason, EndpointKey, NodeEntry, NodeKey, TUNNEL_PORT, TUNNEL_VNI, Traffic, UnderlayEntry,
};
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V4, NODE_V6, Node, PINS, POD_V4, POD_V6, on_node},
    packet::{self, IPV4, IPV6, Ipv4, Ipv6, Mac, UDP, udp},
    pod::Pod,
    program::{Program, Programs},
    sys,
    wire::{self, Wire},
};
use nix::net::if_::if_nametoindex;

/// A node's end of the tunnel and of the uplink, with the programs attached and a pod behind. Two other nodes
/// and a stranger are outside.
pub struct Underlay<'a> {
    /// Without a running agent.
    pub node: &'a mut Node,
    pub pod: &'a Pod,
    /// Of the pod's host interface.
    pub host_ifindex: u32,
    pub programs: Programs,
    /// Of the tunnel device and of the uplink.
    links: [u32; 2],
    /// The pod's servers, of both families.
    servers: [UdpSocket; 2],
}

/// Addresses of one family.
pub struct Family {
    pub pod: IpAddr,
    /// The node under test: its address, and one that it does not report.
    pub node: IpAddr,
    pub unreported: IpAddr,
    /// The node that sends, and a pod of it.
    pub sender: IpAddr,
    pub senders_pod: IpAddr,
    /// A third node, and a pod of it.
    pub third: IpAddr,
    pub thirds_pod: IpAddr,
    /// Hosts that are no nodes: on the wire, and far away.
    pub stranger: IpAddr,
    pub far: IpAddr,
    pub martians: Vec<IpAddr>,
    pub groups: Vec<IpAddr>,
}

pub const OUTSIDE: &str = "/run/netns/outside";
pub const TUNNEL: &str = "tunnel";
pub const CLIENT: u16 = 40000;
const SERVER: u16 = 8080;
pub const LIMIT: Duration = Duration::from_secs(5);
/// MAC addresses that no interface has.
const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8]];

pub fn ip(address: &str) -> anyhow::Result<IpAddr> {
    address.parse().with_context(|| address.to_owned())
}

fn ips(addresses: &[&str]) -> anyhow::Result<Vec<IpAddr>> {
    addresses.iter().map(|address| ip(address)).collect()
}

pub fn with_underlay(run: impl FnOnce(&mut Underlay<'_>) -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
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
        let host_ifindex = node.host_ifindex(&pod)?;
        // From here on, the agent's filters and maps, which it would keep as it wants them.
        node.kill_agent()?;
        let mut programs = Programs::load_pinned(PINS)?;
        fill_nodes(&mut programs, 1)?;
        let links = [if_nametoindex(TUNNEL)?, if_nametoindex("uplink")?];
        links.into_iter().try_for_each(|link| programs.start_counting_link(link))?;
        unpack_at_uplink(&mut programs, links)?;
        // The agent has loaded its programs without a tunnel.
        sys::run("tc qdisc del dev uplink clsact")?;
        programs.attach(Program::FromUplink, "uplink")?;
        programs.attach(Program::ToLink, "uplink")?;
        programs.attach(Program::FromTunnel, TUNNEL)?;
        // Or the uplink refuses what the tunnel sends.
        programs.attach(Program::ToTunnel, TUNNEL)?;
        let server = |address: Option<&IpAddr>| {
            let address = SocketAddr::new(*address.context("no address")?, SERVER);
            let server = sys::bind_in(pod.path(), address, UdpSocket::bind)?;
            server.set_read_timeout(Some(LIMIT))?;
            anyhow::Ok(server)
        };
        let servers = [server(pod.addresses.first())?, server(pod.addresses.get(1))?];
        run(&mut Underlay { node, pod: &pod, host_ifindex, programs, links, servers })
    })
}

/// Fills `NODES` as the agent of a node does.
pub fn fill_nodes(programs: &mut Programs, own: u32) -> anyhow::Result<()> {
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
        programs
            .add_node(NodeKey::new(ip(address)?, len), NodeEntry { id, flags, ..NodeEntry::default() })?;
    }
    programs.index_nodes()
}

/// Lets `from_uplink` unpack what the two other nodes send over IPv4.
fn unpack_at_uplink(programs: &mut Programs, [device, uplink]: [u32; 2]) -> anyhow::Result<()> {
    let source = NODE_V4.parse::<Ipv4Addr>()?.octets();
    let flags = NodeEntry::VXLAN | NodeEntry::FAST;
    for (id, remote, v4, v6) in [
        (2, [192, 0, 2, 2], "10.244.2.0", "fd00:10:244:2::"),
        (3, [192, 0, 2, 3], "10.244.3.0", "fd00:10:244:3::"),
    ] {
        let address = EndpointKey::ipv4(remote).address;
        for (range, len) in [(v4, 24), (v6, 64)] {
            let row = NodeEntry { id, flags, address, ifindex: device, mtu: 1450 };
            programs.add_node(NodeKey::new(ip(range)?, len), row)?;
        }
        programs.add_underlay(id, UnderlayEntry { ifindex: uplink, next: remote, source, remote, device })?;
    }
    programs.index_nodes()
}

pub fn vxlan(vni: u32, frame: &[u8]) -> Vec<u8> {
    // RFC 7348, 5: the flag "VNI is valid".
    [&[8, 0, 0, 0], (vni << 8).to_be_bytes().as_slice(), frame].concat()
}

pub fn framed(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let [destination, source] = MACS;
    packet::frame(destination, source, ethertype, packet)
}

/// A frame with an IP packet.
pub fn frame(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
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
pub fn datagram(source: IpAddr, destination: IpAddr, data: &[u8]) -> Vec<u8> {
    packet::sealed(source, destination, UDP, 6, udp(CLIENT, SERVER, data))
}

pub fn query(source: IpAddr, destination: IpAddr) -> Vec<u8> {
    frame(source, destination, UDP, &datagram(source, destination, b"query"))
}

// === impl Underlay ===

impl Underlay<'_> {
    pub fn families(&self) -> anyhow::Result<[Family; 2]> {
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

    pub fn counted(&self, link: usize) -> anyhow::Result<Traffic> {
        let links = self.programs.links()?;
        Ok(self.links.get(link).and_then(|it| links.get(it)).copied().unwrap_or_default())
    }

    /// Checks that a link counts `drops` packets for `reason`, or one packet that passes, and nothing else.
    pub fn expect(
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
    pub fn send(&self, [from, to]: [IpAddr; 2], vni: u32, frame: &[u8]) -> anyhow::Result<()> {
        let port = SocketAddr::new(to, TUNNEL_PORT);
        let socket = sys::bind_in(Path::new(OUTSIDE), SocketAddr::new(from, 0), UdpSocket::bind)?;
        Ok(socket.send_to(&vxlan(vni, frame), port).map(drop)?)
    }

    /// As [`Self::send`] over IPv4, without a checksum of UDP, as the programs of other nodes do.
    pub fn send_plain(&self, [from, to]: [IpAddr; 2], vni: u32, frame: &[u8]) -> anyhow::Result<()> {
        let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { return Ok(()) };
        let datagram = udp(50000, TUNNEL_PORT, &vxlan(vni, frame));
        let packet = Ipv4::new(from.octets(), to.octets(), UDP).with(&datagram);
        let outside = Path::new(OUTSIDE);
        let source = sys::in_netns(outside, || wire::mac("eth0"))?;
        let frame = packet::frame(wire::mac("uplink")?, source, IPV4, &packet);
        Wire::open(outside, "eth0")?.send(&frame)
    }

    /// A frame from the sending node, through either family.
    pub fn expect_from_sender(
        &self,
        about: &str,
        frame: &[u8],
        reason: Option<DropReason>,
    ) -> anyhow::Result<()> {
        for outer in self.families()? {
            let about = format!("{about}, from {}", outer.sender);
            let ends = [outer.sender, outer.node];
            self.expect(&about, 0, (reason, frame.len()), || self.send(ends, TUNNEL_VNI, frame))?;
            if outer.node.is_ipv4() {
                let about = format!("{about}, without a checksum");
                self.expect(&about, 0, (reason, frame.len()), || self.send_plain(ends, TUNNEL_VNI, frame))?;
            }
        }
        Ok(())
    }

    pub fn expect_no_delivery(&self) -> anyhow::Result<()> {
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

    pub fn receive(&self, family: usize) -> anyhow::Result<(Vec<u8>, IpAddr)> {
        let mut room = vec![0; 4000];
        let server = self.servers.get(family).context("no server")?;
        let (len, from) = server.recv_from(&mut room).context("nothing arrived at the pod")?;
        room.truncate(len);
        Ok((room, from.ip()))
    }
}
