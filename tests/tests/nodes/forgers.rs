//! Strangers on the segment, and pods, who make up packets of the tunnel and of pods.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use agent_common::GATEWAY_MAC;
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    capture::{Frame, TUNNEL_PORT, VNI},
    fabric::{Fabric, Member, underlay},
    forge::{datagram, send, send_tunnelled, vxlan},
    packet::{IPV4, IPV6, UDP, frame},
    pod::Pod,
    sys,
    wire::{self, Wire},
};

use crate::{
    fixture::{TIMEOUT, captured, of, with_pods},
    proxy::{Proxy, Service},
};

/// Recognises forged packets.
pub(crate) const MARK: &[u8] = b"forged by a stranger";
/// For a packet that must not arrive.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

/// A packet of the tunnel, made up.
struct Forged {
    what: &'static str,
    outer: IpAddr,
    vni: u32,
    inner: (IpAddr, IpAddr),
    /// The reason that counts; `None` if the kernel drops the packet before the programs see it.
    reason: Option<&'static str>,
}

/// Whether a forged datagram arrives. An answer to one carries the mark, too.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn arrives(at: &Wire, patience: Duration) -> anyhow::Result<bool> {
    let is_datagram = |frame: &[u8]| Frame::parse(frame).is_some_and(|it| it.packet.protocol == UDP);
    let is_forged = |frame: &[u8]| frame.ends_with(MARK) && is_datagram(frame);
    Ok(at.receive(patience, is_forged)?.is_some())
}

/// Packets dropped at a node's tunnel and uplinks, by reason.
///
/// # Errors
/// If the agent does not tell.
pub(crate) fn drops(node: &Member) -> anyhow::Result<BTreeMap<String, u64>> {
    let (_, metrics) = node.on(|node| node.http("/metrics"))?;
    let mut drops = BTreeMap::new();
    for line in metrics.lines().filter(|line| line.starts_with("ferrule_link_drops_total{")) {
        let (_, rest) = line.split_once("reason=\"").with_context(|| line.to_owned())?;
        let (reason, count) = rest.split_once("\"} ").with_context(|| line.to_owned())?;
        *drops.entry(reason.to_owned()).or_default() += count.parse::<f64>()? as u64;
    }
    Ok(drops)
}

fn ip(text: &str) -> anyhow::Result<IpAddr> {
    Ok(text.parse()?)
}

/// Everything that a stranger may try against pod `a` of node 1, in one family of each header.
fn forgeries(
    fabric: &Fabric,
    [a, b, c]: &[Pod; 3],
    outer: usize,
    inner: usize,
) -> anyhow::Result<Vec<Forged>> {
    let [one, two, three] = &fabric.nodes;
    let of_pods = [of(&a.addresses, inner)?, of(&b.addresses, inner)?, of(&c.addresses, inner)?];
    let [to, neighbour, far] = of_pods;
    let node = of(&three.addresses, outer)?;
    let pick = |family: usize, [v4, v6]: [&str; 2]| ip(if family == 0 { v4 } else { v6 });
    let world = pick(inner, underlay::WORLD_ADDRESSES)?;
    let forged = |what, outer, inner, reason| Forged { what, outer, vni: VNI, inner, reason: Some(reason) };
    let by_node = |what, source, destination, reason| forged(what, node, (source, destination), reason);
    let mut all = vec![
        forged("from a stranger", pick(outer, underlay::STRANGER_ADDRESSES)?, (far, to), "tunnel_outer"),
        forged("from the world", pick(outer, underlay::WORLD_ADDRESSES)?, (far, to), "tunnel_outer"),
        by_node("for a neighbour's pod", neighbour, to, "tunnel_inner"),
        by_node("for the pod itself", to, to, "tunnel_inner"),
        by_node("for the node itself", of(&one.addresses, inner)?, to, "tunnel_inner"),
        by_node("for another node", of(&two.addresses, inner)?, to, "tunnel_inner"),
        by_node("for the world", world, to, "tunnel_inner"),
        by_node("to a neighbour's pod", far, neighbour, "tunnel_destination"),
        by_node("to another node", far, of(&two.addresses, inner)?, "tunnel_destination"),
        by_node("to the world", far, world, "tunnel_destination"),
        by_node("to a group", far, pick(inner, ["224.0.0.1", "ff02::1"])?, "multicast"),
    ];
    for vni in [0, VNI + 1, VNI << 8] {
        all.push(Forged { what: "of another network", outer: node, vni, inner: (far, to), reason: None });
    }
    let own = of(&one.addresses, outer)?;
    all.push(Forged { what: "from the node itself", outer: own, vni: VNI, inner: (far, to), reason: None });
    Ok(all)
}

#[test]
fn strangers_get_nothing_into_the_tunnel_unless_they_forge_a_node_and_its_own_pods() {
    with_pods(&[], |fabric, pods| {
        let [one, _, three] = &fabric.nodes;
        let [a, _, c] = pods;
        let (forger, at_pod) = (fabric.forger()?, Wire::open(a.path(), "eth0")?);
        for (outer, inner) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            // What is left to an attacker on the wire, and proves that the others fail for their own reasons.
            let packet = datagram(of(&c.addresses, inner)?, of(&a.addresses, inner)?, 9999, MARK)?;
            send_tunnelled(&forger, of(&three.addresses, outer)?, one, VNI, &packet)?;
            ensure!(arrives(&at_pod, TIMEOUT)?, "what looks right does not arrive: {outer} {inner}");
            for Forged { what, outer, vni, inner, reason } in forgeries(fabric, pods, outer, inner)? {
                let before = drops(one)?;
                send_tunnelled(&forger, outer, one, vni, &datagram(inner.0, inner.1, 9999, MARK)?)?;
                ensure!(!arrives(&at_pod, PATIENCE)?, "{what}: {outer} with {inner:?} arrives");
                let Some(reason) = reason else { continue };
                sys::wait_until(&format!("{what}: {outer} with {inner:?} counts"), TIMEOUT, || {
                    let now = drops(one)?;
                    ensure!(now.get(reason) > before.get(reason), "{reason}: {before:?}, {now:?}");
                    Ok(true)
                })?;
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_is_encapsulated_twice_is_dropped() {
    with_pods(&[], |fabric, [a, b, c]| {
        let [one, _, three] = &fabric.nodes;
        let (forger, at_pod) = (fabric.forger()?, Wire::open(a.path(), "eth0")?);
        for family in 0..2 {
            let node = of(&three.addresses, family)?;
            let inmost = datagram(of(&b.addresses, family)?, of(&a.addresses, family)?, 9999, MARK)?;
            let inner = datagram(node, of(&one.addresses, family)?, TUNNEL_PORT, &vxlan(VNI, &inmost))?;
            let before = drops(one)?;
            send_tunnelled(&forger, node, one, VNI, &inner)?;
            // From a pod, too.
            let inner = datagram(
                of(&c.addresses, family)?,
                of(&one.addresses, family)?,
                TUNNEL_PORT,
                &vxlan(VNI, &inmost),
            )?;
            send_tunnelled(&forger, node, one, VNI, &inner)?;
            ensure!(!arrives(&at_pod, PATIENCE)?, "{node}: what is encapsulated twice arrives");
            let count = |drops: &BTreeMap<_, _>| drops.get("tunnel_nested").copied().unwrap_or_default();
            let counted = count(&drops(one)?) - count(&before);
            ensure!(counted == 2, "{counted} of 2 packets counted, {:?}", drops(one)?);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn bare_packets_in_the_name_of_the_nodes_pods_are_dropped_at_the_uplink() {
    with_pods(&[], |fabric, [a, ..]| {
        let [one, ..] = &fabric.nodes;
        let other = one.attach("other")?;
        let (forger, at_pod) = (fabric.forger()?, Wire::open(a.path(), "eth0")?);
        for (family, reason) in ["spoofed_ipv4", "spoofed_ipv6"].into_iter().enumerate() {
            let before = drops(one)?;
            let unused = ip(["10.244.1.250", "fd00:10:244:1::250"][family])?;
            for source in [of(&other.addresses, family)?, unused] {
                let packet = datagram(source, of(&a.addresses, family)?, 9999, MARK)?;
                send(&forger, one, &packet)?;
                ensure!(!arrives(&at_pod, PATIENCE)?, "a packet of {source} arrives from outside");
            }
            let count = |drops: &BTreeMap<_, _>| drops.get(reason).copied().unwrap_or_default();
            let counted = count(&drops(one)?) - count(&before);
            ensure!(counted == 2, "{counted} of 2 packets counted");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn pods_send_nothing_to_the_tunnels_of_nodes_not_even_in_fragments() {
    with_pods(&[], |fabric, [a, ..]| {
        let [one, ..] = &fabric.nodes;
        for node in &fabric.nodes {
            for address in &node.addresses {
                let to = SocketAddr::new(*address, TUNNEL_PORT);
                let before = one.on(|node| node.drops(a))?.get("tunnel").copied().unwrap_or_default();
                let frames = captured(one, || {
                    sys::in_netns(a.path(), || {
                        let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
                        [100, 4000]
                            .into_iter()
                            .try_for_each(|len| Ok(socket.send_to(&vec![7; len], to).map(drop)?))
                    })
                })?;
                let sent = frames
                    .0
                    .iter()
                    .filter(|it| it.carried().source == a.addresses[usize::from(to.is_ipv6())]);
                let whole = sent.filter(|it| it.carried().ports.is_some());
                ensure!(whole.count() == 0, "{to} gets packets:\n{frames}");
                let after = one.on(|node| node.drops(a))?.get("tunnel").copied().unwrap_or_default();
                ensure!(after >= before + 2, "{to}: {before} drops, then {after}");
            }
        }
        Ok(())
    })
    .unwrap();
}

/// A process of the node's own, as one in a pod of the host's network: its datagrams have the node's address.
#[test]
fn processes_of_a_node_send_nothing_into_the_tunnel_of_another_node() {
    with_pods(&[], |fabric, [a, b, c]| {
        let [one, two, three] = &fabric.nodes;
        for (node, pod) in [(two, b), (three, c)] {
            let at_pod = Wire::open(pod.path(), "eth0")?;
            for (outer, inner) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let (own, to) = (of(&one.addresses, outer)?, of(&node.addresses, outer)?);
                // The same datagram to the port beside arrives.
                let beside = SocketAddr::new(to, TUNNEL_PORT - 1);
                let listener = sys::bind_in(node.path(), beside, UdpSocket::bind)?;
                listener.set_read_timeout(Some(TIMEOUT))?;
                // In one datagram, and in fragments, of which the first one has the port.
                for extra in [0, 4000] {
                    let packet = datagram(of(&a.addresses, inner)?, of(&pod.addresses, inner)?, 9999, MARK)?;
                    let forged = [vxlan(VNI, &packet), vec![0; extra]].concat();
                    let about = format!("{} bytes from {own} to {to}, inner {inner}", forged.len());
                    let send = |to: SocketAddr| {
                        let socket = sys::bind_in(one.path(), SocketAddr::new(own, 0), UdpSocket::bind)?;
                        Ok::<_, anyhow::Error>(socket.send_to(&forged, to)?)
                    };
                    send(beside)?;
                    let (len, _) = listener.recv_from(&mut [0; 6000]).with_context(|| about.clone())?;
                    ensure!(len == forged.len(), "{about}: {len} bytes arrive");
                    let count = || Ok::<_, anyhow::Error>(drops(one)?.get("tunnel").copied().unwrap_or(0));
                    let before = count()?;
                    send(SocketAddr::new(to, TUNNEL_PORT))?;
                    ensure!(!arrives(&at_pod, PATIENCE)?, "{about} gets into the tunnel");
                    ensure!(count()? == before + 1, "{about}: {before} drops, then {}", count()?);
                }
            }
        }
        // The tunnel itself carries what the node and its pods send, in fragments, too.
        for to in &c.addresses {
            for payload in [56, 4000] {
                one.run(&format!("ping -n -c 1 -W 5 -s {payload} {to}"))?;
                a.run(&format!("ping -n -c 1 -W 5 -s {payload} {to}"))?;
            }
        }
        Ok(())
    })
    .unwrap();
}

/// How a node translates packets of Services.
#[derive(Debug, Clone, Copy)]
enum Translator {
    Proxy(Proxy),
    /// Out of the sight of conntrack's own translation, as IPVS does, in whose mode kube-proxy has a rule
    /// that masquerades.
    Stateless,
}

/// A Service of a family whose endpoint is a port of a node, as an API client may write one.
fn to_node(node: &Member, family: usize, port: u16) -> anyhow::Result<Service> {
    let address = ip(if family == 0 { "10.96.0.99" } else { "fd00:96::99" })?;
    let backend = SocketAddr::new(of(&node.addresses, family)?, port);
    // The last digits tell the Services apart.
    Ok(Service { address: SocketAddr::new(address, 80 + port % 10), node_port: 30_090 + port % 10, backend })
}

// === impl Translator ===

impl Translator {
    fn program(self, node: &Member, services: &[Service]) -> anyhow::Result<()> {
        if let Self::Proxy(proxy) = self {
            return proxy.program(node, services);
        }
        let mut rules =
            String::from("table inet stateless {\nchain to { type filter hook prerouting priority -150;\n");
        for Service { address, node_port, backend } in services {
            let family = if address.is_ipv4() { "ip" } else { "ip6" };
            let own = of(&node.addresses, usize::from(address.is_ipv6()))?;
            for (ip, port) in [(address.ip(), address.port()), (own, *node_port)] {
                writeln!(
                    rules,
                    "{family} daddr {ip} udp dport {port} {family} daddr set {} udp dport set {}",
                    backend.ip(),
                    backend.port()
                )?;
            }
        }
        rules.push_str("}\nchain from { type nat hook postrouting priority srcnat;\n");
        for Service { backend, .. } in services {
            let family = if backend.is_ipv4() { "ip" } else { "ip6" };
            writeln!(rules, "{family} daddr {} udp dport {} masquerade", backend.ip(), backend.port())?;
        }
        rules.push_str("}\n}\n");
        node.on(|_| {
            std::fs::write("/run/stateless.nft", rules)?;
            sys::run("nft -f /run/stateless.nft").map(drop)
        })
    }
}

#[test]
fn services_do_not_lead_into_the_tunnel_of_another_node() {
    for translator in
        [Translator::Proxy(Proxy::Iptables), Translator::Proxy(Proxy::Nftables), Translator::Stateless]
    {
        with_pods(&[], |fabric, [a, b, c]| {
            let [one, two, _] = &fabric.nodes;
            // The same way, to another port.
            let ports = [TUNNEL_PORT, TUNNEL_PORT - 1];
            let services = ports.iter().flat_map(|port| [0, 1].map(|family| to_node(two, family, *port)));
            translator.program(one, &services.collect::<Result<Vec<_>, _>>()?)?;
            let (world, at_pod) = (fabric.world(), Wire::open(b.path(), "eth0")?);
            for family in 0..2 {
                let beside = to_node(two, family, TUNNEL_PORT - 1)?;
                let listener = sys::bind_in(two.path(), beside.backend, UdpSocket::bind)?;
                listener.set_read_timeout(Some(TIMEOUT))?;
                let packet = datagram(of(&a.addresses, family)?, of(&b.addresses, family)?, 9999, MARK)?;
                let packet = vxlan(VNI, &packet);
                let own = of(&one.addresses, family)?;
                // kube-proxy gives packets to the NodePort the address of node 1.
                let clients = [(world.path(), true), (c.path(), true), (a.path(), false)];
                for (client, is_by_node_port) in clients {
                    let to = |it: &Service| {
                        if is_by_node_port { SocketAddr::new(own, it.node_port) } else { it.address }
                    };
                    let send = |to: SocketAddr| {
                        sys::in_netns(client, || {
                            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                            Ok(UdpSocket::bind(any)?.send_to(&packet, to)?)
                        })
                    };
                    let about = format!("family {family}, {}", client.display());
                    send(to(&beside))?;
                    let (len, from) = listener.recv_from(&mut [0; 2000]).with_context(|| about.clone())?;
                    ensure!(len == packet.len(), "{about}: {len} bytes from {from}");
                    send(to(&to_node(two, family, TUNNEL_PORT)?))?;
                    ensure!(!arrives(&at_pod, PATIENCE)?, "{about} gets into the tunnel");
                }
            }
            Ok(())
        })
        .with_context(|| format!("{translator:?}"))
        .unwrap();
    }
}

/// The kernel would write the checksum when the packet leaves the node, after all checks: into a port, for
/// instance the tunnel's, or into an address.
#[test]
fn a_pod_cannot_have_a_checksum_written_over_what_has_been_checked() {
    const ETHERNET: u16 = 14;
    with_pods(&[], |_, [a, _, c]| {
        let (sender, receiver) = (Wire::open_unsummed(a.path(), "eth0")?, Wire::open(c.path(), "eth0")?);
        let own = sys::in_netns(a.path(), || wire::mac("eth0"))?;
        for (family, ethertype, udp) in [(0, IPV4, ETHERNET + 20), (1, IPV6, ETHERNET + 40)] {
            let payload = [&[0; 16], MARK].concat();
            let packet = datagram(of(&a.addresses, family)?, of(&c.addresses, family)?, 53, &payload)?;
            let frame = frame(GATEWAY_MAC, own, ethertype, &packet);
            for (what, start, offset, passes) in [
                ("where it belongs", udp, 6, true),
                ("of a packet that the pod tunnels", udp + 8, 6, true),
                ("over the port of the destination", udp, 2, false),
                ("over the length", udp, 4, false),
                ("over the source", udp - 2, 2, false),
                ("over the destination's address", udp - 2, 0, false),
            ] {
                sender.send_unsummed(&frame, start, offset)?;
                let patience = if passes { TIMEOUT } else { PATIENCE };
                ensure!(arrives(&receiver, patience)? == passes, "{what}, family {family}");
            }
        }
        Ok(())
    })
    .unwrap();
}
