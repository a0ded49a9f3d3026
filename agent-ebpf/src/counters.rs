//! `VIF_TRAFFIC`: packets and bytes of each pod. `VIF_COUNTERS`: drops of each interface.
//!
//! Every packet that passes is counted at one end or two: by index, which costs a tenth of a look-up by hash.

use agent_common::{
    DropReason, Dropped, Drops, MAX_VIFS, Passed, Traffic, VifEntry, VifKey, event::direction, traffic_slots,
};
use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    btf_maps::{PerCpuArray, PerCpuHashMap},
    macros::btf_map,
};

#[btf_map]
static VIF_TRAFFIC: PerCpuArray<Passed, { traffic_slots(MAX_VIFS as u32) as usize }> = PerCpuArray::new();

#[btf_map]
static VIF_COUNTERS: PerCpuHashMap<VifKey, Dropped, MAX_VIFS, { BPF_F_NO_PREALLOC as usize }> =
    PerCpuHashMap::new();

/// The direction of a packet, the pod's.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Direction {
    Ingress = direction::INGRESS,
    Egress = direction::EGRESS,
}

/// Counts a packet that left a pod.
#[inline(always)]
pub fn egress(vif: &VifEntry, bytes: u32) {
    if let Some(passed) = passed(vif.slot) {
        passed.egress.packets += 1;
        passed.egress.bytes += u64::from(bytes);
    }
}

/// Counts a packet that was delivered to the pod with a slot.
#[inline(always)]
pub fn ingress(slot: u32, bytes: u32) {
    if let Some(passed) = passed(slot) {
        passed.ingress.packets += 1;
        passed.ingress.bytes += u64::from(bytes);
    }
}

/// Counts a dropped packet of an interface.
#[inline(never)]
pub fn drop(ifindex: u32, direction: Direction, reason: DropReason) {
    // An interface without an entry in `VIFS` has no counters either.
    let ifindex = if matches!(reason, DropReason::NoVif) { 0 } else { ifindex };
    let Some(dropped) = VIF_COUNTERS.get_ptr_mut(&VifKey { ifindex }) else { return };
    // SAFETY: as for `passed`.
    let dropped = unsafe { &mut *dropped };
    let drops = match direction {
        Direction::Ingress => &mut dropped.ingress,
        Direction::Egress => &mut dropped.egress,
    };
    count(drops, reason);
}

/// Counts a dropped packet.
#[inline(always)]
pub fn count(drops: &mut Drops, reason: DropReason) {
    // The counters are in the order of the reasons (asserted in agent-common). `black_box` hides from LLVM
    // that the index is in range: LLVM would remove the check that the verifier needs.
    let index = core::hint::black_box(reason as usize);
    if index < DropReason::ALL.len() {
        // SAFETY: in bounds of `drops`, which is `repr(C)` with one `u64` for each reason.
        unsafe { *(&raw mut *drops).cast::<u64>().add(index) += 1 };
    }
}

#[inline(always)]
fn passed(slot: u32) -> Option<&'static mut Passed> {
    // SAFETY: the value is this CPU's, and with BH disabled, no other tc program runs there.
    VIF_TRAFFIC.get_ptr_mut(slot).map(|passed| unsafe { &mut *passed })
}

/// Counts a packet that passes.
#[inline(always)]
pub fn add(traffic: &mut Traffic, bytes: u32) {
    traffic.packets += 1;
    traffic.bytes += u64::from(bytes);
}
