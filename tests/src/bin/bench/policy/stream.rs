//! A stream of datagrams between two namespaces, which shows when the packets between them begin or cease to
//! pass.

use std::{
    net::{SocketAddr, UdpSocket},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, ensure};
use ferrule_tests::sys;

use super::bed::TIMEOUT;

/// What happens to the datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// None has arrived; they begin to.
    Pass,
    /// All have arrived; they cease to.
    Cease,
}

/// From a sender to a receiver, in their namespaces.
pub(super) struct Stream {
    sender: UdpSocket,
    receiver: UdpSocket,
    to: SocketAddr,
}

/// Between two datagrams. The kernel's timers add as much again, so that this limits the precision.
const INTERVAL: Duration = Duration::from_micros(100);
/// Without an arrival for so long, datagrams have ceased to pass.
const SILENCE: Duration = Duration::from_millis(100);
/// Before the change; the rest is random, for agents' periodic work.
const BEFORE: Duration = Duration::from_millis(30);
const NOTHING: u32 = u32::MAX;

// === impl Stream ===

impl Stream {
    pub(super) fn new(from: &Path, to: SocketAddr, server: &Path) -> anyhow::Result<Self> {
        let sender = sys::in_netns(from, || Ok(UdpSocket::bind("0.0.0.0:0")?))?;
        let receiver = sys::bind_in(server, to, UdpSocket::bind)?;
        receiver.set_read_timeout(Some(Duration::from_millis(20)))?;
        Ok(Self { sender, receiver, to })
    }

    /// Makes a change, and returns the time from before the write until after the kernel took the first
    /// datagram that passed, or the first one that did not.
    pub(super) fn measure(
        &self,
        turn: Turn,
        change: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Duration> {
        let (stop, first, last) = (AtomicBool::new(false), AtomicU32::new(NOTHING), AtomicU32::new(NOTHING));
        thread::scope(|scope| {
            let sender = scope.spawn(|| self.send(&stop));
            let receiver = scope.spawn(|| self.receive(&stop, &first, &last));
            let changed = (|| {
                thread::sleep(BEFORE + Duration::from_micros(fastrand::u64(..10_000)));
                let has_passed = first.load(Ordering::Relaxed) != NOTHING;
                ensure!(
                    has_passed == (turn == Turn::Cease),
                    "before the change, packets passed: {has_passed}"
                );
                let start = Instant::now();
                change()?;
                self.wait(turn, &first, &last)?;
                anyhow::Ok(start)
            })();
            stop.store(true, Ordering::Relaxed);
            let sent = sender.join().map_err(|_| anyhow!("the sender panicked"))?;
            receiver.join().map_err(|_| anyhow!("the receiver panicked"))?;
            let start = changed?;
            let at = match turn {
                Turn::Pass => first.load(Ordering::Relaxed),
                Turn::Cease => last.load(Ordering::Relaxed).wrapping_add(1),
            };
            let at = sent.get(usize::try_from(at)?).context("no datagram shows the change")?;
            at.checked_duration_since(start).context("the change was in force before it was made")
        })
    }

    fn wait(&self, turn: Turn, first: &AtomicU32, last: &AtomicU32) -> anyhow::Result<()> {
        let limit = Instant::now() + TIMEOUT;
        let (mut seen, mut since) = (NOTHING, Instant::now());
        loop {
            ensure!(Instant::now() < limit, "to {}: no change after {TIMEOUT:?}", self.to);
            thread::sleep(Duration::from_millis(2));
            let now = last.load(Ordering::Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            let is_done = match turn {
                Turn::Pass => first.load(Ordering::Relaxed) != NOTHING,
                Turn::Cease => since.elapsed() > SILENCE,
            };
            if is_done {
                return Ok(());
            }
        }
    }

    /// Returns when the kernel has taken each datagram.
    fn send(&self, stop: &AtomicBool) -> Vec<Instant> {
        let mut sent = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let number = u32::try_from(sent.len()).unwrap_or(NOTHING);
            // A queue may be full: the datagram counts as lost.
            let _ = self.sender.send_to(&number.to_be_bytes(), self.to);
            sent.push(Instant::now());
            thread::sleep(INTERVAL);
        }
        sent
    }

    fn receive(&self, stop: &AtomicBool, first: &AtomicU32, last: &AtomicU32) {
        let mut number = [0; 4];
        while !stop.load(Ordering::Relaxed) {
            if self.receiver.recv(&mut number).is_ok() {
                let number = u32::from_be_bytes(number);
                let _ = first.compare_exchange(NOTHING, number, Ordering::Relaxed, Ordering::Relaxed);
                last.store(number, Ordering::Relaxed);
            }
        }
    }
}
