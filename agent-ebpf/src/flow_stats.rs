//! `FLOW_STATS`: packets and bytes of each flow of a pod, and records of its first packet, of its end, and of
//! each minute between.
//!
//! A packet is counted once: where the pod that sends it is, or where the receiver is if another host sends
//! it. A packet that the stack translates is counted in two flows, before and after the translation. A direct
//! flow with the key of a stale entry of `STACK_FLOWS` is counted in both programs, and so is a connection
//! between pods of this node that takes the stack without a translation.

use agent_common::{
    VifEntry,
    event::{FlowStats, flow_state},
};
use aya_ebpf::{
    Global,
    bindings::__sk_buff,
    btf_maps::{Array, PerCpuArray},
    helpers::generated::bpf_jiffies64,
    macros::btf_map,
};

use crate::{
    counters::Direction,
    events,
    flow_key::Key,
    flow_places::{self, FLOW_STATS},
    headers::{ACK, FIN, RST, SYN},
    meta::Meta,
    noted,
    packet::Packet,
};

/// One flow in how many is counted; 0: none. The agent changes the number while packets flow.
#[btf_map]
static FLOW_SAMPLING: Array<u32, 1> = Array::new();

/// 0: flows are never counted, and the verifier removes the code.
#[unsafe(no_mangle)]
static FLOW_STATS_ON: Global<u8> = Global::new(1);

/// Nanoseconds between two records of a flow.
const PERIOD: u64 = 60_000_000_000;
/// Jiffies between two looks at the clock, which costs more than a look-up: 6 s at the lowest `CONFIG_HZ`,
/// 100.
const LOOK: u32 = 600;

const BPF_NOEXIST: u64 = 1;

/// What is counted of a packet. In a map and not on the stack: the verifier walks the code that counts once,
/// and not once for every way that a packet can have come here.
#[derive(Clone, Copy)]
#[repr(C)]
struct Facts {
    key: Key,
    ifindex: u32,
    generation: u32,
    direction: u32,
    bytes: u32,
    one_in: u32,
    is_high: u8,
    tcp_flags: u8,
    reserved: [u8; 2],
}

#[btf_map]
static FLOW_FACTS: PerCpuArray<Facts, 1> = PerCpuArray::new();

/// A new entry of `FLOW_STATS`, which has no room on the stack.
#[btf_map]
static NEW_FLOW: PerCpuArray<FlowStats, 1> = PerCpuArray::new();

/// Counts a packet that passes, and that the interface of a pod has seen.
#[inline(always)]
pub fn count(packet: &Packet, meta: &Meta, vif: &VifEntry, direction: Direction) {
    count_at(packet, meta, vif, packet.ifindex(), direction);
}

/// As [`count`], of the pod at a host interface.
#[inline(always)]
pub fn count_at(packet: &Packet, meta: &Meta, vif: &VifEntry, ifindex: u32, direction: Direction) {
    if FLOW_STATS_ON.load() == 0 {
        return;
    }
    let Some(sampling) = FLOW_SAMPLING.get_ptr(0) else { return };
    // SAFETY: the only value of an array. Volatile: the agent writes to it.
    let one_in = unsafe { sampling.read_volatile() };
    if one_in == 0 {
        return;
    }
    let Some(facts) = FLOW_FACTS.get_ptr_mut(0) else { return };
    noted::note(packet, meta);
    // SAFETY: the value is this CPU's, and with BH disabled, no other tc program runs there.
    unsafe {
        ((*facts).ifindex, (*facts).generation) = (ifindex, vif.generation);
        ((*facts).direction, (*facts).bytes) = (direction as u32, packet.len());
        (*facts).one_in = one_in;
    }
    if ferrule_note_flow(packet.context()) != 0 {
        ferrule_count_flow();
    }
}

/// Completes the facts by those of the noted ends; returns 1.
///
/// A global function, as the next one: the verifier walks it once, and not with each state in which a program
/// calls it. Together, they would need too much of the stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_note_flow(skb: *mut __sk_buff) -> u32 {
    let (Some(facts), Some(ends)) = (FLOW_FACTS.get_ptr_mut(0), noted::ends()) else { return 0 };
    let (key, tcp_flags) = (ends.flow(), noted::tcp_flags(skb, ends));
    // SAFETY: as above.
    unsafe {
        ((*facts).is_high, (*facts).tcp_flags) = (ends.is_high(&key), tcp_flags);
        (*facts).key = key;
    }
    1
}

/// Counts the packet of the facts.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_count_flow() -> u32 {
    count_facts();
    0
}

#[inline(always)]
fn count_facts() {
    let Some(facts) = FLOW_FACTS.get_ptr(0) else { return };
    // SAFETY: as above.
    let facts: &Facts = unsafe { &*facts };
    let Facts { key, is_high, tcp_flags: flags, .. } = facts;
    if facts.one_in > 1 && key.hash() % facts.one_in != 0 {
        return;
    }
    // SAFETY: a helper call without arguments.
    let now = unsafe { bpf_jiffies64() } as u32;
    let entered = || {
        enter(facts, now);
        FLOW_STATS.get_ptr_mut(key.as_flow())
    };
    let Some(stats) = FLOW_STATS.get_ptr_mut(key.as_flow()).or_else(entered) else { return };
    // SAFETY: an entry stays readable and writable until the program returns. Other CPUs write to it, too:
    // counts are approximate, and no reference is made.
    unsafe {
        let is_reopened = (*stats).closed != 0 && flags & (SYN | ACK) == SYN;
        // The pod that began the flow is gone, and another one has its address.
        let is_openers = (*stats).direction == facts.direction && (*stats).opened_by_high == *is_high;
        let is_of_other_pod =
            is_openers && ((*stats).ifindex != facts.ifindex || (*stats).generation != facts.generation);
        let mut stats = stats;
        if is_reopened || is_of_other_pod {
            // In a place of the pod that opens it now.
            let _ = FLOW_STATS.remove(key.as_flow());
            let Some(new) = entered() else { return };
            stats = new;
        }
        if (*stats).used != now {
            (*stats).used = now;
        }
        let (traffic, all_flags) = if *is_high != 0 {
            (&raw mut (*stats).from_high, &raw mut (*stats).flags_of_high)
        } else {
            (&raw mut (*stats).from_low, &raw mut (*stats).flags_of_low)
        };
        (*traffic).packets += 1;
        (*traffic).bytes += u64::from(facts.bytes);
        *all_flags |= flags;
        let (low, high) = ((*stats).flags_of_low, (*stats).flags_of_high);
        let state = if (*stats).first == 0 {
            flow_state::NEW
        } else if (low | high) & RST != 0 || low & high & FIN != 0 {
            flow_state::CLOSED
        } else if now.wrapping_sub((*stats).look_at) < u32::MAX / 2 {
            flow_state::ACTIVE
        } else {
            return;
        };
        if state == flow_state::CLOSED && (*stats).closed != 0 {
            return;
        }
        let time = events::now();
        (*stats).look_at = now.wrapping_add(LOOK);
        match state {
            flow_state::NEW => (*stats).first = time,
            flow_state::CLOSED => (*stats).closed = 1,
            _ if time < (*stats).reported + PERIOD => return,
            _ => {}
        }
        (*stats).reported = time;
        events::flow((*stats).ifindex, state, time, key, stats);
    }
}

/// Adds a flow's entry, in a place of the pod that has sent or received the packet. `now`: in jiffies.
#[inline(never)]
fn enter(facts: &Facts, now: u32) {
    let key = facts.key.as_flow();
    let Some(place) = flow_places::take(facts.ifindex, facts.key.hash(), key, now) else { return };
    let Some(new) = NEW_FLOW.get_ptr_mut(0) else { return };
    // SAFETY: as for the facts. The other fields stay zero.
    let new = unsafe {
        ((*new).ifindex, (*new).generation) = (facts.ifindex, facts.generation);
        ((*new).direction, (*new).opened_by_high) = (facts.direction, facts.is_high);
        (*new).used = now;
        &*new
    };
    if FLOW_STATS.insert(key, new, BPF_NOEXIST).is_err() {
        // The other direction's first packet has added the flow on another CPU.
        flow_places::leave(place);
    }
}
