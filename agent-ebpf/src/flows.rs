//! `STACK_FLOWS` and `FLOW_RINGS`: the flows between pods that the host's stack translates.
//!
//! The stack may translate (DNAT) a pod's packet for a Service or a host port to a pod of this node. The
//! replies must pass the stack to be translated back: delivered past it, they would reach the client from an
//! address that it never called. So `to_pod` records a flow when the stack delivers a packet from another pod
//! of this node, and `from_pod` leaves packets of recorded flows to the stack.
//!
//! The other end may be a pod of another node: then `to_link` records what the stack sends there, and
//! `to_pod` what the stack delivers from there, and the programs at uplinks and tunnel leave the replies to
//! the stack.
//!
//! One entry covers both directions, so that conntrack sees all packets of a flow or none: it classifies a
//! reply without a request as invalid, and kube-proxy drops invalid packets. A stale entry is harmless: a
//! later, untranslated connection with the same ports takes the way through the stack.
//!
//! Each client pod has a ring of places, and no more flows than places: a new flow takes the next place whose
//! flow has ended, or that of the longest unused of the next few flows. So one pod cannot evict another's
//! flows in use. Flows that a remote pod begins take places of the pod that receives them. Flows that have
//! ended stay until their places are needed, because their last packets must take the stack, too; with many
//! pods, they can fill the maps, which then evict the longest unused of all.

use agent_common::{Flow, FlowKey, MAX_FLOWS, RingKey, TRANSLATED_PORTS, VifEntry, flows_per_pod};
use aya_ebpf::{
    Global, bindings::__sk_buff, btf_maps::LruHashMap, helpers::generated::bpf_jiffies64, macros::btf_map,
    programs::TcContext,
};

use crate::{
    address::Address,
    flow_key::Key,
    headers::{ACK, FIN, Ipv4, Ipv6, RST, SYN, TCP, Transport},
    icmp,
    meta::{Family, Meta},
    packet::Packet,
    vifs,
};

#[btf_map]
static STACK_FLOWS: LruHashMap<FlowKey, Flow, MAX_FLOWS> = LruHashMap::new();

#[btf_map]
static FLOW_RINGS: LruHashMap<RingKey, FlowKey, MAX_FLOWS> = LruHashMap::new();

/// Places in each ring; the agent sets it for other capacities.
#[unsafe(no_mangle)]
static FLOWS_PER_POD: Global<u32> = Global::new(flows_per_pod(MAX_FLOWS as u32));

/// Flows of which a new one evicts the longest unused, if none of them has ended.
const TRIES: u32 = 8;
/// Jiffies without a packet after which an ended flow gives up its place: time for the last packets, and for
/// the next one of a connection that a forged reset has not ended.
const GRACE: u32 = 64;
/// In an age: the flow has ended.
const ENDED: u32 = 1 << 31;
/// Each takes about as long as a step of the holder.
const LOCK_TRIES: u32 = 64;
const BPF_NOEXIST: u64 = 1;

/// What a TCP segment tells of its connection: which ends have closed it by now, or that it begins.
#[derive(Clone, Copy)]
struct Sign(u32);

/// In the place of a host interface's index: a pod of another node.
pub const REMOTE: u32 = 0;

/// Whether a packet belongs to a recorded flow, or is an ICMP error about one. A packet without ports or an
/// echo identifier belongs to none.
///
/// Most pods have no recorded flow with each other: then the flow's key is neither made nor looked up. `peer`
/// is the host interface of the other pod, or [`REMOTE`].
#[inline(always)]
pub fn belongs_to_stack(packet: &Packet<'_>, meta: &Meta, vif: &VifEntry, peer: u32) -> bool {
    if !vifs::has_peer(vif, peer) {
        return false;
    }
    let Some(transport) = meta.transport() else {
        return false;
    };
    if icmp::is_error(meta, transport) {
        let (is_v6, quote) = (meta.family as u32, (meta.payload + icmp::ERROR) as u32);
        return ferrule_find_quoted(packet.context(), is_v6, quote) != 0;
    }
    let key = Key::translatable(meta.source, meta.destination, meta.protocol, transport);
    key.is_some_and(|key| touch(key.as_flow(), Sign::of(packet, meta, &key)))
}

/// Whether a plain packet begins a TCP connection from a port of translated flows.
///
/// The host gives the flows that it translates client ports of [`TRANSLATED_PORTS`]. Connections from such a
/// port pass the stack, too, and conntrack gives no two of its flows the same ends. So no translated flow can
/// have the ends of one that passes the stack by.
#[inline(always)]
pub fn begins_at_translated_port(packet: &Packet<'_>, meta: &Meta) -> bool {
    const FIRST: u64 = TRANSLATED_PORTS.0 as u64;
    const LAST: u64 = TRANSLATED_PORTS.1 as u64;

    // Arithmetic instead of branches: the verifier would walk the rest once for each. Not 0 for another port:
    // one of the differences is negative.
    let from = meta.source_port();
    let is_other_port = (from.wrapping_sub(FIRST) | LAST.wrapping_sub(from)) >> 63;
    let is_other = core::hint::black_box(is_other_port | u64::from(meta.protocol ^ TCP));
    is_other == 0 && meta.tcp_flags(packet) & (SYN | ACK) == SYN
}

/// Records the flow of a packet that the stack has translated, of the pods behind two host interfaces;
/// `other` may be [`REMOTE`]. The flow takes a place of `pod`. Flows behind IPv6 extension headers other than
/// a fragment header are not recorded.
#[inline(always)]
pub fn record(packet: &Packet<'_>, meta: &Meta, pod: u32, other: u32) {
    let key = meta
        .transport()
        .and_then(|transport| Key::translatable(meta.source, meta.destination, meta.protocol, transport));
    let Some(key) = key else { return };
    // With every packet: the agent may have replaced the entries of `VIFS`.
    vifs::mark_peers(pod, other);
    let sign = Sign::of(packet, meta, &key);
    if !touch(key.as_flow(), sign) {
        insert(&key, pod, packet.ifindex(), sign);
    }
}

/// If the insertion fails, the flow's next packet tries again.
#[inline(never)]
fn insert(key: &Key, client: u32, server: u32, sign: Sign) {
    if !lock(client) {
        return;
    }
    let key = key.as_flow();
    // Another CPU may have inserted it.
    if !touch(key, sign)
        && let Some(place) = free_place(client)
        && FLOW_RINGS.insert(place, key, 0).is_ok()
        && STACK_FLOWS.insert(key, Flow { ifindex: server, used: sign.used(0, now()) }, 0).is_err()
    {
        let _ = FLOW_RINGS.remove(place);
    }
    let _ = FLOW_RINGS.remove(locked(client));
}

/// Locks a ring against other CPUs, for the time of a few map operations: the old kernels' instructions have
/// no atomic exchange, but the insertion of a new key is atomic.
#[inline(always)]
fn lock(client: u32) -> bool {
    let none = FlowKey::default();
    for _ in 0..LOCK_TRIES {
        if FLOW_RINGS.insert(locked(client), none, BPF_NOEXIST).is_ok() {
            return true;
        }
    }
    false
}

#[inline(always)]
fn locked(ifindex: u32) -> RingKey {
    RingKey { ifindex, place: RingKey::LOCK }
}

/// A place in the client's ring, whose flow is evicted: one that has ended, or the longest unused of a few.
/// `None` without a client.
#[inline(always)]
fn free_place(client: u32) -> Option<RingKey> {
    let begun = vifs::begun_flows(client)?;
    let (mut chosen, mut oldest) = (RingKey { ifindex: client, place: 0 }, 0);
    let now = now();
    for _ in 0..TRIES {
        // SAFETY: an aligned field, which the holder of the lock writes.
        let number = unsafe { begun.read_volatile() };
        // SAFETY: as above.
        unsafe { begun.write_volatile(number.wrapping_add(1)) };
        let place = RingKey { ifindex: client, place: number % FLOWS_PER_POD.load().max(1) };
        // SAFETY: the ring is locked, and the agent removes its entries only after those of `VIFS`.
        let flow = unsafe { FLOW_RINGS.get(place) }.and_then(|old| STACK_FLOWS.get_ptr_mut(old));
        let Some(flow) = flow else { return Some(place) };
        // SAFETY: an aligned field of an entry, which stays readable until the program returns.
        let age = age(unsafe { (&raw const (*flow).used).read_volatile() }, now);
        if age >= oldest {
            (chosen, oldest) = (place, age);
        }
        if age & ENDED != 0 {
            break;
        }
    }
    // SAFETY: as above.
    if let Some(old) = unsafe { FLOW_RINGS.get(chosen) } {
        let _ = STACK_FLOWS.remove(old);
    }
    Some(chosen)
}

/// How soon a flow gives up its place: jiffies since its last packet, and [`ENDED`] if no more are expected.
#[inline(always)]
fn age(used: u32, now: u32) -> u32 {
    let closed = Flow::closed(used, now);
    let unused = now.wrapping_sub(used).wrapping_sub(closed * Flow::CLOSED_BY_LOW);
    // None of a negative time: another CPU may have noted a later one. Arithmetic, as for a `Sign`.
    let unused = unused & !(unused.cast_signed() >> 31).cast_unsigned();
    if closed == Flow::BOTH && unused >= GRACE { ENDED | unused } else { unused }
}

/// Whether a flow is recorded. Notes the time, and what a packet tells of the flow.
#[inline(always)]
fn touch(key: &FlowKey, sign: Sign) -> bool {
    let Some(flow) = STACK_FLOWS.get_ptr_mut(key) else { return false };
    // SAFETY: an aligned field of an entry, which stays readable until the program returns.
    let used = unsafe { &raw mut (*flow).used };
    // SAFETY: as above.
    let before = unsafe { used.read_volatile() };
    let now = now();
    let after = sign.used(Flow::closed(before, now), now);
    // A write only where it changes something: the line is shared by all CPUs.
    if before != after {
        // SAFETY: as above.
        unsafe { used.write_volatile(after) };
    }
    true
}

/// In jiffies, which cost less than a clock.
#[inline(always)]
fn now() -> u32 {
    // SAFETY: a helper call without arguments.
    unsafe { bpf_jiffies64() as u32 }
}

/// Whether the packet quoted in an ICMP error belongs to a recorded flow.
///
/// A global function: the verifier walks it once, and not with each state in which a program calls it.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_find_quoted(skb: *mut __sk_buff, is_v6: u32, quote: u32) -> u32 {
    let ctx = TcContext::new(skb);
    let family = if is_v6 != 0 { Family::Ipv6 } else { Family::Ipv4 };
    quote_belongs_to_stack(&Packet::of_caller(&ctx), family, quote as usize).into()
}

#[inline(always)]
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
    let key = Key::translatable(source, destination, protocol, transport);
    key.is_some_and(|key| touch(key.as_flow(), Sign::NONE))
}

// === impl Sign ===

impl Sign {
    const NONE: Self = Self(0);
    const OPENS: u32 = 4;

    /// Arithmetic instead of branches: the verifier would walk the rest once for each.
    #[inline(always)]
    fn of(packet: &Packet<'_>, meta: &Meta, key: &Key) -> Self {
        if meta.protocol != TCP {
            return Self::NONE;
        }
        let flags = u32::from(meta.tcp_flags(packet));
        let ([a, b], [c, d]) = (meta.source.words(), key.low.words());
        let other = (a ^ c) | (b ^ d);
        let is_high = core::hint::black_box((other | other.wrapping_neg()) >> 63) as u32;
        let end = Flow::LOW + is_high * (Flow::HIGH - Flow::LOW);
        let is_set = |flag: u8| flags >> flag.trailing_zeros() & 1;
        let opens = is_set(SYN) & !is_set(ACK);
        Self((is_set(FIN) * end) | (is_set(RST) * Flow::BOTH) | (opens * Self::OPENS))
    }

    /// `Flow::used` after the packet, of a flow that the ends `closed` have closed before.
    #[inline(always)]
    fn used(self, closed: u32, now: u32) -> u32 {
        let forgotten = self.0 / Self::OPENS * Flow::BOTH;
        let closed = (closed & !forgotten) | (self.0 & Flow::BOTH);
        now.wrapping_sub(closed * Flow::CLOSED_BY_LOW)
    }
}
