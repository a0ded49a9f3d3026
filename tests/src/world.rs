//! A world behind the node's uplink, and what it sees of pods.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::{pod::Pod, sys, traffic};
use anyhow::{Context as _, ensure};

/// The world's addresses: neighbours of the node, and others behind them.
pub const NEAR: [&str; 2] = ["192.0.2.254", "2001:db8::254"];
pub const FAR: [&str; 2] = ["198.51.100.7", "2001:db8:f::7"];
const WAIT: Duration = Duration::from_secs(5);

/// The namespace behind the uplink of a [`crate::node::Node`].
pub struct World(PathBuf);

impl World {
    /// Gives the namespace behind the uplink its addresses. The world has no route to pods.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn make() -> anyhow::Result<Self> {
        for (near, far) in NEAR.iter().zip(FAR) {
            let length = if near.contains(':') { 64 } else { 24 };
            sys::run(&format!("ip -n outside addr add {near}/{length} dev eth0 nodad"))?;
            sys::run(&format!("ip -n outside addr add {far} dev lo nodad"))?;
        }
        sys::run("ip -n outside link set lo up")?;
        sys::run("ip -6 route add default via 2001:db8::254 dev uplink")?;
        Ok(Self("/run/netns/outside".into()))
    }

    /// A world that is there already.
    pub const fn at(netns: PathBuf) -> Self {
        Self(netns)
    }

    /// Gives the world a route to a range of the node: what keeps its source gets replies.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn route_to(&self, range: &str, node: &str) -> anyhow::Result<()> {
        sys::run(&format!("ip -n outside route add {range} via {node}")).map(drop)
    }

    /// The path of the network namespace.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The source of a TCP connection from a pod to an address of the world, as the world sees the source.
    ///
    /// # Errors
    /// If no reply arrives.
    pub fn tcp_source(&self, pod: &Pod, to: &str) -> anyhow::Result<SocketAddr> {
        tcp_source(pod.path(), &self.0, SocketAddr::new(to.parse()?, 8080))
    }

    /// As [`Self::tcp_source`], of a datagram.
    ///
    /// # Errors
    /// If no reply arrives.
    pub fn udp_source(&self, pod: &Pod, to: &str) -> anyhow::Result<SocketAddr> {
        let to = SocketAddr::new(to.parse()?, 8080);
        let server = sys::bind_in(&self.0, to, UdpSocket::bind)?;
        server.set_read_timeout(Some(WAIT))?;
        sys::in_netns(pod.path(), || {
            let client = UdpSocket::bind(SocketAddr::new(any_of(to.ip()), 0))?;
            client.set_read_timeout(Some(WAIT))?;
            client.send_to(b"?", to)?;
            let (_, from) = server.recv_from(&mut [0; 8]).context("the world received nothing")?;
            server.send_to(b"!", from)?;
            let (_, answers) = client.recv_from(&mut [0; 8]).context("no reply")?;
            ensure!(answers == to, "the reply came from {answers}");
            Ok(from)
        })
    }
}

/// The source of a connection between network namespaces, after a round trip.
///
/// # Errors
/// If no reply arrives.
pub fn tcp_source(client: &Path, server: &Path, to: SocketAddr) -> anyhow::Result<SocketAddr> {
    tcp_source_by(client, to, server, to)
}

/// As [`tcp_source`], of a connection to an address that NAT translates to the server's.
///
/// # Errors
/// If no reply arrives.
pub fn tcp_source_by(
    client: &Path,
    to: SocketAddr,
    server: &Path,
    listen: SocketAddr,
) -> anyhow::Result<SocketAddr> {
    let listener = sys::bind_in(server, listen, TcpListener::bind)?;
    let (seen, source) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || -> anyhow::Result<()> {
            let mut stream = traffic::accept(&listener)?;
            let from = stream.peer_addr()?;
            stream.write_all(b"!")?;
            Ok(seen.send(from)?)
        });
        let connected = sys::in_netns(client, || {
            let mut stream = traffic::connect(to)?;
            stream.set_read_timeout(Some(WAIT))?;
            stream.read_exact(&mut [0]).context("no reply")
        });
        if connected.is_err() {
            // Ends the server.
            sys::in_netns(server, || traffic::connect(listen))?;
        }
        connected
    })?;
    Ok(source.recv_timeout(WAIT)?)
}

fn any_of(address: IpAddr) -> IpAddr {
    if address.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0_u16; 8]) }
}
