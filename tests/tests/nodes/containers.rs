//! Containers of another engine on a node: behind a bridge of their own, and masqueraded by rules of theirs.

use std::{
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    capture::{TUNNEL_PORT, VNI},
    fabric::{Member, on_fabric, underlay},
    forge::{datagram, vxlan},
    pod::Pod,
    sys,
    wire::Wire,
};

use crate::{
    fixture::{TIMEOUT, begin_over, captured, of, wait_until_connected, with_pods},
    forgers::{MARK, PATIENCE, arrives, drops},
};

const NAME: &str = "container";

/// Starts a container on a node, by whose addresses it reaches others. Returns its network namespace.
fn start(node: &Member) -> anyhow::Result<PathBuf> {
    let path = underlay::path(NAME);
    sys::make_netns(&path)?;
    for line in [
        "link add engine0 type bridge".to_owned(),
        format!("link add port0 type veth peer name eth0 netns {NAME}"),
        "link set port0 master engine0 up".to_owned(),
        "addr add 172.18.0.1/16 dev engine0".to_owned(),
        "addr add fd00:18::1/64 dev engine0 nodad".to_owned(),
        "link set engine0 up".to_owned(),
        format!("-n {NAME} addr add 172.18.0.2/16 dev eth0"),
        format!("-n {NAME} addr add fd00:18::2/64 dev eth0 nodad"),
        format!("-n {NAME} link set eth0 up"),
        format!("-n {NAME} route add default via 172.18.0.1"),
        format!("-n {NAME} route add default via fd00:18::1"),
    ] {
        node.run(&format!("ip {line}"))?;
    }
    let rules = "table inet engine { chain from { type nat hook postrouting priority srcnat;
            ip saddr 172.18.0.0/16 oifname != engine0 masquerade
            ip6 saddr fd00:18::/64 oifname != engine0 masquerade; }; }";
    node.on(|_| {
        fs::write("/run/engine.nft", rules)?;
        sys::run("nft -f /run/engine.nft").map(drop)
    })?;
    Ok(path)
}

/// Lets the container of a node stamp what it sends as the program of the tunnel device does: the kernel
/// stores the class that a filter gives to a packet.
fn stamp(node: &Member) -> anyhow::Result<()> {
    node.run(&format!("tc -n {NAME} qdisc add dev eth0 clsact"))?;
    let filter = "egress protocol all prio 1 u32 match u32 0 0 classid ffff:fe04";
    node.run(&format!("tc -n {NAME} filter add dev eth0 {filter}")).map(drop)
}

/// A socket of a container, for datagrams to an address.
fn open(container: &Path, to: IpAddr) -> anyhow::Result<UdpSocket> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    sys::in_netns(container, || Ok(UdpSocket::bind(any)?))
}

#[test]
fn containers_send_nothing_into_the_tunnel_of_another_node_whatever_their_stamp() {
    // The table of masquerading would drop most of it.
    with_pods(&["--masquerade", "off"], |fabric, [a, b, c]| {
        let [one, two, three] = &fabric.nodes;
        let container = start(one)?;
        stamp(one)?;
        for (node, pod) in [(two, b), (three, c)] {
            let at_pod = Wire::open(pod.path(), "eth0")?;
            for (outer, inner) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let to = of(&node.addresses, outer)?;
                // The same datagram to the port beside arrives.
                let beside = SocketAddr::new(to, TUNNEL_PORT - 1);
                let listener = sys::bind_in(node.path(), beside, UdpSocket::bind)?;
                listener.set_read_timeout(Some(TIMEOUT))?;
                let socket = open(&container, to)?;
                // In one datagram, and in fragments, of which the kernel may forget the interface.
                for extra in [0, 4000] {
                    let packet = datagram(of(&a.addresses, inner)?, of(&pod.addresses, inner)?, 9999, MARK)?;
                    let forged = [vxlan(VNI, &packet), vec![0; extra]].concat();
                    let about = format!("{} bytes to {to}, inner {inner}", forged.len());
                    let send = |to: SocketAddr| Ok::<_, anyhow::Error>(socket.send_to(&forged, to)?);
                    send(beside)?;
                    let (len, from) = listener.recv_from(&mut [0; 6000]).with_context(|| about.clone())?;
                    ensure!(len == forged.len(), "{about}: {len} bytes arrive");
                    ensure!(one.addresses.contains(&from.ip()), "{about}: from {from}");
                    let count = || Ok::<_, anyhow::Error>(drops(one)?.get("tunnel").copied().unwrap_or(0));
                    let before = count()?;
                    send(SocketAddr::new(to, TUNNEL_PORT))?;
                    ensure!(!arrives(&at_pod, PATIENCE)?, "{about} gets into the tunnel");
                    ensure!(count()? == before + 1, "{about}: {before} drops, then {}", count()?);
                }
            }
        }
        Ok(())
    })
    .unwrap();
}

/// Sends a datagram from a container to a pod, which answers. Returns the source that the pod sees.
fn talk(container: &Path, pod: &Pod, to: IpAddr) -> anyhow::Result<IpAddr> {
    let server = sys::bind_in(pod.path(), SocketAddr::new(to, 8080), UdpSocket::bind)?;
    let client = open(container, to)?;
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(TIMEOUT))?;
    }
    client.send_to(b"ask", (to, 8080))?;
    let (_, from) = server.recv_from(&mut [0; 10]).context("nothing arrives at the pod")?;
    server.send_to(b"answer", from)?;
    client.recv_from(&mut [0; 10]).context("no answer arrives at the container")?;
    Ok(from.ip())
}

/// The tunnel's packets have none of the interfaces by which a container's came, over either family.
#[test]
fn containers_reach_pods_of_other_nodes_in_the_name_of_their_own() {
    for family in 0..2 {
        on_fabric(|fabric| {
            begin_over(fabric, family)?;
            let [one, two, three] = &fabric.nodes;
            let pods = [one.attach("a")?, two.attach("b")?, three.attach("c")?];
            wait_until_connected(&pods)?;
            let [_, b, c] = &pods;
            let container = start(one)?;
            let own = of(&one.addresses, family)?;
            for (node, pod, is_near) in [(two, b, true), (three, c, false)] {
                let to = of(&pod.addresses, family)?;
                let frames = captured(one, || {
                    let seen = talk(&container, pod, to).with_context(|| format!("to {to}"))?;
                    ensure!(seen == own, "{to} sees {seen}");
                    Ok(())
                })?;
                let frames = frames.between(own, to);
                if is_near {
                    frames.expect_bare()?;
                } else {
                    frames.expect_tunnelled(&[own], &[of(&node.addresses, family)?])?;
                }
            }
            Ok(())
        })
        .with_context(|| format!("family {family}"))
        .unwrap();
    }
}
