//! What was on the wire: the frames at a port of the underlay, bare or in VXLAN.
//!
//! Parsed by etherparse: nothing is shared with the programs.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{anyhow, ensure};
use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};

use crate::{packet, wire::Wire};

/// A running capture.
pub struct Capture {
    stop: Arc<AtomicBool>,
    reader: JoinHandle<anyhow::Result<Frames>>,
}

/// The IP packets of a finished capture, in their order on the wire.
#[derive(Debug, Default)]
pub struct Frames(pub Vec<Frame>);

/// An IP packet on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub packet: Packet,
    /// Set if the packet is VXLAN.
    pub inner: Option<Inner>,
}

/// What a VXLAN packet carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inner {
    pub vni: u32,
    pub packet: Packet,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// Source and destination of TCP and UDP; not of later fragments.
    pub ports: Option<(u16, u16)>,
    pub is_fragment: bool,
    /// The length of the IP packet. The kernel cuts longer packets of TCP only where the underlay is real.
    pub len: usize,
}

/// The port of VXLAN (RFC 7348), and the agents' network identifier.
pub const TUNNEL_PORT: u16 = 4789;
pub const VNI: u32 = 70;

/// Enough for a stream of some megabytes; a longer capture is an error.
const MAX_FRAMES: usize = 200_000;
/// After this time without a frame, none is in flight.
const SILENCE: Duration = Duration::from_millis(30);
/// For a capture on a machine that does not schedule the reader for a while.
const ROOM: usize = 32 << 20;
const VXLAN_HEADER: usize = 8;
const ETHERNET_HEADER: usize = 14;

// === impl Capture ===

impl Capture {
    /// Starts to capture the frames in both directions at an interface of a network namespace.
    ///
    /// # Errors
    /// If the namespace has no such interface.
    pub fn start(netns: &Path, interface: &str) -> anyhow::Result<Self> {
        let wire = Wire::open(netns, interface)?;
        wire.make_room(ROOM)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Ok(Self { stop, reader: thread::spawn(move || read(&wire, &stopped)) })
    }

    /// Ends the capture and returns what it has seen.
    ///
    /// # Errors
    /// If the socket could not be read, or there were too many frames.
    pub fn end(self) -> anyhow::Result<Frames> {
        self.stop.store(true, Ordering::Relaxed);
        self.reader.join().map_err(|_| anyhow!("the capture panicked"))?
    }
}

fn read(wire: &Wire, stop: &AtomicBool) -> anyhow::Result<Frames> {
    let mut frames = Vec::new();
    loop {
        // Read before the wait, so that whatever was sent before the stop is in the socket by then.
        let is_last = stop.load(Ordering::Relaxed);
        while let Some(frame) = wire.receive(SILENCE, |_| true)? {
            frames.extend(Frame::parse(&frame));
            ensure!(frames.len() <= MAX_FRAMES, "more than {MAX_FRAMES} frames");
            if !is_last && stop.load(Ordering::Relaxed) {
                break;
            }
        }
        if is_last {
            return Ok(Frames(frames));
        }
    }
}

// === impl Frames ===

impl Frames {
    /// The packets between two addresses, in both directions: bare, or inside of a tunnel.
    pub fn between(&self, a: IpAddr, b: IpAddr) -> Self {
        let wanted = |it: &&Frame| {
            let Packet { source, destination, .. } = *it.carried();
            (source, destination) == (a, b) || (source, destination) == (b, a)
        };
        Self(self.0.iter().filter(wanted).cloned().collect())
    }

    /// # Errors
    /// If there are no packets, or one of them is in a tunnel.
    pub fn expect_bare(&self) -> anyhow::Result<()> {
        ensure!(!self.0.is_empty(), "no packet was on the wire");
        ensure!(self.0.iter().all(|it| it.inner.is_none()), "not all packets are bare:\n{self}");
        Ok(())
    }

    /// # Errors
    /// If there are no packets, or one of them is not in a tunnel between addresses of two nodes, or is a
    /// fragment.
    pub fn expect_tunnelled(&self, a: &[IpAddr], b: &[IpAddr]) -> anyhow::Result<()> {
        ensure!(!self.0.is_empty(), "no packet was on the wire");
        let is_tunnelled = |it: &Frame| {
            let Packet { source, destination, is_fragment, .. } = &it.packet;
            let ends = |a: &[IpAddr], b: &[IpAddr]| a.contains(source) && b.contains(destination);
            // The receiver's kernel reuses the buffers of fragments, which the capture shares: the Ethernet
            // headers of the reassembled packet go over the end of the VXLAN header.
            it.inner.as_ref().is_some_and(|inner| inner.vni == VNI || inner.packet.is_fragment)
                && !is_fragment
                && (ends(a, b) || ends(b, a))
        };
        ensure!(self.0.iter().all(is_tunnelled), "not all packets are in a tunnel {a:?} to {b:?}:\n{self}");
        Ok(())
    }

    /// # Errors
    /// If there is a packet.
    pub fn expect_none(&self) -> anyhow::Result<()> {
        ensure!(self.0.is_empty(), "there are packets on the wire:\n{self}");
        Ok(())
    }

    /// The packets to an address, bare or inside of a tunnel.
    pub fn to(&self, address: IpAddr) -> Self {
        Self(self.0.iter().filter(|it| it.carried().destination == address).cloned().collect())
    }
}

impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|frame| writeln!(f, "{frame}"))
    }
}

// === impl Frame ===

impl Frame {
    /// `None` if the frame is no IP packet.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let sliced = LaxSlicedPacket::from_ethernet(bytes).ok()?;
        let packet = Packet::of(&sliced, bytes.len() - ETHERNET_HEADER)?;
        let inner = match &sliced.transport {
            Some(TransportSlice::Udp(udp)) if udp.destination_port() == TUNNEL_PORT => {
                let (header, inside) = udp.payload().split_at_checked(VXLAN_HEADER)?;
                let vni = header.get(4..7)?.iter().fold(0, |vni, byte| vni << 8 | u32::from(*byte));
                let len = inside.len().checked_sub(ETHERNET_HEADER)?;
                let packet = Packet::of(&LaxSlicedPacket::from_ethernet(inside).ok()?, len)?;
                Some(Inner { vni, packet })
            }
            _ => None,
        };
        Some(Self { packet, inner })
    }

    /// The packet itself, or the one in the tunnel.
    pub fn carried(&self) -> &Packet {
        self.inner.as_ref().map_or(&self.packet, |inner| &inner.packet)
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.packet)?;
        self.inner.iter().try_for_each(|Inner { vni, packet }| write!(f, " VXLAN {vni} [{packet}]"))
    }
}

// === impl Packet ===

impl Packet {
    fn of(sliced: &LaxSlicedPacket<'_>, len: usize) -> Option<Self> {
        let (source, destination, payload) = match sliced.net.as_ref()? {
            LaxNetSlice::Ipv4(ip) => {
                let header = ip.header();
                (header.source().into(), header.destination().into(), ip.payload())
            }
            LaxNetSlice::Ipv6(ip) => {
                let header = ip.header();
                (header.source().into(), header.destination().into(), ip.payload())
            }
            LaxNetSlice::Arp(_) => return None,
        };
        let ports = match &sliced.transport {
            Some(TransportSlice::Udp(udp)) => Some((udp.source_port(), udp.destination_port())),
            Some(TransportSlice::Tcp(tcp)) => Some((tcp.source_port(), tcp.destination_port())),
            _ => None,
        };
        let (protocol, is_fragment) = (payload.ip_number.0, payload.fragmented);
        Some(Self { source, destination, protocol, ports, is_fragment, len })
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            packet::TCP => "TCP",
            packet::UDP => "UDP",
            packet::ICMP => "ICMP",
            packet::ICMPV6 => "ICMPv6",
            _ => "other",
        };
        let end = |address, port: Option<u16>| match port {
            Some(port) => SocketAddr::new(address, port).to_string(),
            None => address.to_string(),
        };
        let (from, to) = self.ports.unzip();
        write!(
            f,
            "{} > {} {protocol}, {} bytes",
            end(self.source, from),
            end(self.destination, to),
            self.len
        )?;
        if self.is_fragment { f.write_str(", fragment") } else { Ok(()) }
    }
}
