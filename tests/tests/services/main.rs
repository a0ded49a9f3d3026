//! Kubernetes Services whose backend is a pod of this node, translated by kube-proxy-like nftables rules of
//! the host.

mod shared_ports;

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    churn,
    node::{Node, PINS, with_agent},
    pod::Pod,
    sys, traffic,
};

/// Cluster IPs; they exist only in the host's NAT rules.
const SERVICES: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
const SERVICE_PORT: u16 = 80;
const BACKEND_PORT: u16 = 8080;
const TIMEOUT: Duration = Duration::from_secs(20);
/// Larger than the MTU.
const LARGE: usize = 4000;

/// A Service of one address family.
#[derive(Debug, Clone, Copy)]
struct Service {
    address: SocketAddr,
    backend: SocketAddr,
}

/// Both ends of a TCP connection.
struct Connection {
    client: TcpStream,
    server: TcpStream,
}

/// Runs `run` on a node where pod `a` is the backend of a Service and pod `b` its client.
fn with_services(
    run: impl FnOnce(&mut Node, &Pod, &Pod, [Service; 2]) -> anyhow::Result<()> + Send,
) -> anyhow::Result<()> {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let [v4, v6] = *a.addresses.as_slice() else { anyhow::bail!("{:?}", a.addresses) };
        let translate = format!(
            "meta l4proto {{ tcp, udp }} ip daddr {} th dport {SERVICE_PORT} dnat ip to {v4}:{BACKEND_PORT}\n\
             meta l4proto {{ tcp, udp }} ip6 daddr {} th dport {SERVICE_PORT} dnat ip6 to [{v6}]:{BACKEND_PORT}",
            SERVICES[0], SERVICES[1]
        );
        // The relevant subset of kube-proxy's rules, which drop packets that conntrack considers invalid.
        let rules = format!(
            "table inet services {{\n\
             chain prerouting {{\ntype nat hook prerouting priority dstnat;\n{translate}\n}}\n\
             chain output {{\ntype nat hook output priority -100;\n{translate}\n}}\n\
             chain forward {{\ntype filter hook forward priority filter;\nct state invalid counter drop\n}}\n}}\n"
        );
        fs::write("/run/services.nft", rules)?;
        sys::run("nft -f /run/services.nft")?;
        // The node's own connections are routed before they are translated.
        sys::run(&format!("ip route add {} dev uplink", SERVICES[1]))?;
        let service = |address: &str, backend| -> anyhow::Result<Service> {
            let address = SocketAddr::new(address.parse()?, SERVICE_PORT);
            Ok(Service { address, backend: SocketAddr::new(backend, BACKEND_PORT) })
        };
        let services = [service(SERVICES[0], v4)?, service(SERVICES[1], v6)?];
        run(node, &a, &b, services)
    })
}

fn home() -> &'static Path {
    Path::new("/proc/thread-self/ns/net")
}

fn connect(client: &Path, to: SocketAddr, server: &Path, backend: SocketAddr) -> anyhow::Result<Connection> {
    let listener = sys::bind_in(server, backend, TcpListener::bind)?;
    listener.set_nonblocking(true)?;
    let client = sys::in_netns(client, || {
        TcpStream::connect_timeout(&to, TIMEOUT).with_context(|| format!("cannot connect to {to}"))
    })?;
    ensure!(client.peer_addr()? == to, "wrong peer address {}", client.peer_addr()?);
    accepted(client, &listener)
}

/// The server's end of a client's connection; `listener` does not block.
fn accepted(client: TcpStream, listener: &TcpListener) -> anyhow::Result<Connection> {
    let mut accepted = None;
    sys::wait_until("the backend accepts", TIMEOUT, || {
        accepted = Some(listener.accept()?.0);
        Ok(true)
    })?;
    let server = accepted.context("the backend accepted no connection")?;
    server.set_nonblocking(false)?;
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
    }
    Ok(Connection { client, server })
}

fn udp(at: &Path, address: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = sys::bind_in(at, address, UdpSocket::bind)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

/// Sends a datagram and a reply of the same size; returns the client's address as the server saw it.
fn exchange(
    client: &UdpSocket,
    to: SocketAddr,
    server: &UdpSocket,
    len: usize,
) -> anyhow::Result<SocketAddr> {
    let question = vec![b'q'; len];
    let mut room = vec![0; LARGE + 1];
    client.send_to(&question, to)?;
    let (got, from) = server.recv_from(&mut room).with_context(|| format!("no request to {to} arrived"))?;
    ensure!(got == len, "received {got} of {len} bytes");
    server.send_to(&question, from)?;
    let (got, by) = client.recv_from(&mut room).with_context(|| format!("no reply from {to}"))?;
    ensure!(got == len && by == to, "wrong reply: {got} bytes from {by}, expected {len} from {to}");
    Ok(from)
}

// === impl Connection ===

impl Connection {
    fn client_sends(&mut self) -> anyhow::Result<()> {
        send(&mut self.client, &mut self.server).context("from client to server")
    }

    fn server_sends(&mut self) -> anyhow::Result<()> {
        send(&mut self.server, &mut self.client).context("from server to client")
    }
}

fn send(from: &mut TcpStream, to: &mut TcpStream) -> anyhow::Result<()> {
    let mut heard = [0; 100];
    from.write_all(&[7; 100])?;
    to.read_exact(&mut heard)?;
    ensure!(heard == [7; 100]);
    Ok(())
}

#[test]
fn service_is_reachable_from_a_pod_on_the_backends_node_and_from_the_node() {
    with_services(|_, a, b, services| {
        for Service { address, backend } in services {
            let client: IpAddr =
                b.addresses.iter().copied().find(|it| it.is_ipv4() == address.is_ipv4()).context("b")?;
            for from in [b.path(), home()] {
                let mut connection = connect(from, address, a.path(), backend)?;
                for _ in 0..3 {
                    connection.client_sends()?;
                    connection.server_sends()?;
                }
            }
            let server = udp(a.path(), backend)?;
            let any = SocketAddr::new(if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() }, 0);
            for from in [b.path(), home()] {
                let socket = udp(from, any)?;
                // The larger datagrams are fragmented.
                for len in [100, LARGE, 100, LARGE] {
                    let seen = exchange(&socket, address, &server, len)?;
                    ensure!(
                        from == home() || seen.ip() == client,
                        "the backend saw the wrong client address {seen}"
                    );
                }
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn client_port_shared_by_service_and_direct_flow_receives_both_replies() {
    with_services(|_, a, b, services| {
        for Service { address, backend } in services {
            let server = udp(a.path(), backend)?;
            let ip = b.addresses.iter().copied().find(|it| it.is_ipv4() == address.is_ipv4()).context("b")?;
            for (port, order) in [(40000, [address, backend]), (40001, [backend, address])] {
                let client = udp(b.path(), SocketAddr::new(ip, port))?;
                for to in order.into_iter().chain(order) {
                    exchange(&client, to, &server, 100).with_context(|| format!("in order {order:?}"))?;
                }
            }
        }
        Ok(())
    })
    .unwrap();
}

/// A backend remembers each connection for a minute, and refuses one from the same port whose timestamps are
/// older: those of different client ports are unrelated (since Linux 7.0, 6.18.17 and 6.12.94).
#[test]
fn short_connections_through_a_service_never_wait_for_a_backend_that_remembers_their_port() {
    with_services(|_, a, b, services| {
        for Service { address, backend } in services {
            let repeated = churn::repeated_syns(b.path(), address, a.path(), backend, 1500, 1)?;
            ensure!(repeated == 0, "{repeated} of 1500 connections to {address} waited");
        }
        Ok(())
    })
    .unwrap();
}

/// On several CPUs at once, of one pod: the reply to a request whose flow is not recorded would bypass
/// the stack, and come from an address that the client has not called.
#[test]
fn connections_that_begin_at_once_through_a_service_are_all_answered() {
    with_services(|_, a, b, services| {
        for Service { address, backend } in services {
            let repeated = churn::repeated_syns(b.path(), address, a.path(), backend, 4000, 4)?;
            ensure!(repeated == 0, "{repeated} of 16000 connections to {address} waited");
        }
        Ok(())
    })
    .unwrap();
}

fn recorded_flows() -> anyhow::Result<usize> {
    let dump = sys::run(&format!("bpftool -j map dump pinned {PINS}/STACK_FLOWS"))?;
    Ok(serde_json::from_str::<Vec<serde_json::Value>>(&dump)?.len())
}

#[test]
fn datagrams_larger_than_the_mtu_enter_the_flow_table_only_if_they_are_translated() {
    with_services(|_, a, b, services| {
        for (number, Service { address, backend }) in services.into_iter().enumerate() {
            let server = udp(a.path(), backend)?;
            let any = SocketAddr::new(if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() }, 0);
            let before = recorded_flows()?;
            for _ in 0..100 {
                exchange(&udp(b.path(), any)?, backend, &server, LARGE)?;
            }
            ensure!(recorded_flows()? == before, "{} flows are recorded", recorded_flows()?);
            exchange(&udp(b.path(), any)?, address, &server, LARGE)?;
            ensure!(recorded_flows()? == number + 1, "the translated flow is not recorded");
        }
        Ok(())
    })
    .unwrap();
}

/// Packets with IPv4 options take the stack. The others of their connection could go past it, and conntrack,
/// which would see one direction, would call it invalid.
#[test]
fn a_connection_between_pods_lives_if_one_end_sends_ip_options() {
    with_services(|_, a, b, [Service { backend, .. }, _]| {
        let connect_by = |connect: fn(SocketAddr) -> anyhow::Result<TcpStream>| {
            let listener = sys::bind_in(a.path(), backend, TcpListener::bind)?;
            listener.set_nonblocking(true)?;
            let client = sys::in_netns(b.path(), || connect(backend))?;
            accepted(client, &listener).map(|Connection { client, server }| [client, server])
        };
        let ends = connect_by(traffic::connect_with_options)?;
        traffic::both_send(&ends).context("with options from the client, from the first packet on")?;
        for end in 0..2 {
            let ends = connect_by(traffic::connect)?;
            traffic::both_send(&ends).context("without options")?;
            sys::add_options(ends.get(end).context("no end")?)?;
            traffic::both_send(&ends).with_context(|| format!("with options from end {end}"))?;
        }
        let rules = sys::run("nft list chain inet services forward")?;
        ensure!(rules.contains("ct state invalid counter packets 0 "), "{rules}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn icmp_error_from_the_backend_reaches_the_service_client() {
    with_services(|_, a, b, services| {
        for Service { address, backend } in services {
            let ip = b.addresses.iter().copied().find(|it| it.is_ipv4() == address.is_ipv4()).context("b")?;
            // No socket listens: the backend sends "port unreachable".
            for to in [address, backend] {
                let client = udp(b.path(), SocketAddr::new(ip, 0))?;
                client.connect(to)?;
                client.send(b"anybody?")?;
                let error = client.recv(&mut [0; 10]).err().context("received a reply from a closed port")?;
                ensure!(error.kind() == ErrorKind::ConnectionRefused, "{to}: {error}");
            }
            let server = udp(a.path(), backend)?;
            exchange(&udp(b.path(), SocketAddr::new(ip, 0))?, address, &server, 100)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn service_connection_survives_agent_restarts() {
    with_services(|node, a, b, services| {
        let connect = |Service { address, backend }| connect(b.path(), address, a.path(), backend);
        let mut connections = [connect(services[0])?, connect(services[1])?];
        let mut both_send = |what: &'static str| {
            connections.iter_mut().try_for_each(|connection| {
                // Server first: no packet from the client shows again that the flow belongs to the stack.
                connection.server_sends().context(what)?;
                connection.client_sends().context(what)
            })
        };
        both_send("at first")?;
        node.kill_agent()?;
        both_send("while no agent runs")?;
        node.start_again()?;
        both_send("after the agent was killed")?;
        // Answers only after start-up; SIGTERM before that would not be a graceful shutdown.
        ensure!(node.attachments()?.len() == 2);
        node.stop_agent()?;
        node.start_again()?;
        both_send("after the agent was stopped")?;
        ensure!(node.attachments()?.len() == 2);
        services.into_iter().try_for_each(|service| connect(service)?.server_sends())
    })
    .unwrap();
}

#[test]
fn pins_without_the_flow_map_are_adopted_on_upgrade() {
    with_services(|node, a, b, services| {
        node.stop_agent()?;
        let pin = format!("{PINS}/STACK_FLOWS");
        fs::remove_file(&pin).context("the flow map is not pinned")?;
        node.start_again()?;
        ensure!(Path::new(&pin).exists(), "{pin} is missing");
        ensure!(node.attachments()?.len() == 2);
        for Service { address, backend } in services {
            connect(b.path(), address, a.path(), backend)?.server_sends()?;
            b.ping(&backend.ip().to_string())?;
        }
        let dump = sys::run(&format!("bpftool map dump pinned {pin}"))?;
        for expected in ["\"low_port\"", "\"high_port\"", "\"protocol\": 6", "8080"] {
            ensure!(dump.contains(expected), "{expected} is missing in {dump}");
        }
        Ok(())
    })
    .unwrap();
}
