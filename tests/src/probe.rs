//! A continuous stream of 1000 numbered UDP packets per second between pods, to detect packet loss and
//! reordering.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};

use crate::sys;

/// A running stream; dropping it stops the sender.
pub struct Probe {
    /// Stops the sender.
    stop: Arc<AtomicBool>,
    /// Set once the sender has stopped.
    ended: Arc<AtomicBool>,
    /// Packets that have arrived so far.
    arrived: Arc<AtomicU64>,
    sender: JoinHandle<anyhow::Result<u64>>,
    receiver: JoinHandle<anyhow::Result<Received>>,
}

/// Delivery statistics of a finished stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub sent: u64,
    pub lost: u64,
    /// Packets that arrived after a packet that was sent later.
    pub late: u64,
}

#[derive(Debug, Default)]
struct Received {
    packets: u64,
    late: u64,
}

const PORT: u16 = 5301;
const PACE: Duration = Duration::from_millis(1);
/// Receive buffer for a receiver that is not scheduled for a second.
const ROOM: usize = 4 << 20;
/// After this time without a packet, none is in flight.
const SILENCE: Duration = Duration::from_millis(500);
/// For packets of a stream, on a loaded machine.
const FLOW_LIMIT: Duration = Duration::from_secs(20);

// === impl Probe ===

impl Probe {
    /// Starts to send from one network namespace to an address in another.
    ///
    /// # Errors
    /// If a socket cannot be opened.
    pub fn start(from: &Path, to: &Path, address: IpAddr) -> anyhow::Result<Self> {
        let to_address = SocketAddr::new(address, PORT);
        let receiving = sys::bind_in(to, to_address, UdpSocket::bind)?;
        setsockopt(&receiving, RcvBuf, &ROOM)?;
        receiving.set_read_timeout(Some(SILENCE))?;
        let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        let sending = sys::in_netns(from, || {
            let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
            socket.connect(to_address)?;
            Ok(socket)
        })?;
        let [stop, ended] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let arrived = Arc::new(AtomicU64::new(0));
        let (stopped, no_more, count) = (Arc::clone(&stop), Arc::clone(&ended), Arc::clone(&arrived));
        Ok(Self {
            stop,
            ended,
            arrived,
            sender: thread::spawn(move || send(&sending, &stopped)),
            receiver: thread::spawn(move || receive(&receiving, &no_more, &count)),
        })
    }

    /// Waits until fifty further packets have arrived: packets flow now.
    ///
    /// # Errors
    /// If they do not arrive.
    pub fn expect_flow(&self, when: &str) -> anyhow::Result<()> {
        let before = self.arrived.load(Ordering::Relaxed);
        sys::wait_until(&format!("packets arrive {when}"), FLOW_LIMIT, || {
            Ok(self.arrived.load(Ordering::Relaxed) >= before + 50)
        })
    }

    /// Stops the stream and returns its statistics.
    ///
    /// # Errors
    /// If a packet could not be sent or read.
    pub fn end(self) -> anyhow::Result<Outcome> {
        self.stop.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow::anyhow!("a probe panicked");
        let sent = self.sender.join().map_err(panicked)??;
        self.ended.store(true, Ordering::Relaxed);
        let received = self.receiver.join().map_err(panicked)??;
        ensure!(received.packets <= sent, "{sent} packets sent, {} received", received.packets);
        Ok(Outcome { sent, lost: sent - received.packets, late: received.late })
    }
}

// === impl Outcome ===

impl Outcome {
    /// # Errors
    /// If a packet was lost or reordered.
    pub fn expect_all(self) -> anyhow::Result<()> {
        ensure!(self.sent > 0 && self.lost == 0 && self.late == 0, "{self:?}");
        Ok(())
    }
}

fn send(socket: &UdpSocket, stop: &AtomicBool) -> anyhow::Result<u64> {
    let mut next = Instant::now();
    let mut sent = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        socket.send(&sent.to_be_bytes()).context("cannot send a packet")?;
        sent += 1;
        next += PACE;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(sent)
}

fn receive(socket: &UdpSocket, ended: &AtomicBool, arrived: &AtomicU64) -> anyhow::Result<Received> {
    let mut received = Received::default();
    let mut next = 0;
    let mut packet = [0; 8];
    loop {
        match socket.recv(&mut packet) {
            Ok(_) => {
                let number = u64::from_be_bytes(packet);
                received.packets += 1;
                arrived.store(received.packets, Ordering::Relaxed);
                received.late += u64::from(number < next);
                next = next.max(number + 1);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if ended.load(Ordering::Relaxed) {
                    return Ok(received);
                }
            }
            Err(error) => return Err(error).context("cannot read a packet"),
        }
    }
}
