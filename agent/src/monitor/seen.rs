//! A dropped packet or a flow, joined with the pods at its ends.

use std::{net::IpAddr, sync::Arc};

use agent_common::{
    DropReason, EndpointKey,
    event::{DropRecord, Event, FlowRecord, FlowTraffic, direction, flow_state},
};

use super::{
    clock::WallClock,
    frame,
    packet::{Icmp, Ip, Network, Packet, Ports, TcpFlags, Transport, protocol},
};
use crate::{
    policy::{Denial, RemotePod, RemotePods},
    registry::{Owner, Registry},
};

/// An entry of the history.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
    pub packet: Packet,
    /// Of the pod behind `interface`.
    pub direction: Direction,
    pub interface: Interface,
    /// `None` unless the end is a known pod.
    pub source: Option<Pod>,
    pub destination: Option<Pod>,
    /// Earlier records that the programs did not write, because there were too many.
    pub suppressed: u32,
    /// The same, because the ring buffer was full.
    pub lost: u32,
    pub verdict: Verdict,
    /// Which policies denied the packet.
    pub denial: Option<Box<Denial>>,
}

/// The pod at an end.
#[derive(Debug, Clone, PartialEq)]
pub enum Pod {
    /// Of this node.
    Own(Arc<Owner>),
    Remote(RemotePod),
}

/// The pod's: egress leaves the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Ingress,
    Egress,
    /// From another host, at the tunnel device or an uplink.
    Link,
    Unknown,
}

/// The host interface at which a program saw the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    pub ifindex: u32,
    /// Of the interface's entry in `VIFS`; 0 without an entry.
    pub generation: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// `length` is the frame's, in bytes.
    Dropped {
        reason: Reason,
        length: u32,
        /// The packet has passed: the pod's namespace is audited.
        is_audited: bool,
    },
    Forwarded(Flow),
}

/// Why a packet was dropped; the number of a reason that only the programs know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Known(DropReason),
    Unknown(u32),
}

/// A flow, whose source sent the first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    pub state: FlowState,
    /// Nanoseconds since the Unix epoch.
    pub began: u64,
    /// From the source.
    pub forward: FlowTraffic,
    pub reverse: FlowTraffic,
    pub reverse_flags: TcpFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowState {
    New,
    Active,
    Closed,
    Ended,
    Unknown,
}

/// Knows which pod is behind an interface or an address now.
pub trait Owners {
    fn behind(&self, ifindex: u32) -> Option<Arc<Owner>>;
    fn of_address(&self, address: IpAddr) -> Option<Arc<Owner>>;
    /// The pod of another node. When it got the address is not known.
    fn elsewhere(&self, address: IpAddr) -> Option<RemotePod>;
}

/// The pods of this node, and those of others.
#[derive(Clone)]
pub struct KnownPods {
    pub registry: Arc<Registry>,
    pub remote: Arc<dyn RemotePods>,
}

/// Characters of a container's ID that stand for its pod's name.
const SHORT_ID: usize = 12;

/// Types of ICMP messages that begin a flow: echo requests (RFC 792, RFC 4443).
const ECHO_V4: u8 = 8;
const ECHO_V6: u8 = 128;

/// The name of a pod, or the beginning of the container's ID if the runtime named no pod.
pub(super) fn pod_name(owner: &Owner) -> &str {
    let id = owner.key.container_id.as_str();
    if owner.pod.name.is_empty() { id.get(..SHORT_ID).unwrap_or(id) } else { &owner.pod.name }
}

// === impl Seen ===

impl Seen {
    /// Explains a record.
    pub(super) fn new(event: &Event, owners: &impl Owners, clock: &mut WallClock) -> Self {
        match event {
            Event::Drop(record) => Self::of_drop(record, owners, clock),
            Event::Flow(record) => Self::of_flow(record, owners, clock),
        }
    }

    fn of_drop(record: &DropRecord, owners: &impl Owners, clock: &mut WallClock) -> Self {
        let seen = Self {
            time: clock.at(record.time),
            packet: packet(record),
            direction: Direction::of(record.direction),
            interface: Interface { ifindex: record.ifindex, generation: record.generation },
            source: None,
            destination: None,
            suppressed: record.suppressed,
            lost: record.lost,
            verdict: Verdict::Dropped {
                reason: Reason::of(record.reason),
                length: record.len,
                is_audited: record.audit != 0,
            },
            denial: None,
        };
        seen.joined(owners, record.time)
    }

    fn of_flow(record: &FlowRecord, owners: &impl Owners, clock: &mut WallClock) -> Self {
        let (key, stats) = (&record.flow, &record.stats);
        let low = (key.low, key.low_port, stats.from_low, stats.flags_of_low);
        let high = (key.high, key.high_port, stats.from_high, stats.flags_of_high);
        let (source, destination) = if stats.opened_by_high == 0 { (low, high) } else { (high, low) };
        let ports = Ports { source: source.1, destination: destination.1 };
        let ip = Ip {
            source: address(source.0),
            destination: address(destination.0),
            protocol: key.protocol,
            is_fragment: false,
            transport: transport(key.protocol, ports, TcpFlags(source.3)),
        };
        let seen = Self {
            time: clock.at(record.time),
            packet: Packet { macs: None, vlan: None, network: Network::Ip(ip) },
            direction: Direction::of(stats.direction),
            interface: Interface { ifindex: stats.ifindex, generation: stats.generation },
            source: None,
            destination: None,
            suppressed: record.suppressed,
            lost: record.lost,
            verdict: Verdict::Forwarded(Flow {
                state: FlowState::of(record.state),
                began: clock.at(stats.first),
                forward: source.2,
                reverse: destination.2,
                reverse_flags: TcpFlags(destination.3),
            }),
            denial: None,
        };
        seen.joined(owners, stats.first)
    }

    /// Joins the pods. The end at the interface is the pod behind it, whatever address the packet claims; the
    /// other end is the pod with the packet's address, of this node or of another. No pod of this node has
    /// sent what comes from another host, and nothing proves that one of that node has.
    ///
    /// `since_boot_ns`: the time at which the pods were at their ends. A pod that was attached later, with
    /// the same interface index or address, is none of them.
    fn joined(mut self, owners: &impl Owners, since_boot_ns: u64) -> Self {
        let was_there = |owner: &Arc<Owner>| owner.since_boot_ns <= since_boot_ns;
        let is_same = |owner: &Arc<Owner>| [0, owner.generation].contains(&self.interface.generation);
        let own = owners.behind(self.interface.ifindex).filter(is_same).filter(was_there).map(Pod::Own);
        let of_address = |address: Option<IpAddr>| {
            let (address, own) = (address?, owners.of_address(address?));
            match own {
                Some(owner) => Some(owner).filter(was_there).map(Pod::Own),
                None => owners.elsewhere(address).map(Pod::Remote),
            }
        };
        let (source, destination) = match &self.packet.network {
            Network::Ip(ip) => (Some(ip.source), Some(ip.destination)),
            Network::Arp(arp) => (Some(arp.sender.1), Some(arp.target.1)),
            Network::Unknown | Network::Other { .. } => (None, None),
        };
        (self.source, self.destination) = match self.direction {
            Direction::Egress => (own, of_address(destination)),
            Direction::Ingress => (of_address(source), own),
            Direction::Link => (None, of_address(destination)),
            Direction::Unknown => (of_address(source), of_address(destination)),
        };
        self
    }

    /// The name of the host interface, if its pod is known.
    pub fn interface_name(&self) -> Option<&str> {
        let ends = [&self.source, &self.destination];
        let links = ends.into_iter().flatten().filter_map(|pod| pod.own()?.link.as_ref());
        links.filter(|link| link.ifindex == self.interface.ifindex).map(|link| link.ifname.as_str()).next()
    }
}

// === impl Owners ===

impl Owners for KnownPods {
    fn behind(&self, ifindex: u32) -> Option<Arc<Owner>> {
        self.registry.behind(ifindex)
    }

    fn of_address(&self, address: IpAddr) -> Option<Arc<Owner>> {
        self.registry.of_address(address)
    }

    fn elsewhere(&self, address: IpAddr) -> Option<RemotePod> {
        self.remote.with_address(address)
    }
}

// === impl Pod ===

impl Pod {
    /// The attachment of a pod of this node.
    pub fn own(&self) -> Option<&Owner> {
        match self {
            Self::Own(owner) => Some(owner),
            Self::Remote(_) => None,
        }
    }

    /// Empty if the runtime named no pod.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Own(owner) => &owner.pod.namespace,
            Self::Remote(pod) => &pod.namespace,
        }
    }

    /// See [`pod_name`].
    pub fn name(&self) -> &str {
        match self {
            Self::Own(owner) => pod_name(owner),
            Self::Remote(pod) => &pod.name,
        }
    }

    /// All addresses of a pod of this node, and the known one of another.
    pub fn addresses(&self) -> Vec<IpAddr> {
        match self {
            Self::Own(owner) => owner.addresses.iter().collect(),
            Self::Remote(pod) => vec![pod.address],
        }
    }
}

// === impl Direction ===

impl Direction {
    fn of(number: u32) -> Self {
        match number {
            direction::INGRESS => Self::Ingress,
            direction::EGRESS => Self::Egress,
            direction::LINK => Self::Link,
            _ => Self::Unknown,
        }
    }
}

// === impl Reason ===

impl Reason {
    fn of(number: u32) -> Self {
        let known = DropReason::ALL.iter().find(|it| **it as u32 == number);
        known.map_or(Self::Unknown(number), |reason| Self::Known(*reason))
    }
}

// === impl FlowState ===

impl FlowState {
    fn of(number: u32) -> Self {
        match number {
            flow_state::NEW => Self::New,
            flow_state::ACTIVE => Self::Active,
            flow_state::CLOSED => Self::Closed,
            flow_state::ENDED => Self::Ended,
            _ => Self::Unknown,
        }
    }
}

/// The packet in the captured bytes. The kernel takes the outermost VLAN tag out of the frame.
fn packet(record: &DropRecord) -> Packet {
    let packet = frame::parse(record.frame());
    let tag = (record.vlan != 0).then_some((record.vlan & 0x0fff) as u16);
    Packet { vlan: tag.or(packet.vlan), ..packet }
}

fn address(EndpointKey { address }: EndpointKey) -> IpAddr {
    IpAddr::from(address).to_canonical()
}

/// Only echoes are flows of ICMP; their key has the identifier instead of ports.
fn transport(number: u8, ports: Ports, flags: TcpFlags) -> Option<Transport> {
    let echo = |kind| Icmp { kind, code: 0 };
    match number {
        protocol::TCP => Some(Transport::Tcp(ports, Some(flags))),
        protocol::UDP => Some(Transport::Udp(ports)),
        protocol::SCTP => Some(Transport::Sctp(ports)),
        protocol::ICMPV4 => Some(Transport::Icmpv4(echo(ECHO_V4))),
        protocol::ICMPV6 => Some(Transport::Icmpv6(echo(ECHO_V6))),
        _ => None,
    }
}
