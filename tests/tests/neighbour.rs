//! A neighbour on the wire sends packets with the addresses of the node's pods: the filter of the uplink
//! drops them, and so does the filter of the receiving pod where an interface has no such filter.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{Node, PINS, with_agent_without_healing},
    packet::{self, FRAGMENT, IPV4, IPV6, Ipv4, Ipv6, Mac, TCP, UDP},
    pod::Pod,
    sys,
    wire::{self, Wire},
};

const CLIENT: u16 = 40000;
const SERVER: u16 = 8080;
const TIMEOUT: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(200);
/// Addresses outside of the cluster.
const FAR_V4: [u8; 4] = [203, 0, 113, 9];
const FAR_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

/// Where forged packets are dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Uplink,
    Pod,
}

/// The neighbour's end of the uplink.
struct Neighbour {
    dropped_at: Place,
    wire: Wire,
    own: Mac,
    node: Mac,
}

/// Runs `run` on a node that accepts any source address from the uplink, and drops packets that conntrack
/// considers invalid; once as it is, and once without the filter of the uplink.
fn with_neighbour(
    run: impl Fn(&Node, &Neighbour, &Pod, &Pod) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    [Place::Uplink, Place::Pod].into_iter().try_for_each(|place| with_neighbour_at(place, &run))
}

fn with_neighbour_at(
    dropped_at: Place,
    run: &(impl Fn(&Node, &Neighbour, &Pod, &Pod) -> anyhow::Result<()> + Sync),
) -> anyhow::Result<()> {
    with_agent_without_healing(|node| {
        sys::wait_until("the uplink has its filter", TIMEOUT, || {
            Ok(sys::run("tc filter show dev uplink ingress")?.contains("from_uplink"))
        })?;
        if dropped_at == Place::Pod {
            sys::run("tc filter del dev uplink ingress pref 70")?;
        }
        let outside = Path::new("/run/netns/outside");
        let (wire, node_mac) = (Wire::open(outside, "eth0")?, wire::mac("uplink")?);
        let neighbour = Neighbour {
            dropped_at,
            wire,
            own: sys::in_netns(outside, || wire::mac("eth0"))?,
            node: node_mac,
        };
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        wire::disable_rp_filter()?;
        std::fs::write(
            "/run/host.nft",
            "table inet host {\nchain forward {\ntype filter hook forward priority filter;\n\
             ct state invalid counter drop\n}\n}\n",
        )?;
        sys::run("nft -f /run/host.nft")?;
        run(node, &neighbour, &a, &b)
    })
}

// === impl Neighbour ===

impl Neighbour {
    /// Sends a packet of either family to the node.
    fn send(&self, source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> anyhow::Result<()> {
        let (ethertype, packet) = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                (IPV4, Ipv4::new(source.octets(), destination.octets(), protocol).with(payload))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                (IPV6, Ipv6::new(source.octets(), destination.octets(), protocol).with(payload))
            }
            _ => anyhow::bail!("{source} and {destination} are of different families"),
        };
        self.wire.send(&packet::frame(self.node, self.own, ethertype, &packet))
    }
}

/// Pairs of addresses of the same family.
fn pairs<'a>(a: &'a Pod, b: &'a Pod) -> impl Iterator<Item = (IpAddr, IpAddr)> + 'a {
    a.addresses.iter().copied().zip(b.addresses.iter().copied())
}

fn far(address: IpAddr) -> IpAddr {
    if address.is_ipv4() { FAR_V4.into() } else { FAR_V6.into() }
}

/// A datagram with a correct checksum.
fn datagram(source: IpAddr, destination: IpAddr, data: &[u8]) -> Vec<u8> {
    packet::sealed(source, destination, UDP, 6, packet::udp(CLIENT, SERVER, data))
}

/// A SYN segment with a correct checksum, without which conntrack considers the segment invalid.
fn syn(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let segment = packet::tcp(source.port(), destination.port(), b"");
    packet::sealed(source.ip(), destination.ip(), TCP, 16, segment)
}

/// Whether one forged packet for a pod was dropped, and counted.
fn is_dropped(node: &Node, neighbour: &Neighbour, pod: &Pod, address: IpAddr) -> anyhow::Result<bool> {
    Ok(spoofed(node, neighbour, pod, address)? == 1)
}

fn spoofed(node: &Node, neighbour: &Neighbour, pod: &Pod, address: IpAddr) -> anyhow::Result<u64> {
    let reason = if address.is_ipv4() { "spoofed_ipv4" } else { "spoofed_ipv6" };
    match neighbour.dropped_at {
        Place::Pod => Ok(node.drops(pod)?.get(reason).copied().unwrap_or_default()),
        Place::Uplink => {
            let (_, metrics) = node.http("/metrics")?;
            let name = format!("ferrule_link_drops_total{{interface=\"uplink\",reason=\"{reason}\"}} ");
            let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
            Ok(line.map_or(Ok(0), str::parse)?)
        }
    }
}

fn stack_flows() -> anyhow::Result<usize> {
    let dump = sys::run(&format!("bpftool -j map dump pinned {PINS}/STACK_FLOWS"))?;
    let dump: Vec<serde_json::Value> = serde_json::from_str(&dump)?;
    Ok(dump.len())
}

#[test]
fn neighbour_cannot_send_as_a_pod_of_the_node() {
    with_neighbour(|node, neighbour, a, b| {
        for (a_address, b_address) in pairs(a, b) {
            let server = sys::bind_in(b.path(), SocketAddr::new(b_address, SERVER), UdpSocket::bind)?;
            server.set_read_timeout(Some(SHORT))?;
            let mut room = [0; 4000];
            let far = far(a_address);
            neighbour.send(far, b_address, UDP, &datagram(far, b_address, b"genuine"))?;
            let (len, from) = server.recv_from(&mut room).context("from far away")?;
            ensure!(room.get(..len) == Some(b"genuine") && from.ip() == far);

            let forged = datagram(a_address, b_address, b"forged");
            neighbour.send(a_address, b_address, UDP, &forged)?;
            ensure!(server.recv(&mut room).is_err(), "the forged packet was delivered");
            ensure!(is_dropped(node, neighbour, b, b_address)?, "{:?}", node.drops(b)?);
            ensure!(stack_flows()? == 0, "the forged packet is recorded as a flow");
        }
        Ok(())
    })
    .unwrap();
}

/// conntrack reassembles the fragments, and the kernel fragments the packet again: those fragments have lost
/// the interface by which the packet came.
#[test]
fn neighbour_cannot_send_fragments_as_a_pod_of_the_node() {
    with_neighbour(|node, neighbour, a, b| {
        let (_, v6) = (a.addresses.first(), a.addresses.get(1).copied().context("no IPv6 address")?);
        let (_, b_address) = pairs(a, b).find(|(it, _)| *it == v6).context("no pair")?;
        let server = sys::bind_in(b.path(), SocketAddr::new(b_address, SERVER), UdpSocket::bind)?;
        server.set_read_timeout(Some(SHORT))?;
        for (source, passes) in [(far(v6), true), (v6, false)] {
            let whole = datagram(source, b_address, &packet::data(2000));
            let (first, second) = whole.split_at(1200);
            for (at, more, part) in [(0, true, first), (150, false, second)] {
                neighbour.send(source, b_address, FRAGMENT, &packet::fragment(UDP, at, more, part))?;
            }
            let arrived = server.recv(&mut [0; 4000]).is_ok();
            ensure!(arrived == passes, "fragments from {source}: arrived: {arrived}, {:?}", node.drops(b)?);
        }
        ensure!(spoofed(node, neighbour, b, b_address)? > 0, "{:?}", node.drops(b)?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn forged_syn_into_a_live_connection_changes_nothing() {
    with_neighbour(|node, neighbour, a, b| {
        for (a_address, b_address) in pairs(a, b) {
            let listener = sys::bind_in(b.path(), SocketAddr::new(b_address, SERVER), TcpListener::bind)?;
            let mut client = sys::in_netns(a.path(), || {
                Ok(TcpStream::connect_timeout(&SocketAddr::new(b_address, SERVER), TIMEOUT)?)
            })?;
            let (mut server, _) = listener.accept()?;
            let ends = [client.local_addr()?, client.peer_addr()?];
            for stream in [&client, &server] {
                stream.set_read_timeout(Some(TIMEOUT))?;
            }
            for round in 0..40 {
                if round == 10 {
                    let [client, server] = ends;
                    neighbour.send(a_address, b_address, TCP, &syn(client, server))?;
                    neighbour.send(b_address, a_address, TCP, &syn(server, client))?;
                }
                client.write_all(b"ping")?;
                server.read_exact(&mut [0; 4]).with_context(|| format!("round trip {round}"))?;
                server.write_all(b"pong")?;
                client.read_exact(&mut [0; 4]).with_context(|| format!("round trip {round}"))?;
            }
            // At the uplink, one counter for both.
            let counts = if neighbour.dropped_at == Place::Uplink { 2 } else { 1 };
            sys::wait_until("the forged packets are counted", TIMEOUT, || {
                let of = |pod, address| spoofed(node, neighbour, pod, address);
                Ok(of(b, b_address)? == counts && of(a, a_address)? == counts)
            })?;
        }
        ensure!(stack_flows()? == 0);
        let invalid = sys::run("nft list chain inet host forward")?;
        ensure!(invalid.contains("counter packets 0 "), "{invalid}");
        Ok(())
    })
    .unwrap();
}
