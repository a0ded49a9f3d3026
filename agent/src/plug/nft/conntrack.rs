//! Flows that conntrack remembers, and that a change of the node's ports, of masquerading, or of the ways to
//! other nodes, makes wrong.
//!
//! Rules translate only the first packet of a flow, and conntrack repeats that for the others. A flow of UDP
//! has no end: while a client sends, its packets would go where a port has led before. Nor does a flow that
//! began without masquerading get it later: `nf_nat_setup_info` in `net/netfilter/nf_nat_core.c` of the
//! kernel leaves a confirmed flow alone.
//!
//! A TCP connection that no longer goes through the stack goes on without conntrack's notice. If the
//! connection comes back, conntrack calls its packets invalid, because they are far ahead; one that it does
//! not know, it takes up as it is (`nf_conntrack_tcp_loose`, which is on by default).

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use agent_common::TRANSLATED_PORTS;
use nix::errno::Errno;
use rtnetlink::packet_core::NLA_F_NESTED;

use super::{
    super::{
        message::{Attribute, find},
        sysctl,
    },
    nfnetlink::{CONNTRACK, change, visit},
    numbers::{IPV4, IPV6},
};
use crate::registry::{Mapping, Transport};

/// A flow, as its first packet was and as its replies are.
struct Flow {
    protocol: u8,
    from: SocketAddr,
    to: SocketAddr,
    replies_from: SocketAddr,
    replies_to: SocketAddr,
    /// Whether a reply has come.
    is_answered: bool,
    /// The attributes that identify the flow.
    name: Vec<Attribute>,
}

/// `IPCTNL_MSG_CT_GET` and `IPCTNL_MSG_CT_DELETE` in `linux/netfilter/nfnetlink_conntrack.h`.
const GET: u16 = 1;
const DELETE: u16 = 2;
/// `CTA_…`, as the following.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const ADDRESSES: u16 = 1;
const PORTS: u16 = 2;
const SOURCE_V4: u16 = 1;
const DESTINATION_V4: u16 = 2;
const SOURCE_V6: u16 = 3;
const DESTINATION_V6: u16 = 4;
const PROTOCOL: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
const ORIGINAL_FLAGS: u16 = 1;
/// `CTA_FILTER_F_CTA_PROTO_NUM` and `…_DST_PORT` in `net/netfilter/nf_internals.h` of the kernel.
const BY_PROTOCOL: u32 = 1 << 3;
const BY_DESTINATION_PORT: u32 = 1 << 5;
/// `IPS_SEEN_REPLY` in `linux/netfilter/nf_conntrack_common.h`.
const ANSWERED: u32 = 1 << 1;
/// Flows that are kept in memory at a time, and how often a dump finds so many more.
const FLOWS: usize = 1024;
const ROUNDS: usize = 64;
const TCP: u8 = 6;
/// Bounds a dump: some million flows.
const DATAGRAMS: usize = 64 * 1024;

/// Whether conntrack is there and does not know SCTP: it then takes all associations between two hosts for
/// one flow without ports. The kernel has these settings only as far as it is built with what they set.
pub fn lacks_sctp() -> bool {
    let has = |name: &str| sysctl::get(&format!("netfilter/nf_conntrack_{name}")).is_some();
    has("generic_timeout") && !has("sctp_timeout_closed")
}

/// Forgets the flows to the node's `own` addresses that lead elsewhere than these new mappings.
///
/// # Errors
/// If the kernel refuses.
pub fn forget_before(mappings: &[Mapping], own: &[IpAddr]) -> io::Result<usize> {
    forget(mappings, |flow, mapping| {
        let (from, to) = (mapping.from, flow.to.ip());
        let is_there = if from.address.is_unspecified() {
            own.contains(&to) || to.is_loopback()
        } else {
            to == from.address
        };
        is_there && flow.replies_from != mapping.to
    })
}

/// Forgets the flows that these removed mappings have led to the pod.
///
/// # Errors
/// If the kernel refuses.
pub fn forget_after(mappings: &[Mapping]) -> io::Result<usize> {
    forget(mappings, |flow, mapping| flow.replies_from == mapping.to && flow.to != mapping.to)
}

/// Forgets the TCP connections of these two ends, client and server, that the host does not translate. Those
/// from a port of translated flows always go through the stack, and stay known.
///
/// # Errors
/// If the kernel refuses.
pub fn forget_connections(are_concerned: impl Fn(IpAddr, IpAddr) -> bool) -> io::Result<usize> {
    let (first, last) = TRANSLATED_PORTS;
    forget_where(&filter(TCP, None), |flow| {
        let passes_by = flow.is_untranslated() && !(first..=last).contains(&flow.from.port());
        flow.protocol == TCP && passes_by && are_concerned(flow.from.ip(), flow.to.ip())
    })
}

/// Forgets the flows with ports that keep their source and have no reply yet, by the source and the last
/// destination. A flow with replies works as it is.
///
/// # Errors
/// If the kernel refuses.
pub fn forget_unanswered(are_concerned: impl Fn(IpAddr, IpAddr) -> bool) -> io::Result<usize> {
    forget_where(&[], |flow| {
        let is_unanswered = !flow.is_answered && flow.from == flow.replies_to;
        is_unanswered && are_concerned(flow.from.ip(), flow.replies_from.ip())
    })
}

fn forget_where(filter: &[Attribute], is_wrong: impl Fn(&Flow) -> bool) -> io::Result<usize> {
    let mut forgotten = 0;
    for _ in 0..ROUNDS {
        let mut found = Vec::new();
        for (family, is_ipv4) in [(IPV4, true), (IPV6, false)] {
            visit((CONNTRACK, GET, family), filter, DATAGRAMS, |message| {
                let Some(flow) = Flow::decode(message, is_ipv4) else { return };
                if found.len() < FLOWS && is_wrong(&flow) {
                    found.push((family, flow.name));
                }
            })?;
        }
        let count = found.len();
        delete(found)?;
        forgotten += count;
        if count < FLOWS {
            break;
        }
    }
    Ok(forgotten)
}

/// Returns how many flows there were. TCP is left alone: its connections end by themselves, and those of the
/// node's own services would be cut.
fn forget(mappings: &[Mapping], is_wrong: impl Fn(&Flow, &Mapping) -> bool) -> io::Result<usize> {
    let mut forgotten = 0;
    for _ in 0..ROUNDS {
        let flows = forget_some(mappings, &is_wrong)?;
        forgotten += flows;
        if flows < FLOWS {
            break;
        }
    }
    Ok(forgotten)
}

fn forget_some(mappings: &[Mapping], is_wrong: impl Fn(&Flow, &Mapping) -> bool) -> io::Result<usize> {
    let mut wrong = Vec::new();
    for (family, is_ipv4) in [(IPV4, true), (IPV6, false)] {
        for protocol in [Transport::Udp, Transport::Sctp] {
            let of_kind =
                |it: &&Mapping| it.from.protocol == protocol && it.from.address.is_ipv4() == is_ipv4;
            let of_kind: Vec<_> = mappings.iter().filter(of_kind).collect();
            let Some(first) = of_kind.first() else { continue };
            let port = (of_kind.len() == 1).then_some(first.from.port);
            let filter = filter(protocol.number(), port);
            visit((CONNTRACK, GET, family), &filter, DATAGRAMS, |found| {
                let Some(flow) = Flow::decode(found, is_ipv4) else { return };
                let concerns = |it: &&&Mapping| {
                    flow.protocol == protocol.number()
                        && flow.to.port() == it.from.port
                        && is_wrong(&flow, it)
                };
                if wrong.len() < FLOWS && of_kind.iter().any(|it| concerns(&it)) {
                    wrong.push((family, flow.name));
                }
            })?;
        }
    }
    let count = wrong.len();
    delete(wrong)?;
    Ok(count)
}

/// By family and name.
fn delete(flows: Vec<(u8, Vec<Attribute>)>) -> io::Result<()> {
    for (family, name) in flows {
        match change((CONNTRACK, DELETE, family), &name) {
            // It has ended by itself.
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {}
            result => result?,
        }
    }
    Ok(())
}

/// Before Linux 5.8, the kernel ignores it, and shows all flows.
fn filter(protocol: u8, port: Option<u16>) -> Vec<Attribute> {
    let mut of_ports = vec![Attribute::Value(PROTOCOL, vec![protocol])];
    of_ports.extend(port.map(|port| Attribute::Value(DESTINATION_PORT, port.to_be_bytes().to_vec())));
    let flags = BY_PROTOCOL | port.map_or(0, |_| BY_DESTINATION_PORT);
    vec![
        Attribute::Nest(ORIGINAL, vec![Attribute::Nest(PORTS, of_ports)]),
        Attribute::Nest(FILTER, vec![Attribute::Value(ORIGINAL_FLAGS, flags.to_ne_bytes().to_vec())]),
    ]
}

// === impl Flow ===

impl Flow {
    fn decode(found: &[u8], is_ipv4: bool) -> Option<Self> {
        let (source, destination) =
            if is_ipv4 { (SOURCE_V4, DESTINATION_V4) } else { (SOURCE_V6, DESTINATION_V6) };
        let end = |tuple, address, port| {
            let address = find(found, &[tuple, ADDRESSES, address])?;
            let address: IpAddr = match <[u8; 4]>::try_from(address) {
                Ok(v4) => v4.into(),
                Err(_) => <[u8; 16]>::try_from(address).ok()?.into(),
            };
            let port = find(found, &[tuple, PORTS, port])?;
            Some(SocketAddr::new(address, u16::from_be_bytes(port.try_into().ok()?)))
        };
        let original = find(found, &[ORIGINAL])?;
        let status = u32::from_be_bytes(find(found, &[STATUS])?.try_into().ok()?);
        let mut name = vec![Attribute::Value(ORIGINAL | NLA_F_NESTED, original.to_vec())];
        for kind in [ID, ZONE] {
            name.extend(find(found, &[kind]).map(|value| Attribute::Value(kind, value.to_vec())));
        }
        Some(Self {
            protocol: *find(found, &[ORIGINAL, PORTS, PROTOCOL])?.first()?,
            from: end(ORIGINAL, source, SOURCE_PORT)?,
            to: end(ORIGINAL, destination, DESTINATION_PORT)?,
            replies_from: end(REPLY, source, SOURCE_PORT)?,
            replies_to: end(REPLY, destination, DESTINATION_PORT)?,
            is_answered: status & ANSWERED != 0,
            name,
        })
    }

    fn is_untranslated(&self) -> bool {
        (self.from, self.to) == (self.replies_to, self.replies_from)
    }
}
