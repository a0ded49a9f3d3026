//! The loads: a client and a server, each on a thread of its own, pinned to a core.

use std::{
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use ferrule_tests::sys;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::{
        socket::{setsockopt, sockopt::ReceiveTimeout},
        time::{TimeVal, TimeValLike as _},
    },
    unistd::Pid,
};

use super::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// One byte there and one back, over one TCP connection.
    RequestResponse,
    /// The same with a new connection for each.
    ConnectRequestResponse,
    UdpRequestResponse,
    /// Bytes over one TCP connection.
    Stream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cores {
    /// Client and server share one: the figure is the CPU time of the path.
    Same,
    Two,
}

/// For each system call: a lost datagram or a hanging path ends the run.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Before a measurement.
const WARM_UP: Duration = Duration::from_millis(20);
const BLOCK: usize = 128 << 10;
/// The last request of a client.
const END: u8 = 0xff;

// === impl Load ===

impl Load {
    pub(crate) const ALL: [Self; 4] =
        [Self::RequestResponse, Self::ConnectRequestResponse, Self::UdpRequestResponse, Self::Stream];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RequestResponse => "TCP request/response",
            Self::ConnectRequestResponse => "TCP connect/request/response",
            Self::UdpRequestResponse => "UDP request/response",
            Self::Stream => "TCP stream",
        }
    }

    /// Transactions per second; bytes for a stream.
    pub(crate) fn measure(self, path: &Path, cores: Cores, duration: Duration) -> anyhow::Result<f64> {
        let rate = match self {
            Self::UdpRequestResponse => {
                let server = sys::bind_in(&path.server, path.listen, UdpSocket::bind)?;
                server.set_read_timeout(Some(TIMEOUT))?;
                run(path, cores, || serve_udp(&server), || call_udp(path, duration))
            }
            _ => {
                let listener = sys::bind_in(&path.server, path.listen, TcpListener::bind)?;
                // Also for accept: a client that does not get through must not leave the server waiting.
                setsockopt(&listener, ReceiveTimeout, &TimeVal::seconds(TIMEOUT.as_secs().cast_signed()))?;
                run(
                    path,
                    cores,
                    || self.serve(&listener),
                    || match self {
                        Self::Stream => send(path, duration),
                        Self::ConnectRequestResponse => connect_each(path, duration),
                        _ => request(path, duration),
                    },
                )
            }
        };
        rate.with_context(|| format!("{} by {}", self.name(), path.name()))
    }

    fn serve(self, listener: &TcpListener) -> io::Result<()> {
        let mut block = vec![0; if self == Self::Stream { BLOCK } else { 1 }];
        loop {
            let (mut stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let mut last = 0;
            loop {
                let length = stream.read(&mut block)?;
                if length == 0 {
                    break;
                }
                if self != Self::Stream {
                    stream.write_all(&block)?;
                }
                last = block.first().copied().unwrap_or_default();
                // The server closes first: TIME_WAIT would use up the client's ports.
                if self == Self::ConnectRequestResponse {
                    break;
                }
            }
            if self != Self::ConnectRequestResponse || last == END {
                return Ok(());
            }
        }
    }
}

/// Runs the client in its namespace while the server serves.
fn run(
    path: &Path,
    cores: Cores,
    serve: impl FnOnce() -> io::Result<()> + Send,
    call: impl FnOnce() -> anyhow::Result<f64> + Send,
) -> anyhow::Result<f64> {
    thread::scope(|scope| {
        let server = scope.spawn(move || -> anyhow::Result<()> {
            pin(0)?;
            Ok(serve()?)
        });
        let rate = sys::in_netns(&path.client, move || {
            pin(if cores == Cores::Same { 0 } else { 1 })?;
            call()
        })?;
        server.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
        Ok(rate)
    })
}

fn request(path: &Path, duration: Duration) -> anyhow::Result<f64> {
    let mut stream = connect(path)?;
    let mut transact = |byte| -> anyhow::Result<()> {
        stream.write_all(&[byte])?;
        Ok(stream.read_exact(&mut [0])?)
    };
    rate(WARM_UP, || transact(0))?;
    rate(duration, || transact(0))
}

fn connect_each(path: &Path, duration: Duration) -> anyhow::Result<f64> {
    let transact = |byte| -> anyhow::Result<()> {
        let mut stream = connect(path)?;
        stream.write_all(&[byte])?;
        stream.read_exact(&mut [0])?;
        anyhow::ensure!(stream.read(&mut [0])? == 0, "more than one byte");
        Ok(())
    };
    rate(WARM_UP, || transact(0))?;
    let rate = rate(duration, || transact(0));
    transact(END)?;
    rate
}

fn call_udp(path: &Path, duration: Duration) -> anyhow::Result<f64> {
    let any = if path.call.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.connect(path.call)?;
    let transact = |byte| -> anyhow::Result<()> {
        socket.send(&[byte])?;
        socket.recv(&mut [0])?;
        Ok(())
    };
    rate(WARM_UP, || transact(0))?;
    let rate = rate(duration, || transact(0));
    transact(END)?;
    rate
}

fn serve_udp(socket: &UdpSocket) -> io::Result<()> {
    let mut byte = [0];
    while byte != [END] {
        let (_, client) = socket.recv_from(&mut byte)?;
        socket.send_to(&byte, client)?;
    }
    Ok(())
}

fn send(path: &Path, duration: Duration) -> anyhow::Result<f64> {
    let mut stream = connect(path)?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let block = vec![0; BLOCK];
    let mut transact = || -> anyhow::Result<()> { Ok(stream.write_all(&block)?) };
    rate(WARM_UP, &mut transact)?;
    Ok(rate(duration, transact)? * BLOCK as f64)
}

fn connect(path: &Path) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&path.call, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Repeats a transaction, and returns its rate per second.
fn rate(duration: Duration, mut transact: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let (start, mut count) = (Instant::now(), 0_u32);
    loop {
        transact()?;
        count += 1;
        let took = start.elapsed();
        if took >= duration {
            return Ok(f64::from(count) / took.as_secs_f64());
        }
    }
}

/// Limits the calling thread to one core.
pub(crate) fn pin(core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    // With 0, the calling thread.
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("cannot use only core {core}"))
}
