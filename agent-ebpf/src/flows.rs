//! `STACK_FLOWS`: the flows between pods of this node that the host's stack has in hand.
//!
//! A pod's packet to a Service or a port of the host goes to the stack, and kube-proxy's rules or others may
//! translate it to a pod of this node. That pod's answers must be translated back: past the stack they would reach
//! the client from an address that it has never called. So `to_pod` notes a flow when the stack delivers what
//! another pod of this node has sent, and `from_pod` leaves the flow's packets to the stack.
//!
//! Both directions have one entry, so that the stack sees all of a flow or nothing: connection tracking has no name
//! but "invalid" for an answer without a question, and kube-proxy drops what is invalid. It also makes an entry
//! harmless that is out of date: a pod that uses the port once more, this time without translation, goes by way of
//! the stack, too.

use core::mem::{offset_of, transmute};

use agent_common::{Flow, FlowKey, MAX_FLOWS};
use aya_ebpf::{btf_maps::LruHashMap, macros::btf_map};

use crate::packet::{
    FRAGMENT, FragmentHeader, ICMP, ICMPV6, IPV6_PAYLOAD, Ipv4, Ipv4Address, Ipv6, Ipv6Address, L3, Packet,
    SCTP, TCP, Transport, UDP,
};

#[btf_map]
static STACK_FLOWS: LruHashMap<FlowKey, Flow, MAX_FLOWS> = LruHashMap::new();

/// Source and destination, as `EndpointKey` has them, but in words: byte by byte they would take the better part of
/// the verifier's budget.
pub struct Ends {
    source: End,
    destination: End,
}

type End = [u64; 2];

/// A `FlowKey` in words.
#[repr(C)]
struct Key {
    low: End,
    high: End,
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

/// Length of what is before the packet that an ICMP error quotes (RFC 792; RFC 4443, 3).
const ICMP_ERROR: usize = 8;

/// Whether a packet between pods of this node has to pass the stack: it is of a flow that the stack has in hand, or an
/// ICMP error about one. `payload` is where its IP header ends. What is too short to tell is nobody's.
///
/// The verifier walks it once for each caller: `icmp`, the family's own ICMP, lets it skip the other family.
#[inline(never)]
pub fn belongs_to_stack(packet: &Packet<'_>, ends: &Ends, protocol: u8, payload: usize, icmp: u8) -> bool {
    let Some(transport) = packet.copy::<Transport>(payload) else {
        return false;
    };
    if protocol == icmp && is_error(icmp, &transport) {
        return is_about_the_stacks(packet, icmp, payload + ICMP_ERROR);
    }
    is_known(ends, protocol, &transport)
}

/// Notes the flow of a packet that the stack delivers, and that is from a pod of this node.
#[inline(never)]
pub fn note_ipv4(packet: &Packet<'_>, ip: &Ipv4) {
    if !ip.is_later_fragment() {
        let ends = Ends::ipv4(ip);
        note(packet, &ends, ip.protocol, L3 + ip.header_len());
    }
}

/// The same for IPv6. Behind extension headers other than a fragment's it does not look.
#[inline(never)]
pub fn note_ipv6(packet: &Packet<'_>, ip: &Ipv6) {
    let ends = Ends::ipv6(ip);
    if ip.next_header != FRAGMENT {
        return note(packet, &ends, ip.next_header, IPV6_PAYLOAD);
    }
    let Some(fragment) = packet.copy::<FragmentHeader>(IPV6_PAYLOAD) else {
        return;
    };
    if fragment.is_first() {
        note(packet, &ends, fragment.next_header, IPV6_PAYLOAD + size_of::<FragmentHeader>());
    }
}

#[inline(never)]
fn note(packet: &Packet<'_>, ends: &Ends, protocol: u8, payload: usize) {
    let Some(transport) = packet.copy::<Transport>(payload) else {
        return;
    };
    let Some(key) = key(ends, protocol, &transport) else {
        return;
    };
    // To look it up is to use it, for the map's order. To write it again would cost more, and another's entry in a
    // full map.
    if STACK_FLOWS.get_ptr(key.as_flow()).is_none() {
        // If it fails, the flow's next packet tries again.
        let _ = STACK_FLOWS.insert(key.as_flow(), Flow { ifindex: packet.ifindex() }, 0);
    }
}

/// Whether an ICMP error quotes a packet of a flow that the stack has in hand.
#[inline(never)]
fn is_about_the_stacks(packet: &Packet<'_>, icmp: u8, quote: usize) -> bool {
    if icmp == ICMP {
        let Some(ip) = packet.copy::<Ipv4>(quote) else {
            return false;
        };
        let ends = Ends::ipv4(&ip);
        !ip.is_later_fragment() && is_quoted(packet, &ends, ip.protocol, quote + ip.header_len())
    } else {
        let Some(ip) = packet.copy::<Ipv6>(quote) else {
            return false;
        };
        let ends = Ends::ipv6(&ip);
        is_quoted(packet, &ends, ip.next_header, quote + size_of::<Ipv6>())
    }
}

#[inline(always)]
fn is_quoted(packet: &Packet<'_>, ends: &Ends, protocol: u8, payload: usize) -> bool {
    packet.copy::<Transport>(payload).is_some_and(|transport| is_known(ends, protocol, &transport))
}

#[inline(never)]
fn is_known(ends: &Ends, protocol: u8, transport: &Transport) -> bool {
    key(ends, protocol, transport).is_some_and(|key| STACK_FLOWS.get_ptr(key.as_flow()).is_some())
}

/// The flow of a packet; `None` if its protocol has none that the stack would translate.
#[inline(always)]
fn key(ends: &Ends, protocol: u8, transport: &Transport) -> Option<Key> {
    let [from, to] = match protocol {
        TCP | UDP | SCTP => transport.ports(),
        ICMP if matches!(transport.kind(), 0 | 8) => transport.identifier(),
        ICMPV6 if matches!(transport.kind(), 128 | 129) => transport.identifier(),
        _ => return None,
    };
    Some(Key::between(protocol, (&ends.source, from), (&ends.destination, to)))
}

/// Whether an ICMP message quotes a packet (RFC 792; RFC 4443, 2.1).
#[inline(always)]
fn is_error(icmp: u8, transport: &Transport) -> bool {
    let kind = transport.kind();
    if icmp == ICMP { matches!(kind, 3 | 4 | 5 | 11 | 12) } else { kind < 128 }
}

// === impl Ends ===

impl Ends {
    #[inline(always)]
    pub fn ipv4(ip: &Ipv4) -> Self {
        let mapped = |[a, b]: Ipv4Address| {
            // SAFETY: integers of the same size; memory order stays network order.
            [0, unsafe { transmute::<[u16; 4], u64>([0, 0xffff, a, b]) }]
        };
        Self { source: mapped(ip.source), destination: mapped(ip.destination) }
    }

    #[inline(always)]
    pub fn ipv6(ip: &Ipv6) -> Self {
        let words = |address: Ipv6Address| {
            // SAFETY: as above.
            unsafe { transmute::<Ipv6Address, End>(address) }
        };
        Self { source: words(ip.source), destination: words(ip.destination) }
    }
}

// === impl Key ===

impl Key {
    /// The flow between two ends, in whatever order they are told.
    ///
    /// The ends are put in order by arithmetic: after a branch the verifier would walk the rest for each order.
    #[inline(always)]
    fn between(protocol: u8, (one, port): (&End, u16), (other, other_port): (&End, u16)) -> Self {
        let ([a, b], [c, d]) = (*one, *other);
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
            low: [a ^ upper, b ^ lower],
            high: [c ^ upper, d ^ lower],
            low_port: port ^ ports,
            high_port: other_port ^ ports,
            protocol,
            reserved: [0; 3],
        }
    }

    #[inline(always)]
    fn as_flow(&self) -> &FlowKey {
        // SAFETY: the same bytes (asserted above), which are valid whatever they are.
        unsafe { &*(&raw const *self).cast() }
    }
}
