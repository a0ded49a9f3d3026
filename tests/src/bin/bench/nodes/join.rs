//! The time from a new Node object to the first answer from one of the node's pods.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, ensure};
use ferrule_tests::{
    fabric::{Member, with_fabric},
    pod::Pod,
    sys,
};

use crate::stats::Series;

const TIMEOUT: Duration = Duration::from_secs(20);
/// Between two datagrams of the client.
const INTERVAL: Duration = Duration::from_micros(250);
/// After the last change of both nodes' routes; the rest is random, for agents' periodic work.
const SETTLE: Duration = Duration::from_millis(50);
const PORT: u16 = 5203;

/// The ways to the nodes that join.
pub(super) const WAYS: [&str; 2] = ["on the same segment, by a route", "behind a router, by VXLAN"];

/// Deletes the Node object of a node with a running pod, and creates the object again, so many times for each
/// of [`WAYS`].
pub(super) fn measure(count: usize) -> anyhow::Result<[Series; 2]> {
    with_fabric(&[], |fabric| {
        let [near, neighbour, far] = &fabric.nodes;
        let client = near.attach("client")?;
        Ok([of_node(near, neighbour, &client, count)?, of_node(near, far, &client, count)?])
    })
}

fn of_node(near: &Member, other: &Member, client: &Pod, count: usize) -> anyhow::Result<Series> {
    let server = other.attach(&format!("server-on-{}", other.name))?;
    let to = SocketAddr::new(*server.addresses.first().context("the pod has no address")?, PORT);
    let listener = sys::bind_in(server.path(), to, UdpSocket::bind)?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| echo(&listener, &done));
        let mut took = Series::default();
        let result = (0..count).try_for_each(|_| {
            took.push(join(near, other, client, to)?);
            anyhow::Ok(())
        });
        done.store(true, Ordering::Relaxed);
        result.map(|()| took)
    })
}

/// One sample.
fn join(near: &Member, far: &Member, client: &Pod, to: SocketAddr) -> anyhow::Result<Duration> {
    far.unregister()?;
    sys::wait_until("the node has left", TIMEOUT, || Ok(!knows(near, far)?))?;
    thread::sleep(SETTLE + Duration::from_micros(fastrand::u64(..10_000)));
    let socket = sys::in_netns(client.path(), || {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        Ok(UdpSocket::bind(any)?)
    })?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    let stop = AtomicBool::new(false);
    let took = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // As long as there is no way, the kernel may refuse.
                let _ = socket.send_to(&[0], to);
                thread::sleep(INTERVAL);
            }
        });
        let start = Instant::now();
        let result = far.register().and_then(|()| {
            let answer = socket.recv_from(&mut [0]).context("no answer from a pod of the new node");
            answer.map(|(_, from)| (start.elapsed(), from))
        });
        stop.store(true, Ordering::Relaxed);
        sender.join().map_err(|_| anyhow!("the client panicked"))?;
        let (took, from) = result?;
        ensure!(from == to, "{from} answered, not {to}");
        anyhow::Ok(took)
    })?;
    sys::wait_until("the node has come", TIMEOUT, || knows(near, far))?;
    Ok(took)
}

/// Whether a node has routes to all ranges of another.
fn knows(node: &Member, other: &Member) -> anyhow::Result<bool> {
    let routes = node.node_routes()?;
    let has = |range: &String| routes.iter().any(|it| it.starts_with(&format!("{range} ")));
    let known = other.ranges.iter().filter(|it| has(it)).count();
    ensure!(known == 0 || known == other.ranges.len(), "routes to some ranges only: {routes:?}");
    Ok(known > 0)
}

fn echo(socket: &UdpSocket, done: &AtomicBool) -> io::Result<()> {
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut byte = [0];
    while !done.load(Ordering::Relaxed) {
        // Without a datagram, and while the answer has no way, the kernel returns an error.
        if let Ok((_, client)) = socket.recv_from(&mut byte) {
            let _ = socket.send_to(&byte, client);
        }
    }
    Ok(())
}
