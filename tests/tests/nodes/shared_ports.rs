//! A pod reaches a backend of another node by the backend's own address, by a Service and by a port of the
//! backend's node, from the same port at once.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    chain::Chain,
    fabric::Member,
    pod::Pod,
    sys,
    traffic::{accept, connected},
};
use nix::sys::socket::SockType;
use serde_json::json;

use crate::{
    fixture::{TIMEOUT, of, with_pods},
    proxy::Proxy,
    services::both_send,
};

/// What leads to the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Via {
    Own,
    /// Translated by the client's node.
    Service,
    /// Translated by the backend's node.
    HostPort,
}

const HOST_PORT: u16 = 9090;
const ORDERS: [[Via; 3]; 6] = {
    use Via::{HostPort, Own, Service};
    [
        [Own, Service, HostPort],
        [Own, HostPort, Service],
        [Service, Own, HostPort],
        [Service, HostPort, Own],
        [HostPort, Own, Service],
        [HostPort, Service, Own],
    ]
};
/// One that a kernel gives to a client, and one of those that the host gives to translated flows.
const PORTS: [u16; 2] = [40_000, 20_000];

/// A backend, named like its node, to which a port of the node leads.
fn attach(node: &Member) -> anyhow::Result<Pod> {
    let mut backend = node.pod(node.name, &[])?;
    let plugin = json!({ "type": "ferrule", "capabilities": { "portMappings": true } });
    let mapping = |protocol| json!({ "HostPort": HOST_PORT, "ContainerPort": 8080, "Protocol": protocol, "HostIP": "" });
    let mut chain =
        Chain::new("1.0.0", [plugin]).with("portMappings", json!([mapping("tcp"), mapping("udp")]));
    let result = node.on(|_| chain.add(&backend))?;
    backend.attached(&result)?;
    Ok(backend)
}

/// Each backend on another node and each family: the backend's own address, and where the client finds it.
fn each_backend(
    run: impl Fn(&Pod, &Pod, SocketAddr, &dyn Fn(Via) -> SocketAddr) -> anyhow::Result<()> + Send + Sync,
) -> anyhow::Result<()> {
    with_pods(&[], |fabric, [client, ..]| {
        let [one, others @ ..] = &fabric.nodes;
        let backends = others.iter().map(attach).collect::<Result<Vec<_>, _>>()?;
        let services: Vec<_> =
            (10..).zip(&backends).map(|(number, it)| crate::proxy::services(number, it)).collect();
        fabric.nodes.iter().try_for_each(|node| Proxy::Nftables.program(node, &services.concat()))?;
        for ((node, backend), services) in others.iter().zip(&backends).zip(services) {
            for (family, service) in services.iter().enumerate() {
                let host_port = SocketAddr::new(of(&node.addresses, family)?, HOST_PORT);
                let to = |via| match via {
                    Via::Own => service.backend,
                    Via::Service => service.address,
                    Via::HostPort => host_port,
                };
                run(client, backend, service.backend, &to)
                    .with_context(|| format!("{} on {}", service.backend, node.name))?;
            }
        }
        fabric.nodes.iter().try_for_each(|node| Proxy::Nftables.expect_nothing_invalid(node))?;
        ensure!(one.run("nft list table inet ferrule-ports").is_err(), "the client's node has the port, too");
        Ok(())
    })
}

#[test]
fn tcp_connections_that_either_node_translates_and_that_none_does_live_on_one_client_port() {
    each_backend(|client, server, backend, to| {
        for (number, order) in (0..).zip(ORDERS) {
            for port in PORTS.map(|it| it + number) {
                let listener = sys::bind_in(server.path(), backend, TcpListener::bind)?;
                let mut connections: Vec<[TcpStream; 2]> = Vec::new();
                for via in order {
                    let what = || format!("{via:?} in the order {order:?} from port {port}");
                    let end = TcpStream::from(
                        connected(client, port, to(via), SockType::Stream).with_context(what)?,
                    );
                    end.set_read_timeout(Some(TIMEOUT))?;
                    let other = accept(&listener).with_context(what)?;
                    let seen = other.peer_addr()?;
                    ensure!(client.addresses.contains(&seen.ip()), "seen as {seen}: {}", what());
                    // A port of the other range could be that of a flow past the stack.
                    let is_passed_by = via == Via::Own && port >= 32_768;
                    ensure!(is_passed_by || (1024..32_768).contains(&seen.port()), "{seen}: {}", what());
                    connections.push([end, other]);
                    connections.iter().try_for_each(both_send).with_context(what)?;
                }
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn udp_flows_that_either_node_translates_and_that_none_does_live_on_one_client_port() {
    each_backend(|client, server, backend, to| {
        let server = sys::bind_in(server.path(), backend, UdpSocket::bind)?;
        server.set_read_timeout(Some(TIMEOUT))?;
        for (port, order) in (PORTS[0]..).zip(ORDERS) {
            let mut flows: Vec<(UdpSocket, SocketAddr)> = Vec::new();
            for via in order {
                let what = || format!("{via:?} in the order {order:?} from port {port}");
                let end = UdpSocket::from(connected(client, port, to(via), SockType::Datagram)?);
                end.set_read_timeout(Some(TIMEOUT))?;
                end.send(b"?")?;
                let (_, seen) = server.recv_from(&mut [0; 8]).with_context(what)?;
                ensure!(client.addresses.contains(&seen.ip()), "seen as {seen}: {}", what());
                ensure!(flows.iter().all(|(_, other)| *other != seen), "two are {seen}: {}", what());
                flows.push((end, seen));
                for (number, (end, seen)) in (0..).zip(&flows) {
                    let mut heard = [0; 8];
                    server.send_to(&[number], seen)?;
                    let len = end.recv(&mut heard).with_context(what)?;
                    ensure!(heard.get(..len) == Some(&[number]), "{heard:?}: {}", what());
                    end.send(b"!")?;
                    ensure!(server.recv_from(&mut heard)?.1 == *seen, "another client: {}", what());
                }
            }
        }
        Ok(())
    })
    .unwrap();
}
