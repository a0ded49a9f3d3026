//! `EVENTS`: records for user space, of dropped packets and of flows.
//!
//! Each interface has a budget for each kind of record, so that a flood of drops or of new flows neither
//! fills the ring buffer nor costs more than a look-up for each packet. Dropped packets are counted, whether
//! they have a record or not.

use core::ptr;

use agent_common::{
    DropReason, MAX_EVENT_BYTES,
    event::{CAPTURE, DropRecord, FlowRecord, FlowStats, kind},
};
use aya_ebpf::{
    bindings::__sk_buff,
    btf_maps::{LruPerCpuHashMap, RingBuf},
    helpers::generated::bpf_ktime_get_boot_ns,
    macros::btf_map,
};

use crate::{flow_key::Key, packet::Packet, policy::case, vifs};

#[btf_map]
static EVENTS: RingBuf<DropRecord, MAX_EVENT_BYTES> = RingBuf::new();

#[btf_map]
static EVENT_BUDGETS: LruPerCpuHashMap<BudgetKey, Budget, 4096> = LruPerCpuHashMap::new();

#[derive(Clone, Copy)]
#[repr(C)]
struct BudgetKey {
    ifindex: u32,
    /// One of [`direction`](agent_common::event::direction); 0 for flows.
    direction: u16,
    /// A [`DropReason`]; 0 for flows.
    reason: u16,
}

/// A token bucket of one CPU, kept as the time at which all tokens are back (the generic cell rate algorithm
/// of ITU-T I.371).
#[derive(Clone, Copy)]
#[repr(C)]
struct Budget {
    full_at: u64,
    /// Records since the last one that had no token.
    suppressed: u32,
    /// Records since the last one for which the ring buffer had no room.
    lost: u32,
}

/// The speed at which tokens come back, and their number.
struct Rate {
    /// Nanoseconds until a token is back.
    interval: u64,
    burst: u64,
}

/// Ten records a second.
const DROPS: Rate = Rate { interval: 100_000_000, burst: 20 };
/// A hundred records a second.
const FLOWS: Rate = Rate { interval: 10_000_000, burst: 200 };

/// Nanoseconds since boot.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: a helper call without arguments.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// Records a dropped packet of an interface. `direction` is one of
/// [`direction`](agent_common::event::direction).
#[inline(always)]
pub fn drop(packet: &Packet, ifindex: u32, direction: u32, reason: DropReason) {
    ferrule_record_drop(packet.context(), ifindex, direction, reason as u32, 0);
}

/// Records a dropped packet, or one that passes because its pod is only audited.
///
/// A global function: the verifier walks it once, and not with each state in which a program calls it.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_record_drop(
    skb: *mut __sk_buff,
    ifindex: u32,
    direction: u32,
    reason: u32,
    is_audited: u32,
) -> u32 {
    // SAFETY: programs pass their context.
    let packet = unsafe { Packet::of_caller(skb) };
    record_drop(&packet, ifindex, direction, reason, is_audited);
    0
}

#[inline(always)]
fn record_drop(packet: &Packet, ifindex: u32, direction: u32, reason: u32, is_audited: u32) {
    let time = now();
    let key = BudgetKey { ifindex, direction: direction as u16, reason: reason as u16 };
    let Some(budget) = spend(&key, &DROPS, time) else { return };
    let Some(mut record) = EVENTS.reserve_untyped::<DropRecord>(0) else {
        budget.lost += 1;
        return;
    };
    let (suppressed, lost) = budget.settle();
    let (ruleset, class, bit) = case::verdict(reason);
    let slot = record.as_mut_ptr();
    // SAFETY: the reserved memory is writable for a record. The packet's bytes replace the first zeros.
    unsafe {
        slot.write(DropRecord {
            kind: kind::DROP,
            direction,
            time,
            ifindex,
            generation: vifs::find(ifindex).map_or(0, |vif| vif.generation),
            reason,
            len: packet.len(),
            suppressed,
            lost,
            captured: 0,
            vlan: packet.vlan_tag(),
            ruleset,
            class,
            bit,
            audit: is_audited,
            head: [0; CAPTURE],
        });
        (*slot).captured = packet.capture(&mut (*slot).head);
    }
    record.submit(0);
}

/// Records a flow, within the budget of an interface.
///
/// # Safety
/// `stats` is a value of `FLOW_STATS`.
#[inline(always)]
pub unsafe fn flow(ifindex: u32, state: u32, time: u64, key: &Key, stats: *const FlowStats) {
    let Some(budget) = spend(&BudgetKey { ifindex, direction: 0, reason: 0 }, &FLOWS, time) else { return };
    let Some(mut record) = EVENTS.reserve_untyped::<FlowRecord>(0) else {
        budget.lost += 1;
        return;
    };
    let (suppressed, lost) = budget.settle();
    let slot = record.as_mut_ptr();
    // Field by field: a whole record does not fit on the stack.
    // SAFETY: the reserved memory is writable for a record; the value stays readable until the program
    // returns.
    unsafe {
        (&raw mut (*slot).kind).write(kind::FLOW);
        (&raw mut (*slot).state).write(state);
        (&raw mut (*slot).time).write(time);
        (&raw mut (*slot).suppressed).write(suppressed);
        (&raw mut (*slot).lost).write(lost);
        ptr::copy_nonoverlapping(key.as_flow(), &raw mut (*slot).flow, 1);
        ptr::copy_nonoverlapping(stats, &raw mut (*slot).stats, 1);
    }
    record.submit(0);
}

/// Takes a token. `None` if there is none: the record is counted as suppressed.
#[inline(always)]
fn spend(key: &BudgetKey, rate: &Rate, now: u64) -> Option<&'static mut Budget> {
    let Some(budget) = budget(key) else {
        let new = Budget { full_at: now + rate.interval, suppressed: 0, lost: 0 };
        EVENT_BUDGETS.insert(key, &new, 0).ok()?;
        return budget(key);
    };
    if budget.full_at > now + (rate.burst - 1) * rate.interval {
        budget.suppressed += 1;
        return None;
    }
    budget.full_at = if budget.full_at > now { budget.full_at } else { now } + rate.interval;
    Some(budget)
}

#[inline(always)]
fn budget(key: &BudgetKey) -> Option<&'static mut Budget> {
    // SAFETY: the value is this CPU's, with BH disabled, no other tc program runs there, and the memory of an
    // entry stays readable and writable. If the map evicts the entry meanwhile, another budget is wrong once.
    EVENT_BUDGETS.get_ptr_mut(key).map(|budget| unsafe { &mut *budget })
}

// === impl Budget ===

impl Budget {
    /// The records that were suppressed and lost: the next record tells them.
    #[inline(always)]
    fn settle(&mut self) -> (u32, u32) {
        let Self { suppressed, lost, .. } = *self;
        (self.suppressed, self.lost) = (0, 0);
        (suppressed, lost)
    }
}
