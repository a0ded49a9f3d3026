//! `STACK_FLOWS`: the flows between pods of this node that the host's stack translates.
//!
//! The stack may translate (DNAT) a pod's packet for a Service or a host port to a pod of this node. The
//! replies must pass the stack to be translated back: delivered past it, they would reach the client from an
//! address that it never called. So `to_pod` records a flow when the stack delivers a packet from another pod
//! of this node, and `from_pod` leaves packets of recorded flows to the stack.
//!
//! One entry covers both directions, so that conntrack sees all packets of a flow or none: it classifies a
//! reply without a request as invalid, and kube-proxy drops invalid packets. A stale entry is harmless: a
//! later, untranslated connection with the same ports takes the way through the stack.

use core::mem::offset_of;

use agent_common::{Flow, FlowKey, MAX_FLOWS};
use aya_ebpf::{btf_maps::LruHashMap, macros::btf_map};

use crate::{
    address::Address,
    headers::{ICMP, ICMPV6, Ipv4, Ipv6, SCTP, TCP, Transport, UDP},
    meta::{Family, Meta},
    packet::Packet,
};

#[btf_map]
static STACK_FLOWS: LruHashMap<FlowKey, Flow, MAX_FLOWS> = LruHashMap::new();

/// A `FlowKey` whose addresses are words.
#[repr(C)]
struct Key {
    low: Address,
    high: Address,
    low_port: u16,
    high_port: u16,
    protocol: u8,
    reserved: [u8; 3],
}

const _: () = assert!(size_of::<Key>() == size_of::<FlowKey>());
const _: () = assert!(offset_of!(Key, low) == offset_of!(FlowKey, low));
const _: () = assert!(offset_of!(Key, high) == offset_of!(FlowKey, high));
const _: () = assert!(offset_of!(Key, low_port) == offset_of!(FlowKey, low_port));
const _: () = assert!(offset_of!(Key, high_port) == offset_of!(FlowKey, high_port));
const _: () = assert!(offset_of!(Key, protocol) == offset_of!(FlowKey, protocol));

/// Length of the ICMP or ICMPv6 error header before the quoted packet (RFC 792; RFC 4443, 3).
const ICMP_ERROR: usize = 8;

/// Whether a packet belongs to a recorded flow, or is an ICMP error about one. A packet without ports or an
/// echo identifier belongs to none.
#[inline(always)]
pub fn belongs_to_stack(packet: &Packet<'_>, meta: &Meta) -> bool {
    let Some(transport) = meta.transport() else {
        return false;
    };
    if is_icmp_error(meta, transport) {
        return quote_belongs_to_stack(packet, meta.family, meta.payload + ICMP_ERROR);
    }
    is_recorded(meta.source, meta.destination, meta.protocol, transport)
}

/// Records the flow of a packet that the stack delivers, and that a pod of this node has sent. Flows behind
/// IPv6 extension headers other than a fragment header are not recorded.
#[inline(always)]
pub fn record(packet: &Packet<'_>, meta: &Meta) {
    let Some(key) =
        meta.transport().and_then(|transport| key(meta.source, meta.destination, meta.protocol, transport))
    else {
        return;
    };
    // The lookup counts as a use for the LRU order. An update would cost more, and evict another entry of a
    // full map.
    if STACK_FLOWS.get_ptr(key.as_flow()).is_none() {
        // If the insertion fails, the flow's next packet tries again.
        let _ = STACK_FLOWS.insert(key.as_flow(), Flow { ifindex: packet.ifindex() }, 0);
    }
}

/// Whether the packet quoted in an ICMP error belongs to a recorded flow.
#[inline(never)]
fn quote_belongs_to_stack(packet: &Packet<'_>, family: Family, quote: usize) -> bool {
    let (source, destination, protocol, payload) = match family {
        Family::Ipv4 => match packet.copy::<Ipv4>(quote) {
            Some(ip) if !ip.is_later_fragment() => {
                (Address::v4(ip.source), Address::v4(ip.destination), ip.protocol, ip.header_len())
            }
            _ => return false,
        },
        Family::Ipv6 => match packet.copy::<Ipv6>(quote) {
            Some(ip) => {
                (Address::v6(ip.source), Address::v6(ip.destination), ip.next_header, size_of::<Ipv6>())
            }
            None => return false,
        },
    };
    let transport = packet.copy::<[u8; 8]>(quote + payload).map(Transport::new);
    transport.is_some_and(|transport| is_recorded(source, destination, protocol, transport))
}

#[inline(always)]
fn is_recorded(source: Address, destination: Address, protocol: u8, transport: Transport) -> bool {
    key(source, destination, protocol, transport)
        .is_some_and(|key| STACK_FLOWS.get_ptr(key.as_flow()).is_some())
}

/// The flow of a packet; `None` if the stack does not translate its protocol.
#[inline(always)]
fn key(source: Address, destination: Address, protocol: u8, transport: Transport) -> Option<Key> {
    let [from, to] = match protocol {
        TCP | UDP | SCTP => transport.ports(),
        ICMP if matches!(transport.icmp_type(), 0 | 8) => [transport.echo_id(); 2],
        ICMPV6 if matches!(transport.icmp_type(), 128 | 129) => [transport.echo_id(); 2],
        _ => return None,
    };
    Some(Key::between(protocol, (source, from), (destination, to)))
}

/// Whether an ICMP message quotes a packet (RFC 792; RFC 4443, 2.1).
#[inline(always)]
fn is_icmp_error(meta: &Meta, transport: Transport) -> bool {
    let kind = transport.icmp_type();
    match meta.family {
        Family::Ipv4 => meta.protocol == ICMP && matches!(kind, 3 | 4 | 5 | 11 | 12),
        Family::Ipv6 => meta.protocol == ICMPV6 && kind < 128,
    }
}

// === impl Key ===

impl Key {
    /// The flow between two ends, in either order.
    ///
    /// Arithmetic puts the ends in order: after a branch, the verifier would walk the rest once for each
    /// order.
    #[inline(always)]
    fn between(protocol: u8, (one, port): (Address, u16), (other, other_port): (Address, u16)) -> Self {
        let ([a, b], [c, d]) = (one.words(), other.words());
        let swapped = if a != c {
            u64::from_be(a) > u64::from_be(c)
        } else if b != d {
            u64::from_be(b) > u64::from_be(d)
        } else {
            port > other_port
        };
        let mask = core::hint::black_box(u64::from(swapped).wrapping_neg());
        let (upper, lower) = ((a ^ c) & mask, (b ^ d) & mask);
        let ports = (port ^ other_port) & mask as u16;
        Self {
            low: Address::from_words([a ^ upper, b ^ lower]),
            high: Address::from_words([c ^ upper, d ^ lower]),
            low_port: port ^ ports,
            high_port: other_port ^ ports,
            protocol,
            reserved: [0; 3],
        }
    }

    #[inline(always)]
    fn as_flow(&self) -> &FlowKey {
        // SAFETY: the same bytes (asserted above), valid whatever they are.
        unsafe { &*(&raw const *self).cast() }
    }
}
