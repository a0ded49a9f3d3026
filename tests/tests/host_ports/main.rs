//! Ports of the node that lead to pods: who reaches them, and whom the pods see.

mod kept;
mod sctp;
mod stale;

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    chain::Chain,
    node::{NODE_V4, NODE_V6, Node, with_agent},
    pod::Pod,
    runtime::CniError,
    sys, traffic,
};
use serde_json::{Value, json};

const OUTSIDE: &str = "/run/netns/outside";
const OUTSIDE_V4: &str = "192.0.2.254";
const OUTSIDE_V6: &str = "2001:db8::254";
const PORT: u16 = 8080;
const POD_PORT: u16 = 80;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `run` on a node whose uplink neighbour can communicate with it in both families.
fn with_outside(run: impl FnOnce(&mut Node) -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
    with_agent(|node| {
        sys::run(&format!("ip -n outside addr add {OUTSIDE_V4}/24 dev eth0"))?;
        sys::run(&format!("ip -n outside addr add {OUTSIDE_V6}/64 dev eth0 nodad"))?;
        sys::run(&format!("ip route add default via {OUTSIDE_V6} dev uplink"))?;
        run(node)
    })
}

/// The agent's own configuration.
fn chain(mappings: Value) -> Chain {
    let plugin = json!({ "type": "ferrule", "capabilities": { "portMappings": true } });
    Chain::new("1.0.0", [plugin]).with("portMappings", mappings)
}

/// A mapping of the port in one protocol, as containerd writes it.
fn mapping(protocol: &str, host_ip: &str) -> Value {
    json!({ "HostPort": PORT, "ContainerPort": POD_PORT, "Protocol": protocol, "HostIP": host_ip })
}

fn attach(node: &Node, name: &str, mappings: Value) -> anyhow::Result<(Pod, Chain)> {
    let (mut pod, mut chain) = (node.pod(name)?, chain(mappings));
    pod.attached(&chain.add(&pod)?)?;
    Ok((pod, chain))
}

fn at(address: &str) -> anyhow::Result<SocketAddr> {
    Ok(SocketAddr::new(address.parse()?, PORT))
}

/// Where a pod serves what is sent to an address.
fn server(pod: &Pod, to: SocketAddr) -> anyhow::Result<SocketAddr> {
    let own = pod.addresses.iter().find(|it| it.is_ipv4() == to.is_ipv4()).context("no address")?;
    Ok(SocketAddr::new(*own, POD_PORT))
}

fn inside<T: Send>(
    netns: Option<&Path>,
    run: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    match netns {
        Some(netns) => sys::in_netns(netns, run),
        None => run(),
    }
}

/// Exchanges bytes by TCP with the pod, and returns the client as the pod sees it.
fn tcp_client(pod: &Pod, from: Option<&Path>, to: SocketAddr) -> anyhow::Result<IpAddr> {
    let listener = sys::bind_in(pod.path(), server(pod, to)?, TcpListener::bind)?;
    listener.set_nonblocking(true)?;
    thread::scope(|scope| {
        let serving = scope.spawn(|| -> anyhow::Result<IpAddr> {
            let mut accepted = None;
            sys::wait_until("a client connects", TIMEOUT, || {
                accepted = listener.accept().ok();
                Ok(accepted.is_some())
            })?;
            let (mut stream, client) = accepted.context("no client")?;
            stream.set_nonblocking(false)?;
            stream.write_all(pod.name.as_bytes())?;
            Ok(client.ip())
        });
        let mut name = String::new();
        let asked = inside(from, || {
            let mut stream = TcpStream::connect_timeout(&to, TIMEOUT).with_context(|| format!("to {to}"))?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.read_to_string(&mut name)?;
            Ok(())
        });
        let seen = serving.join().map_err(|_| anyhow::anyhow!("the server panicked"))?;
        asked.with_context(|| format!("from {from:?} to {to}"))?;
        ensure!(name == pod.name, "{name} answers at {to}");
        seen
    })
}

/// The same by UDP.
fn udp_client(pod: &Pod, from: Option<&Path>, to: SocketAddr) -> anyhow::Result<IpAddr> {
    let serving = sys::bind_in(pod.path(), server(pod, to)?, UdpSocket::bind)?;
    let exchange = |client: &Path| traffic::datagrams_to(client, &serving, to, &[1, 1000]);
    let seen = exchange(from.unwrap_or(Path::new("/proc/thread-self/ns/net")));
    Ok(seen.with_context(|| format!("UDP from {from:?} to {to}"))?.ip())
}

fn refused(outcome: anyhow::Result<Value>) -> anyhow::Result<CniError> {
    let error = outcome.err().context("the ADD succeeded")?;
    error.downcast::<CniError>().context("not a CNI error")
}

#[test]
fn a_port_of_the_node_leads_to_its_pod_from_everywhere_and_the_source_stays() {
    with_outside(|node| {
        let client = node.attach("client")?;
        let own = client.addresses.clone();
        let (pod, mut chain) = attach(node, "server", json!([mapping("tcp", ""), mapping("udp", "")]))?;
        let of_client =
            |to: SocketAddr| own.iter().find(|it| it.is_ipv4() == to.is_ipv4()).context("no address");
        for (to, outside) in [(at(NODE_V4)?, OUTSIDE_V4), (at(NODE_V6)?, OUTSIDE_V6)] {
            for seen_by in [tcp_client, udp_client] {
                let seen = seen_by(&pod, Some(Path::new(OUTSIDE)), to)?;
                ensure!(seen == outside.parse::<IpAddr>()?, "from outside: {seen}");
                let seen = seen_by(&pod, Some(client.path()), to)?;
                ensure!(seen == *of_client(to)?, "from a pod: {seen}");
                ensure!(seen_by(&pod, None, to)? == to.ip(), "from the node");
                ensure!(seen_by(&pod, Some(pod.path()), to)? == to.ip(), "from the pod itself");
            }
        }
        for seen_by in [tcp_client, udp_client] {
            ensure!(!seen_by(&pod, None, at("127.0.0.1")?)?.is_loopback(), "from the node's loopback");
        }
        let listener = sys::bind_in(pod.path(), server(&pod, at(NODE_V6)?)?, TcpListener::bind)?;
        ensure!(TcpStream::connect_timeout(&at("::1")?, TIMEOUT / 5).is_err(), "documented otherwise");
        drop(listener);
        let drops = node.drops(&pod)?;
        let lost: Vec<_> =
            drops.iter().filter(|(reason, count)| *reason != "multicast" && **count > 0).collect();
        ensure!(lost.is_empty(), "{lost:?}");
        chain.check(&pod)?;
        chain.del(&pod)?;
        ensure!(TcpStream::connect_timeout(&at(NODE_V4)?, TIMEOUT).is_err(), "the port is still open");
        let tables = sys::run("nft list tables")?;
        ensure!(!tables.contains("ferrule-ports"), "{tables}");
        client.remove()
    })
    .unwrap();
}

/// Upstream's test "HostPort validates that there is no conflict between pods with same hostPort but
/// different hostIP and protocol".
#[test]
fn pods_share_a_port_with_different_addresses_or_protocols() {
    with_outside(|node| {
        let (local, _) = attach(node, "local", json!([mapping("TCP", "127.0.0.1")]))?;
        let (tcp, _) = attach(node, "tcp", json!([mapping("TCP", NODE_V4)]))?;
        let (udp, _) = attach(node, "udp", json!([mapping("UDP", NODE_V4)]))?;
        let (all, _) = attach(node, "all", json!([mapping("TCP", "")]))?;
        // As `curl --interface <hostIP> http://127.0.0.1:<port>`.
        let asked = format!(
            "curl -sS --max-time 5 --interface {NODE_V4} --retry 3 --retry-connrefused http://127.0.0.1:{PORT}"
        );
        let listener = sys::bind_in(local.path(), server(&local, at(NODE_V4)?)?, TcpListener::bind)?;
        thread::scope(|scope| {
            let serving = scope.spawn(move || -> anyhow::Result<IpAddr> {
                let (mut stream, client) = listener.accept()?;
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte)?;
                    request.extend(byte);
                }
                stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nlocal")?;
                Ok(client.ip())
            });
            ensure!(sys::run(&asked)? == "local");
            let seen = serving.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
            ensure!(seen == NODE_V4.parse::<IpAddr>()?, "{seen}");
            Ok(())
        })?;
        tcp_client(&local, None, at("127.0.0.1")?)?;
        for from in [None, Some(Path::new(OUTSIDE)), Some(local.path()), Some(tcp.path())] {
            tcp_client(&tcp, from, at(NODE_V4)?)?;
            udp_client(&udp, from, at(NODE_V4)?)?;
            tcp_client(&all, from, at(NODE_V6)?)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_port_that_cannot_be_had_is_refused_and_changes_nothing() {
    with_agent(|node| {
        let (first, mut of_first) = attach(node, "first", json!([mapping("tcp", "")]))?;
        let (before, table) = (node.kernel_state()?, sys::run("nft list table inet ferrule-ports")?);
        let pod = node.pod("second")?;
        for (mappings, code, expected) in [
            (
                json!([mapping("tcp", "")]),
                11,
                "the node's port TCP 0.0.0.0:8080 is taken by the pod default/first",
            ),
            (
                json!([mapping("tcp", "::")]),
                11,
                "the node's port TCP [::]:8080 is taken by the pod default/first",
            ),
            // The agent's own probes would go to the pod.
            (
                json!([{ "hostPort": 9469, "containerPort": 80 }]),
                2,
                "the node's port TCP 0.0.0.0:9469 is the agent's own, for metrics and probes (--http)",
            ),
            (json!([{ "hostPort": 70_000, "containerPort": 80 }]), 7, "hostPort 70000 is no port"),
            (json!([mapping("icmp", "")]), 7, "unknown protocol"),
            (json!([mapping("tcp", "localhost")]), 7, "is no IP address"),
            (json!("8080"), 7, "runtimeConfig.portMappings"),
        ] {
            let mut chain = chain(mappings);
            let error = refused(chain.add(&pod))?;
            ensure!(error.code == code && error.msg.contains(expected), "{error}");
            chain.del(&pod)?;
            node.wait_for_kernel_state(&before)?;
            ensure!(sys::run("nft list table inet ferrule-ports")? == table);
        }
        tcp_client(&first, None, at(NODE_V4)?)?;
        of_first.del(&first)?;
        let mut again = chain(json!([mapping("tcp", "")]));
        let mut pod = pod;
        pod.attached(&again.add(&pod)?)?;
        tcp_client(&pod, None, at(NODE_V4)?).map(drop)
    })
    .unwrap();
}

#[test]
fn a_repeated_add_with_a_port_of_another_pod_leaves_the_attachment() {
    with_agent(|node| {
        let (_first, _) = attach(node, "first", json!([mapping("tcp", "")]))?;
        let (pod, mut of_pod) = attach(node, "second", json!([mapping("udp", "")]))?;
        udp_client(&pod, None, at(NODE_V4)?)?;
        of_pod.add(&pod).context("the same ADD again")?;
        // With drift, the ADD replaces the attachment.
        sys::run(&format!("ip neigh flush dev {} nud permanent", node.host_ifname(&pod)?))?;
        let mut other = chain(json!([mapping("tcp", "")]));
        let outcome = other.add(&pod);
        if let Err(error) = outcome {
            ensure!(format!("{error:#}").contains("is taken by"), "{error:#}");
        }
        udp_client(&pod, None, at(NODE_V4)?).map(drop)
    })
    .unwrap();
}

#[test]
fn rules_of_services_come_first() {
    with_agent(|node| {
        let (pod, _) = attach(node, "pod", json!([mapping("tcp", "")]))?;
        let backend = node.attach("backend")?;
        let to = server(&backend, at(NODE_V4)?)?;
        sys::run("nft add table ip kube-proxy")?;
        for (name, hook) in [("nat-prerouting", "prerouting"), ("nat-output", "output")] {
            sys::run(&format!(
                "nft add chain ip kube-proxy {name} {{ type nat hook {hook} priority -100 ; }}"
            ))?;
            sys::run(&format!(
                "nft add rule ip kube-proxy {name} ip daddr {NODE_V4} tcp dport {PORT} dnat to {to}"
            ))?;
        }
        tcp_client(&backend, None, at(NODE_V4)?)?;
        tcp_client(&backend, Some(pod.path()), at(NODE_V4)?)?;
        tcp_client(&pod, None, at(NODE_V6)?).map(drop)
    })
    .unwrap();
}
