//! What two pods notice of a third one that floods the node with spoofed packets from the other core.
//!
//! The programs drop each packet, and record as many as the budget allows. Two pods that share a machine
//! share its memory and caches, too: the reference is a third pod that sends the same packets to its own
//! loopback. What the pair has without any flood is shown beside both.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use agent_common::GATEWAY_MAC;
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::Node,
    packet::{self, Ipv4},
    pod::Pod,
    sys,
    wire::{self, Wire},
};

use crate::rates::{
    comparison::{Comparison, median},
    load::{Cores, Load, pin},
    path::Path,
};

pub(super) const OWN: &str = "flood of own loopback";
pub(super) const SPOOFED: &str = "flood of spoofed packets";
pub(super) const NONE: &str = "no flood";

pub(super) struct Flood {
    pod: Pod,
    /// Loopback, and the interface that the agent has attached.
    wires: [Wire; 2],
    frame: Vec<u8>,
    /// Frames per second on each wire, by round.
    rates: [Vec<f64>; 2],
}

/// Loads and names are on core 0.
const CORE: usize = 1;
/// For documentation (RFC 5737); no pod has it.
const SPOOFED_SOURCE: [u8; 4] = [203, 0, 113, 9];
const DESTINATION: [u8; 4] = [10, 244, 0, 1];
const PORT: u16 = 9;

pub(super) fn comparison() -> Comparison {
    Comparison::new("A third pod floods", vec![OWN, SPOOFED, NONE], [(Load::RequestResponse, Cores::Same)])
}

// === impl Flood ===

impl Flood {
    pub(super) fn new(node: &Node) -> anyhow::Result<Self> {
        let pod = node.attach("flood")?;
        pod.run("ip link set lo up")?;
        let mac = sys::in_netns(pod.path(), || wire::mac("eth0"))?;
        let ip = Ipv4::new(SPOOFED_SOURCE, DESTINATION, packet::UDP).with(&packet::udp(PORT, PORT, b"flood"));
        let frame = packet::frame(GATEWAY_MAC, mac, packet::IPV4, &ip);
        let wires = [Wire::open(pod.path(), "lo")?, Wire::open(pod.path(), "eth0")?];
        Ok(Self { pod, wires, frame, rates: Default::default() })
    }

    /// Measures each flood once, and the path without one.
    pub(super) fn round(
        &mut self,
        path: &Path,
        duration: Duration,
        into: &mut Comparison,
    ) -> anyhow::Result<()> {
        for (way, (wire, rates)) in self.wires.iter().zip(&mut self.rates).enumerate() {
            for row in &mut into.rows {
                let measure = || row.load.measure(path, row.cores, duration);
                let (rate, frames) = during(wire, &self.frame, measure)?;
                row.push(way, rate);
                rates.push(frames);
            }
        }
        for row in &mut into.rows {
            row.push(self.wires.len(), row.load.measure(path, row.cores, duration)?);
        }
        Ok(())
    }

    /// How hard the floods were.
    ///
    /// # Errors
    /// If no packet was dropped as spoofed: the measurement means nothing.
    pub(super) fn describe(&self, node: &Node) -> anyhow::Result<String> {
        let drops = node.drops(&self.pod)?;
        ensure!(
            drops.contains_key("spoofed_ipv4"),
            "no packet of the flood was dropped as spoofed: {drops:?}"
        );
        let [own, spoofed] = self.rates.each_ref().map(|rates| median(rates) / 1e3);
        Ok(format!("{own:.0} thousand frames per second to loopback, {spoofed:.0} thousand spoofed ones"))
    }
}

/// Runs a measurement while another thread sends frames; returns its result and the frames per second.
fn during<T>(
    wire: &Wire,
    frame: &[u8],
    measure: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, f64)> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sender = scope.spawn(|| -> anyhow::Result<f64> {
            pin(CORE)?;
            let (start, mut sent) = (Instant::now(), 0_u32);
            while !stop.load(Ordering::Relaxed) {
                // A queue may be full.
                sent += u32::from(wire.send(frame).is_ok());
            }
            Ok(f64::from(sent) / start.elapsed().as_secs_f64())
        });
        let result = measure();
        stop.store(true, Ordering::Relaxed);
        let frames =
            sender.join().map_err(|_| anyhow::anyhow!("the flood panicked"))?.context("the flood")?;
        ensure!(frames > 0.0, "the flood sent nothing");
        Ok((result?, frames))
    })
}
