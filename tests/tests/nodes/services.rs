//! Services whose backend is a pod of another node, or of any, translated by kube-proxy.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{fabric::Fabric, node::UPLINK_MTU, pod::Pod, sys, traffic, world::tcp_source_by};

use crate::{
    fixture::{TIMEOUT, forget_mtu, of, with_pods},
    proxy::{Proxy, Service, services},
};

const LENS: [usize; 4] = [1, 1300, 4000, 20_000];
/// Of clients that have to learn first what fits into the tunnel.
const SHORT: [usize; 2] = [1, 1300];
const MEGABYTE: u64 = 1 << 20;

/// Runs `run` with kube-proxy in both modes, and Services of each pod. Connection tracking finds nothing
/// invalid.
fn with_proxies(
    run: impl Fn(&Fabric, &[Pod; 3], &[Vec<Service>]) -> anyhow::Result<()> + Send + Sync,
) -> anyhow::Result<()> {
    for proxy in [Proxy::Iptables, Proxy::Nftables] {
        with_pods(&[], |fabric, pods| {
            let services: Vec<_> = (10..).zip(pods).map(|(number, pod)| services(number, pod)).collect();
            fabric.nodes.iter().try_for_each(|node| proxy.program(node, &services.concat()))?;
            run(fabric, pods, &services)?;
            fabric.nodes.iter().try_for_each(|node| proxy.expect_nothing_invalid(node))
        })
        .with_context(|| format!("{proxy:?}"))?;
    }
    Ok(())
}

/// Traffic of all kinds to a Service, whose backend sees the client as `source`.
fn talk(
    client: &Path,
    to: SocketAddr,
    lens: &[usize],
    server: &Path,
    backend: SocketAddr,
    source: IpAddr,
) -> anyhow::Result<()> {
    let what = || format!("{to}, which is {backend}");
    let seen = tcp_source_by(client, to, server, backend).with_context(what)?;
    ensure!(seen.ip() == source, "the backend sees a connection of {seen} instead of {source}: {}", what());
    let socket = sys::bind_in(server, backend, UdpSocket::bind)?;
    let seen = traffic::datagrams_to(client, &socket, to, lens).with_context(what)?;
    ensure!(seen.ip() == source, "the backend sees datagrams of {seen} instead of {source}: {}", what());
    traffic::stream_by(client, to, server, backend, 4 * MEGABYTE).with_context(what).map(drop)
}

#[test]
fn cluster_ips_of_backends_on_any_node_serve_pods_nodes_and_the_backend_itself() {
    with_proxies(|fabric, pods, services| {
        let [one, ..] = &fabric.nodes;
        let [a, ..] = pods;
        for ((backend, node), services) in pods.iter().zip(&fabric.nodes).zip(services) {
            for (family, service) in services.iter().enumerate() {
                let reach = |client: &Path, source: &[IpAddr]| {
                    talk(client, service.address, &LENS, backend.path(), service.backend, of(source, family)?)
                };
                if backend.name != a.name {
                    reach(a.path(), &a.addresses).context("from a pod")?;
                }
                reach(one.path(), &one.addresses).context("from a node")?;
                // Masqueraded, or the backend would answer itself.
                reach(backend.path(), &node.addresses).context("from the backend itself")?;
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn node_ports_lead_to_backends_on_other_nodes_and_back() {
    with_proxies(|fabric, pods, services| {
        let [one, two, _] = &fabric.nodes;
        let [a, ..] = pods;
        for (backend, services) in pods.iter().zip(services) {
            for (family, service) in services.iter().enumerate() {
                for node in [one, two] {
                    let to = SocketAddr::new(of(&node.addresses, family)?, service.node_port);
                    let source = of(&node.addresses, family)?;
                    let reach = |client: &Path, lens: &[usize]| {
                        talk(client, to, lens, backend.path(), service.backend, source)
                    };
                    reach(fabric.world().path(), &SHORT).context("from the world")?;
                    if node.name == two.name {
                        reach(a.path(), &LENS).context("from a pod of another node")?;
                    }
                }
            }
        }
        Ok(())
    })
    .unwrap();
}

/// As a bridge of another engine has it: `masquerade` takes any address of the node if the interface by which
/// the packets leave has none.
#[test]
fn node_ports_lead_into_the_tunnel_by_the_nodes_own_address_although_the_node_has_others() {
    with_proxies(|fabric, [_, _, c], services| {
        let [one, ..] = &fabric.nodes;
        for line in [
            "link add engine0 type bridge",
            "addr add 172.18.0.1/16 dev engine0",
            "addr add fd00:18::1/64 dev engine0 nodad",
            "link set engine0 up",
        ] {
            one.run(&format!("ip {line}"))?;
        }
        for (family, service) in services.last().context("no services")?.iter().enumerate() {
            let own = of(&one.addresses, family)?;
            let to = SocketAddr::new(own, service.node_port);
            talk(fabric.world().path(), to, &SHORT, c.path(), service.backend, own)?;
        }
        one.on(|node| node.ctl(&["verify"])).map(drop)
    })
    .unwrap();
}

#[test]
fn packets_too_long_for_the_tunnel_are_answered_through_services() {
    with_proxies(|fabric, [a, _, c], services| {
        let [one, ..] = &fabric.nodes;
        let world = fabric.world();
        for (family, service) in services.last().context("no services")?.iter().enumerate() {
            forget_mtu(a, service.address.ip())?;
            let node_port = SocketAddr::new(of(&one.addresses, family)?, service.node_port);
            for (client, to) in [(a.path(), service.address), (world.path(), node_port)] {
                let server = sys::bind_in(c.path(), service.backend, UdpSocket::bind)?;
                server.set_read_timeout(Some(Duration::from_secs(1)))?;
                let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let client = sys::in_netns(client, || Ok(UdpSocket::bind(any)?))?;
                let datagram = vec![7; UPLINK_MTU as usize - 48];
                let arrives = |_| {
                    client.send_to(&datagram, to)?;
                    anyhow::Ok(server.recv_from(&mut [0; 2000])?.0)
                };
                // The first one may be the one that is answered; the next ones are sent in fragments.
                let arrived: Vec<_> = (0..3).map(arrives).collect();
                ensure!(arrived.iter().skip(1).all(Result::is_ok), "to {to}: {arrived:?}");
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn flows_by_own_addresses_and_by_services_share_a_client_port() {
    with_proxies(|_, [a, b, c], services| {
        let [_, near, far] = services else { anyhow::bail!("{} Services", services.len()) };
        for (backend, services) in [(b, near), (c, far)] {
            for (family, Service { address, backend: own, .. }) in services.iter().enumerate() {
                let from = of(&a.addresses, family)?;
                for (port, order) in [(40_000, [*address, *own]), (40_001, [*own, *address])] {
                    let server = sys::bind_in(backend.path(), *own, UdpSocket::bind)?;
                    server.set_read_timeout(Some(TIMEOUT))?;
                    let client = sys::bind_in(a.path(), SocketAddr::new(from, port), UdpSocket::bind)?;
                    client.set_read_timeout(Some(TIMEOUT))?;
                    for to in order.into_iter().chain(order) {
                        let what = || format!("to {to}, in the order {order:?}");
                        client.send_to(b"?", to)?;
                        let (_, seen) = server.recv_from(&mut [0; 8]).with_context(what)?;
                        // The stack gives the second of the flows another port: their replies look the same.
                        ensure!(seen.ip() == from, "the backend sees {seen}, {}", what());
                        server.send_to(b"!", seen)?;
                        let (_, by) = client.recv_from(&mut [0; 8]).with_context(what)?;
                        ensure!(by == to, "a reply of {by}, {}", what());
                    }
                }
                talk(a.path(), *own, &LENS, backend.path(), *own, from)?;
            }
        }
        Ok(())
    })
    .unwrap();
}

/// Both ends of a connection, by way of a Service.
fn connect(
    client: &Path,
    to: SocketAddr,
    server: &Path,
    backend: SocketAddr,
) -> anyhow::Result<[TcpStream; 2]> {
    let listener = sys::bind_in(server, backend, TcpListener::bind)?;
    let client = sys::in_netns(client, || traffic::connect(to))?;
    let server = traffic::accept(&listener)?;
    for end in [&client, &server] {
        end.set_read_timeout(Some(TIMEOUT))?;
    }
    Ok([client, server])
}

/// The server sends first: no packet of the client shows again to whom the flow belongs.
pub(crate) fn both_send([client, server]: &[TcpStream; 2]) -> anyhow::Result<()> {
    for (mut from, mut to) in [(server, client), (client, server)] {
        from.write_all(&[7; 100])?;
        to.read_exact(&mut [0; 100]).with_context(|| format!("from {:?}", from.local_addr()))?;
    }
    Ok(())
}

#[test]
fn connections_to_other_nodes_survive_the_agents_of_both_ends() {
    with_proxies(|fabric, [a, b, c], services| {
        let [one, two, three] = &fabric.nodes;
        let [_, near, far] = services else { anyhow::bail!("{} Services", services.len()) };
        let mut connections = Vec::new();
        for (backend, services) in [(b, near), (c, far)] {
            for Service { address, backend: own, .. } in services {
                connections.push(connect(a.path(), *address, backend.path(), *own)?);
                connections.push(connect(a.path(), *own, backend.path(), *own)?);
            }
        }
        let all_send = |when: &'static str| connections.iter().try_for_each(both_send).context(when);
        all_send("at first")?;
        for node in [one, two, three] {
            node.on(|node| node.kill_agent())?;
            all_send("while an agent is dead")?;
        }
        for node in [one, two, three] {
            node.on(|node| node.start_again())?;
            node.wait_until_ready()?;
            all_send("after an agent has started again")?;
        }
        Ok(())
    })
    .unwrap();
}
