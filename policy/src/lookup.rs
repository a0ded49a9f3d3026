//! The verdict on a packet, from rows alone: exactly what the BPF program does.
//!
//! Three look-ups by hash behind that of the subject in `VIFS`: `PEERS` (a miss: the trie `BLOCKS`),
//! `RULESETS`, `RULES`. `NAMED` and `PORTS` are read only if the header says so.

use std::net::IpAddr;

use crate::{
    Addr, Direction, Mask, Prefix,
    rows::{ClassId, EndpointId, Header, NamedKey, PortKey, Rows, RuleKey, RulesetId},
};

/// A packet that begins a flow, as one of its ends is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The end that is judged.
    pub endpoint: EndpointId,
    /// Whether this end sends or receives.
    pub direction: Direction,
    /// The address of this end.
    pub own: IpAddr,
    /// The address of the other end, after the translation of Services.
    pub peer: IpAddr,
    /// As in the IP header.
    pub protocol: u8,
    /// The destination port; of no meaning without a protocol that has ports.
    pub port: u16,
    /// Where the other end is.
    pub origin: Origin,
    /// Whether the other address is in the range of some node's pods.
    pub in_pod_range: bool,
}

/// What is known of the other end besides its address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nothing.
    #[default]
    Other,
    /// The packet was made by this node, or is for it; by its way through the kernel, not by its address.
    OwnNode,
    /// The other end is the pod itself, through a Service.
    Hairpin,
}

/// Whether a packet may pass, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it may.
    pub is_allowed: bool,
    /// What decided.
    pub reason: Reason,
}

/// What decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A pod and its own address.
    OwnAddress,
    /// The node of the pod, for which NetworkPolicies make an exception.
    OwnNode,
    /// A pod reaches itself through a Service, for which NetworkPolicies make an exception.
    Hairpin,
    /// A bit of the ruleset.
    Bit {
        /// The ruleset.
        ruleset: RulesetId,
        /// The bit.
        bit: u16,
        /// The peer's class.
        class: ClassId,
    },
    /// NetworkPolicies isolate the pod, and none allows the packet.
    NotAllowed,
    /// No policy decides.
    Default,
    /// The other end may be a pod whose labels are not known yet.
    PeerUnknown,
    /// The endpoint has no rows.
    NotReady,
}

/// Judges one end of a packet.
pub fn lookup(rows: &Rows, packet: &Packet) -> Verdict {
    let (own, peer) = (Addr::from(packet.own), Addr::from(packet.peer));
    if own == peer && packet.origin != Origin::Hairpin {
        return allow(Reason::OwnAddress);
    }
    if packet.direction == Direction::Ingress && packet.origin == Origin::OwnNode {
        return allow(Reason::OwnNode);
    }
    let Some(subject) = rows.endpoints.get(&packet.endpoint) else { return deny(Reason::NotReady) };
    let ruleset = match packet.direction {
        Direction::Ingress => subject.ingress,
        Direction::Egress => subject.egress,
    };
    if ruleset == RulesetId::OPEN {
        return allow(Reason::Default);
    }
    let Some(header) = rows.rulesets.get(&ruleset) else { return deny(Reason::NotReady) };
    let (class, is_pod, is_known) = match rows.peers.get(&peer) {
        Some(row) => (row.class, row.is_pod, true),
        None => (block(rows, peer), false, !packet.in_pod_range || packet.origin == Origin::OwnNode),
    };
    let peers = match rows.rules.get(&RuleKey { ruleset, class }) {
        Some(bits) => *bits,
        None => header.default_bits(is_pod),
    };
    let unknown = if is_known { Mask::NONE } else { header.unknown };
    let bits = (peers | unknown) & ports(rows, header, ruleset, class, packet);
    let by = |bit| Reason::Bit { ruleset, bit, class };
    let decide = |bit| match () {
        // A rule that knows the peer decides as it says; one that would have to know its labels denies.
        () if !peers.has(bit) => Some(deny(Reason::PeerUnknown)),
        () if header.accept.has(bit) => Some(allow(by(bit))),
        () if header.pass.has(bit) => None,
        () => Some(deny(by(bit))),
    };
    let admin = bits.lowest(0).filter(|bit| *bit < header.admin_end);
    if let Some(verdict) = admin.and_then(decide) {
        return verdict;
    }
    if header.isolates {
        return match (bits.lowest(header.admin_end), packet.origin) {
            (Some(bit), _) if bit < header.baseline_start => allow(by(bit)),
            (_, Origin::OwnNode) => allow(Reason::OwnNode),
            (_, Origin::Hairpin) => allow(Reason::Hairpin),
            (_, Origin::Other) if is_known => deny(Reason::NotAllowed),
            (_, Origin::Other) => deny(Reason::PeerUnknown),
        };
    }
    let baseline = bits.lowest(header.baseline_start);
    baseline.and_then(decide).unwrap_or(allow(Reason::Default))
}

/// The class of an address that is neither a pod's nor a node's.
fn block(rows: &Rows, addr: Addr) -> ClassId {
    let lengths = (0..=addr.family_bits()).rev();
    lengths
        .filter_map(|len| rows.blocks.get(&Prefix::new(addr, len)))
        .next()
        .copied()
        .unwrap_or(ClassId::NONE)
}

/// The bits whose ports contain the packet's.
fn ports(rows: &Rows, header: &Header, ruleset: RulesetId, class: ClassId, packet: &Packet) -> Mask {
    let (protocol, port) = (packet.protocol, packet.port);
    if crate::Protocol::of_ip(protocol).is_none() {
        return header.any_port;
    }
    let mut bits = header.any_port;
    if header.has_ports {
        let key = |len: u8| {
            let mask = u16::MAX.checked_shl(16 - u32::from(len)).unwrap_or(0);
            PortKey { ruleset, protocol, port: port & mask, len }
        };
        let longest = (0..=16).rev().find_map(|len| rows.ports.get(&key(len)));
        bits |= longest.copied().unwrap_or_default();
    } else {
        let ranges = header.ranges.iter().take(usize::from(header.used));
        let mut found = ranges.filter(|it| it.protocol == protocol && (it.first..=it.last).contains(&port));
        bits |= found.next().map_or(Mask::NONE, |it| it.bits);
    }
    if header.has_names {
        let named = rows.named.get(&NamedKey { ruleset, class, protocol, port });
        bits |= named.copied().unwrap_or_default();
    }
    bits
}

fn allow(reason: Reason) -> Verdict {
    Verdict { is_allowed: true, reason }
}

fn deny(reason: Reason) -> Verdict {
    Verdict { is_allowed: false, reason }
}
