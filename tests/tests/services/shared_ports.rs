//! A pod reaches a backend by its own address and by a Service, from the same port at once.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use anyhow::{Context as _, ensure};
use ferrule_tests::{sys, traffic::connected};
use nix::sys::socket::SockType;

use super::{Connection, Service, TIMEOUT, accepted, udp, with_services};

/// One that a kernel gives to a client, and one of those that the host gives to translated flows.
const PORTS: [u16; 2] = [40_000, 20_000];

/// Both directions of both connections, and the server first, as no packet of the client then helps.
fn all_live(connections: &mut [Connection]) -> anyhow::Result<()> {
    for connection in connections {
        connection.server_sends()?;
        connection.client_sends()?;
    }
    Ok(())
}

/// Each family, each port, and each order of the two addresses.
fn each(
    [v4, v6]: [Service; 2],
    mut run: impl FnMut(SocketAddr, [SocketAddr; 2], u16) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for Service { address, backend } in [v4, v6] {
        for port in PORTS {
            for (number, order) in (0..).zip([[backend, address], [address, backend]]) {
                run(backend, order, port + number).with_context(|| format!("{order:?} from {port}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn tcp_connections_to_a_backend_and_to_its_service_live_on_one_client_port() {
    with_services(|_, a, b, services| {
        each(services, |backend, order, port| {
            let listener = sys::bind_in(a.path(), backend, TcpListener::bind)?;
            listener.set_nonblocking(true)?;
            let mut connections = Vec::new();
            for to in order {
                let client = TcpStream::from(connected(b, port, to, SockType::Stream)?);
                connections.push(accepted(client, &listener)?);
                all_live(&mut connections).with_context(|| format!("after the connection to {to}"))?;
            }
            let seen: Vec<_> =
                connections.iter().map(|it| it.server.peer_addr()).collect::<Result<_, _>>()?;
            ensure!(seen[0] != seen[1], "the backend sees both as {}", seen[0]);
            // A port of the other range could be that of a flow past the stack.
            let is_passed_by = |to: &SocketAddr| *to == backend && port >= 32_768;
            let of_stack = seen.iter().zip(order).filter(|(_, to)| !is_passed_by(to));
            for (seen, to) in of_stack {
                ensure!((1024..32_768).contains(&seen.port()), "the connection to {to} is seen as {seen}");
            }
            Ok(())
        })
    })
    .unwrap();
}

#[test]
fn udp_flows_to_a_backend_and_to_its_service_live_on_one_client_port() {
    with_services(|_, a, b, services| {
        each(services, |backend, order, port| {
            let is_kernels = port >= 32_768;
            // Of a direct UDP flow, nothing tells its begin; conntrack may give its port to another one.
            if order[0] == backend && !is_kernels {
                return Ok(());
            }
            let server = udp(a.path(), backend)?;
            let mut flows: Vec<(UdpSocket, SocketAddr)> = Vec::new();
            for to in order {
                let client = UdpSocket::from(connected(b, port, to, SockType::Datagram)?);
                client.set_read_timeout(Some(TIMEOUT))?;
                client.send(b"first")?;
                let (_, from) = server.recv_from(&mut [0; 8])?;
                ensure!(flows.iter().all(|(_, other)| *other != from), "the backend sees both as {from}");
                flows.push((client, from));
                for (number, (client, from)) in flows.iter().enumerate() {
                    let mut heard = [0; 8];
                    server.send_to(&[number as u8], from)?;
                    let len = client.recv(&mut heard).with_context(|| format!("no answer to {from}"))?;
                    ensure!(heard[..len] == [number as u8], "flow {number} heard {:?}", &heard[..len]);
                    client.send(b"again")?;
                    let seen = server.recv_from(&mut heard)?.1;
                    ensure!(seen == *from, "flow {number} was {from} and is {seen}");
                }
            }
            Ok(())
        })
    })
    .unwrap();
}

#[test]
fn the_backend_sees_a_privileged_client_port_as_it_is_and_one_that_follows_from_another() {
    with_services(|_, a, b, services| {
        for Service { address, backend } in services {
            let listener = sys::bind_in(a.path(), backend, TcpListener::bind)?;
            listener.set_nonblocking(true)?;
            let seen = |port| -> anyhow::Result<SocketAddr> {
                let client = TcpStream::from(connected(b, port, address, SockType::Stream)?);
                Ok(accepted(client, &listener)?.server.peer_addr()?)
            };
            let of_pod = |seen: SocketAddr| b.addresses.contains(&seen.ip());
            let (privileged, other) = (seen(700)?, seen(45_000)?);
            ensure!(privileged.port() == 700 && of_pod(privileged), "seen as {privileged}");
            // 1024, and the remainder of a division by the number of ports from 1024 to 32767.
            ensure!(other.port() == 1024 + 45_000 % 31_744 && of_pod(other), "seen as {other}");
        }
        Ok(())
    })
    .unwrap();
}
