//! `STACK_FLOWS` and `FLOW_RINGS`: the flows between pods that the host's stack translates.
//!
//! The stack may translate (DNAT) a pod's packet for a Service or a host port to a pod of this node. The
//! replies must go through the stack to be translated back: delivered past it, they would reach the client
//! from an address that it never called. So `to_pod` records a flow when the stack delivers a packet from
//! another pod of this node, and `from_pod` leaves packets of recorded flows to the stack.
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
//!
//! The ring has no lock, which a CPU that the hypervisor stops would hold for long while flows begin on the
//! others: of several CPUs that want one place, one gets it, and the others take the next.

use core::hint::black_box;

use agent_common::{Flow, FlowKey, MAX_FLOWS, RingKey, TRANSLATED_PORTS, VifEntry, flows_per_pod};
use aya_ebpf::{
    Global, bindings::__sk_buff, btf_maps::LruHashMap, helpers::generated::bpf_jiffies64, macros::btf_map,
};

use crate::{
    branchless::{Condition, pick},
    ends::Ends,
    flow_key::Key,
    headers::{ACK, FIN, RST, SYN, TCP},
    icmp,
    meta::{Family, Meta},
    noted,
    packet::Packet,
    quote, vifs,
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
/// In the place of a flow's `used`: no flow has the place.
const FREE: u64 = u64::MAX;
/// Places that a new flow tries to take, while other CPUs take them.
const CLAIMS: u32 = 2;
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
pub fn belongs_to_stack(packet: &Packet, meta: &Meta, vif: &VifEntry, peer: u32) -> bool {
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
    noted::note(packet, meta);
    ferrule_find_flow(packet.context()) != 0
}

/// Whether a plain packet begins a TCP connection from a port of translated flows.
///
/// The host gives the flows that it translates client ports of [`TRANSLATED_PORTS`]. Connections from such a
/// port go through the stack, too, and conntrack gives no two of its flows the same ends. So no translated
/// flow can have the ends of one that bypasses the stack.
#[inline(always)]
pub fn begins_at_translated_port(packet: &Packet, meta: &Meta) -> bool {
    const FIRST: u64 = TRANSLATED_PORTS.0 as u64;
    const LAST: u64 = TRANSLATED_PORTS.1 as u64;

    // Arithmetic instead of branches: the verifier would walk the rest once for each. Not 0 for another port:
    // one of the differences is negative.
    let from = meta.source_port();
    let is_other_port = (from.wrapping_sub(FIRST) | LAST.wrapping_sub(from)) >> 63;
    let is_other = black_box(is_other_port | u64::from(meta.protocol ^ TCP));
    is_other == 0 && meta.tcp_flags(packet) & (SYN | ACK) == SYN
}

/// Whether a packet that takes the stack, although nothing is translated, takes its flow with it: conntrack
/// calls half of a TCP connection invalid. Other protocols have no such state, and fragments have no ports.
/// So the packet is not stamped as direct, and its flow is recorded where the packet leaves the stack.
#[inline(always)]
pub fn is_of_connection(meta: &Meta) -> bool {
    meta.protocol == TCP && !meta.is_fragment()
}

/// Whether a packet in the middle of a TCP connection is the server's, as its ports suggest: from the lower
/// one, and one below those that kernels give to clients (`ip_local_port_range`).
#[inline(always)]
pub fn is_from_server([from, to]: [u16; 2]) -> Condition {
    let is_lower = Condition::greater(to.into(), from.into());
    is_lower & !Condition::greater(from.into(), TRANSLATED_PORTS.1.into())
}

/// Whether a packet with these flags accepts a TCP connection, or is in the middle of one as above.
#[inline(always)]
fn is_of_server(flags: u8, ends: &Ends) -> Condition {
    let [is_syn, is_ack] = [SYN, ACK].map(|flag| Condition::nonzero((flags & flag).into()));
    is_ack & (is_syn | is_from_server(ends.ports_of_tcp()))
}

/// Records the flow of a packet that the stack has translated, or of one as above, of the pods behind two
/// host interfaces; `other` may be [`REMOTE`]. The flow takes a place of `pod`. Flows behind IPv6 extension
/// headers other than a fragment header are not recorded.
#[inline(always)]
pub fn record(packet: &Packet, meta: &Meta, pod: u32, other: u32) {
    if meta.transport().is_some() {
        noted::note(packet, meta);
        ferrule_record_flow(packet.context(), pod, other);
    }
}

/// Whether the flow of the noted ends is recorded.
///
/// A global function, as the others with this prefix: the verifier walks it once, and not with each state in
/// which a program calls it.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_find_flow(skb: *mut __sk_buff) -> u32 {
    let Some(ends) = noted::ends() else { return 0 };
    let Some(key) = ends.translatable() else { return 0 };
    let sign = Sign::of(noted::tcp_flags(skb, ends), ends, &key);
    touch(key.as_flow(), sign).is_some().into()
}

/// See [`record`].
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_record_flow(skb: *mut __sk_buff, pod: u32, other: u32) -> u32 {
    let Some(ends) = noted::ends() else { return 0 };
    let Some(key) = ends.translatable() else { return 0 };
    // With every packet: the agent may have replaced the entries of `VIFS`.
    vifs::mark_peers(pod, other);
    let flags = noted::tcp_flags(skb, ends);
    let sign = Sign::of(flags, ends, &key);
    // SAFETY: the kernel passes a valid context.
    let to = unsafe { (*skb).ifindex };
    let Some(flow) = touch(key.as_flow(), sign) else {
        let from = if pod == to { other } else { pod };
        let server = pick(is_of_server(flags, ends).mask(), from.into(), to.into());
        insert(&key, pod, server as u32, sign);
        return 0;
    };
    // The next connection between the same ends may be the other way round, or to another pod. Not by an
    // answer, which the client may have forged.
    if flags & (SYN | ACK) == SYN {
        // SAFETY: an aligned field of an entry, which stays writable until the program returns.
        unsafe { (&raw mut (*flow).ifindex).write_volatile(to) }
    }
    0
}

/// The interface of a recorded flow's server, as in [`Flow::ifindex`].
#[inline(always)]
pub fn server(key: &Key) -> Option<u32> {
    // SAFETY: an aligned field of an entry, which stays readable until the program returns.
    STACK_FLOWS.get_ptr(key.as_flow()).map(|flow| unsafe { (&raw const (*flow).ifindex).read_volatile() })
}

/// The flow first, and then its place: a place without a flow is free for other CPUs. A flow that finds none
/// counts for no pod.
#[inline(never)]
fn insert(key: &Key, client: u32, server: u32, sign: Sign) {
    let Some(begun) = vifs::begun_flows(client) else { return };
    let key = key.as_flow();
    // Fails if another CPU has inserted the flow.
    if STACK_FLOWS.insert(key, &Flow { ifindex: server, used: sign.used(0, now()) }, BPF_NOEXIST).is_ok() {
        for _ in 0..CLAIMS {
            let (place, used) = choose(client, begun);
            if take(place, used, key) {
                return;
            }
        }
    }
}

/// A place in the client's ring: an empty one, one whose flow has ended, or that of the longest unused of a
/// few. And the flow's `used`, or [`FREE`].
#[inline(always)]
fn choose(client: u32, begun: *mut u32) -> (RingKey, u64) {
    let (mut chosen, mut chosen_used, mut oldest, now) = (0, 0, 0, now());
    for _ in 0..TRIES {
        let number = next(begun) % FLOWS_PER_POD.load().max(1);
        let place = RingKey { ifindex: client, place: number };
        // SAFETY: another CPU that replaces the key makes a wrong choice at worst.
        let flow = unsafe { FLOW_RINGS.get(&place) }.and_then(|old| STACK_FLOWS.get_ptr(old));
        let Some(flow) = flow else { return (place, FREE) };
        let used = used(flow);
        let age = age(used, now);
        let keeps = Condition::greater(oldest, age.into()).mask();
        chosen = pick(keeps, chosen, number.into());
        chosen_used = pick(keeps, chosen_used, used.into());
        oldest = pick(keeps, oldest, age.into());
        if age & ENDED != 0 {
            break;
        }
    }
    (RingKey { ifindex: client, place: chosen as u32 }, chosen_used)
}

/// Gives a place to a flow, and removes the flow that had it, if that is still as it was chosen: another CPU
/// may have used the flow, or taken the place.
#[inline(always)]
fn take(place: RingKey, chosen: u64, key: &FlowKey) -> bool {
    // SAFETY: copied at once: the entry may be another place's later.
    if let Some(old) = unsafe { FLOW_RINGS.get(&place) }.copied() {
        let is_chosen = match STACK_FLOWS.get_ptr(&old) {
            // The removal succeeds on one CPU only.
            Some(flow) => u64::from(used(flow)) == chosen && STACK_FLOWS.remove(&old).is_ok(),
            None => chosen == FREE,
        };
        if !is_chosen {
            return false;
        }
        let _ = FLOW_RINGS.remove(&place);
    }
    FLOW_RINGS.insert(&place, key, BPF_NOEXIST).is_ok()
}

#[inline(always)]
fn used(flow: *const Flow) -> u32 {
    // SAFETY: an aligned field of an entry, which stays readable until the program returns.
    unsafe { (&raw const (*flow).used).read_volatile() }
}

/// The number of the ring's next place. Other CPUs may get the same number. A CPU that stops between the two
/// steps sets the ring back by the flows that begin meanwhile, and later flows try those places again.
#[inline(always)]
fn next(begun: *mut u32) -> u32 {
    // SAFETY: an aligned field of an entry, which stays readable and writable until the program returns.
    unsafe {
        let number = begun.read_volatile();
        begun.write_volatile(number.wrapping_add(1));
        number
    }
}

/// How soon a flow gives up its place: jiffies since its last packet, and [`ENDED`] if no more are expected.
#[inline(always)]
fn age(used: u32, now: u32) -> u32 {
    let closed = Flow::closed(used, now);
    let unused = now.wrapping_sub(used).wrapping_sub(closed * Flow::CLOSED_BY_LOW);
    // None of a negative time: another CPU may have noted a later one.
    let unused = unused & (!Condition::negative(unused)).mask() as u32;
    let is_open = Condition::nonzero((closed ^ Flow::BOTH).into());
    let has_ended = !(is_open | Condition::greater(GRACE.into(), unused.into()));
    (ENDED * has_ended.factor() as u32) | unused
}

/// The flow, if it is recorded. Notes the time, and what a packet tells of the flow.
#[inline(always)]
fn touch(key: &FlowKey, sign: Sign) -> Option<*mut Flow> {
    let flow = STACK_FLOWS.get_ptr_mut(key)?;
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
    Some(flow)
}

/// In jiffies, which cost less than a clock.
#[inline(always)]
fn now() -> u32 {
    // SAFETY: a helper call without arguments.
    unsafe { bpf_jiffies64() as u32 }
}

/// Whether the packet quoted in an ICMP error belongs to a recorded flow.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_find_quoted(skb: *mut __sk_buff, is_v6: u32, quote: u32) -> u32 {
    let family = if is_v6 != 0 { Family::Ipv6 } else { Family::Ipv4 };
    // SAFETY: programs pass their context.
    let packet = unsafe { Packet::of_caller(skb) };
    quote_belongs_to_stack(&packet, family, quote as usize).into()
}

#[inline(always)]
fn quote_belongs_to_stack(packet: &Packet, family: Family, quote: usize) -> bool {
    let Some(quote) = quote::find(packet, family, quote) else { return false };
    let Some(transport) = quote.transport(packet) else { return false };
    let key = Ends::new(quote.source, quote.destination, quote.protocol, transport).translatable();
    key.is_some_and(|key| touch(key.as_flow(), Sign::NONE).is_some())
}

// === impl Sign ===

impl Sign {
    const NONE: Self = Self(0);
    const OPENS: u32 = 4;

    #[inline(always)]
    fn of(tcp_flags: u8, ends: &Ends, key: &Key) -> Self {
        let flags = u32::from(tcp_flags);
        let end = Flow::LOW + u32::from(ends.is_high(key)) * (Flow::HIGH - Flow::LOW);
        // LLVM would branch by a bit that it knows as one.
        let is_set = |flag: u8| black_box(flags >> flag.trailing_zeros() & 1);
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
