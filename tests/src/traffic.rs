//! TCP and UDP traffic between network namespaces.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use nix::sys::{
    socket::{
        self, AddressFamily, SockFlag, SockType, SockaddrStorage, setsockopt,
        sockopt::{ReuseAddr, SendTimeout},
    },
    time::TimeVal,
};

use crate::{pod::Pod, sys};

/// Size and duration of a finished stream.
#[derive(Debug, Clone, Copy)]
pub struct Streamed {
    pub bytes: u64,
    pub took: Duration,
}

const PORT: u16 = 5201;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Streams bytes over TCP from one network namespace to an address in another, and verifies that they arrive
/// complete and unmodified.
///
/// # Errors
/// If bytes are lost or modified.
pub fn stream(from: &Path, to: &Path, address: IpAddr, bytes: u64) -> anyhow::Result<Streamed> {
    let address = SocketAddr::new(address, PORT);
    stream_by(from, address, to, address, bytes)
}

/// As [`stream`], to an address that NAT translates to the server's.
///
/// # Errors
/// As [`stream`].
pub fn stream_by(
    from: &Path,
    to: SocketAddr,
    server: &Path,
    listen: SocketAddr,
    bytes: u64,
) -> anyhow::Result<Streamed> {
    let listener = sys::bind_in(server, listen, TcpListener::bind)?;
    let start = Instant::now();
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(move || receive(&listener, Some(bytes)));
        sys::in_netns(from, || send(to, bytes))?;
        receiver.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))?
    })?;
    ensure!(received == bytes, "received {received} of {bytes} bytes");
    Ok(Streamed { bytes, took: start.elapsed() })
}

/// Streams bytes over one TCP connection until `stop` is set, some tens of megabytes per second, and verifies
/// that they arrive complete and unmodified.
///
/// # Errors
/// If bytes are lost or modified.
pub fn stream_until(stop: &AtomicBool, from: &Path, to: &Path, address: IpAddr) -> anyhow::Result<()> {
    let to_address = SocketAddr::new(address, PORT);
    let listener = sys::bind_in(to, to_address, TcpListener::bind)?;
    let (sent, received) = thread::scope(|scope| {
        let receiver = scope.spawn(move || receive(&listener, None));
        let sent = sys::in_netns(from, || {
            let mut stream = connect(to_address)?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            let (block, mut sent) = (pattern(), 0);
            while !stop.load(Ordering::Relaxed) {
                stream.write_all(&block)?;
                sent += block.len() as u64;
                thread::sleep(Duration::from_millis(1));
            }
            Ok(sent)
        })?;
        let received = receiver.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))??;
        anyhow::Ok((sent, received))
    })?;
    ensure!(sent > 0 && received == sent, "received {received} of {sent} bytes");
    Ok(())
}

/// Connects to an echo server that listens at `listen` in a network namespace, and verifies the echo. The
/// address that the closure connects to may differ from `listen`, if NAT translates between them.
///
/// # Errors
/// If the connection fails, or the echo differs from the request.
pub fn echo(
    server: &Path,
    listen: SocketAddr,
    connect: impl FnOnce() -> anyhow::Result<TcpStream> + Send,
) -> anyhow::Result<()> {
    const CALL: &[u8] = b"echo request";
    let listener = sys::bind_in(server, listen, TcpListener::bind)?;
    thread::scope(|scope| {
        let serving = scope.spawn(move || -> anyhow::Result<()> {
            let mut stream = accept(&listener)?;
            let mut call = [0; CALL.len()];
            stream.read_exact(&mut call)?;
            Ok(stream.write_all(&call)?)
        });
        let ask = || -> anyhow::Result<()> {
            let mut stream = connect()?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.write_all(CALL)?;
            let mut answer = [0; CALL.len()];
            stream.read_exact(&mut answer).context("no echo received")?;
            ensure!(answer == CALL, "wrong echo: {answer:?}");
            Ok(())
        };
        ask()?;
        serving.join().map_err(|_| anyhow::anyhow!("the server panicked"))?
    })
}

/// Sends datagrams of these lengths from one network namespace to an address in another, each with a reply of
/// the same length, and returns the client's address as the server saw it.
///
/// # Errors
/// If one of them does not arrive, or not as sent.
pub fn datagrams(client: &Path, server: &Path, to: SocketAddr, lens: &[usize]) -> anyhow::Result<SocketAddr> {
    let receiving = sys::bind_in(server, to, UdpSocket::bind)?;
    datagrams_to(client, &receiving, to, lens)
}

/// As [`datagrams`], to a server whose own address may differ from `to`, if NAT translates between them.
///
/// # Errors
/// As [`datagrams`].
pub fn datagrams_to(
    client: &Path,
    server: &UdpSocket,
    to: SocketAddr,
    lens: &[usize],
) -> anyhow::Result<SocketAddr> {
    server.set_read_timeout(Some(TIMEOUT))?;
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let client = sys::in_netns(client, || Ok(UdpSocket::bind(any)?))?;
    client.set_read_timeout(Some(TIMEOUT))?;
    let (pattern, mut room) = (pattern(), vec![0; 1 << 16]);
    let mut seen = None;
    for len in lens {
        let sent = pattern.get(..*len).context("no datagram is as long")?;
        client.send_to(sent, to).with_context(|| format!("cannot send {len} bytes to {to}"))?;
        let (got, from) =
            server.recv_from(&mut room).with_context(|| format!("{len} bytes to {to} did not arrive"))?;
        ensure!(room.get(..got) == Some(sent), "{got} other bytes than the {len} sent arrived");
        server.send_to(sent, from)?;
        let (got, by) = client.recv_from(&mut room).with_context(|| format!("no reply of {len} bytes"))?;
        ensure!(room.get(..got) == Some(sent) && by == to, "a reply of {got} bytes came from {by}");
        seen = Some(from);
    }
    seen.context("there was nothing to send")
}

/// Connects, with a timeout that outlasts one or two lost packets.
///
/// # Errors
/// If the connection is not established.
pub fn connect(to: SocketAddr) -> anyhow::Result<TcpStream> {
    TcpStream::connect_timeout(&to, TIMEOUT).with_context(|| format!("cannot connect to {to}"))
}

/// A pod's connected socket, whose port other sockets may share.
///
/// # Errors
/// If the pod has no address of the family, or the connection is not established in time.
pub fn connected(client: &Pod, port: u16, to: SocketAddr, kind: SockType) -> anyhow::Result<OwnedFd> {
    let ip = client.addresses.iter().find(|it| it.is_ipv4() == to.is_ipv4()).context("no address")?;
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    sys::in_netns(client.path(), || {
        let socket = socket::socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, ReuseAddr, &true)?;
        // Bounds the connect, too.
        setsockopt(&socket, SendTimeout, &TimeVal::new(TIMEOUT.as_secs().cast_signed(), 0))?;
        socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(*ip, port)))
            .with_context(|| format!("cannot bind to port {port}"))?;
        socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(to))
            .with_context(|| format!("cannot connect to {to} from port {port}"))?;
        Ok(socket)
    })
}

fn send(to: SocketAddr, bytes: u64) -> anyhow::Result<()> {
    let mut stream = connect(to)?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let block = pattern();
    let mut left = bytes;
    while left > 0 {
        let length = left.min(block.len() as u64);
        stream.write_all(block.get(..usize::try_from(length)?).unwrap_or_default())?;
        left -= length;
    }
    Ok(())
}

/// Reads `bytes` bytes, or until the end of the stream.
fn receive(listener: &TcpListener, bytes: Option<u64>) -> anyhow::Result<u64> {
    let mut stream = accept(listener)?;
    let expected = pattern();
    let mut received = 0;
    let mut block = vec![0; expected.len()];
    while bytes.is_none_or(|bytes| received < bytes) {
        let left = bytes.map_or(u64::MAX, |bytes| bytes - received);
        let wanted = usize::try_from(left.min(block.len() as u64))?;
        let room = block.get_mut(..wanted).unwrap_or_default();
        if bytes.is_none() && stream.peek(&mut [0])? == 0 {
            break;
        }
        stream.read_exact(room)?;
        ensure!(Some(&*room) == expected.get(..wanted), "received bytes differ from the bytes sent");
        received += wanted as u64;
    }
    Ok(received)
}

/// Waits for a client, and bounds the reads of the connection.
///
/// # Errors
/// If no client connects in time.
pub fn accept(listener: &TcpListener) -> anyhow::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return Err(error.into()),
            Err(_) => ensure!(start.elapsed() < TIMEOUT, "no client connected within {TIMEOUT:?}"),
        }
        thread::sleep(Duration::from_millis(1));
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Sends a few megabytes in each direction of a connection, more than conntrack's window. Both ends need
/// timeouts.
///
/// # Errors
/// If they do not arrive in time.
pub fn both_send(ends: &[TcpStream; 2]) -> anyhow::Result<()> {
    let [client, server] = ends;
    for (mut from, mut to) in [(client, server), (server, client)] {
        let block = vec![7; 4 << 20];
        let sent = thread::scope(|scope| {
            let sent = scope.spawn(|| from.write_all(&block));
            to.read_exact(&mut vec![0; block.len()])?;
            sent.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        sent.with_context(|| format!("from {:?}", from.local_addr()))?;
    }
    Ok(())
}

/// As [`connect`] over IPv4, with options from the first packet on.
///
/// # Errors
/// If the connection is not established in time.
pub fn connect_with_options(to: SocketAddr) -> anyhow::Result<TcpStream> {
    let socket = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    sys::add_options(&socket)?;
    // Bounds the connect, too.
    setsockopt(&socket, SendTimeout, &TimeVal::new(TIMEOUT.as_secs().cast_signed(), 0))?;
    socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(to))
        .with_context(|| format!("cannot connect to {to}"))?;
    Ok(socket.into())
}

/// A block that reveals lost, duplicated or reordered bytes: its length shares no factor with a segment size.
fn pattern() -> Vec<u8> {
    (0..65_521_u32).map(|index| (index * 7 + index / 251) as u8).collect()
}

// === impl Streamed ===

impl Streamed {
    pub fn gbit_per_second(self) -> f64 {
        self.bytes as f64 * 8.0 / self.took.as_secs_f64() / 1e9
    }
}
