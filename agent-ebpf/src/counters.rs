//! `VIF_COUNTERS`: packets, bytes and drops of each interface.

use agent_common::{Counters, DropReason, Drops, MAX_VIFS, Traffic, VifKey, event::direction};
use aya_ebpf::{bindings::BPF_F_NO_PREALLOC, btf_maps::PerCpuHashMap, macros::btf_map};

#[btf_map]
static VIF_COUNTERS: PerCpuHashMap<VifKey, Counters, MAX_VIFS, { BPF_F_NO_PREALLOC as usize }> =
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
pub fn egress(ifindex: u32, bytes: u32) {
    if let Some(counters) = of(ifindex) {
        add(&mut counters.egress, bytes);
    }
}

/// Counts a packet that was delivered to a pod.
#[inline(always)]
pub fn ingress(ifindex: u32, bytes: u32) {
    if let Some(counters) = of(ifindex) {
        add(&mut counters.ingress, bytes);
    }
}

/// Counts a dropped packet of an interface.
#[inline(never)]
pub fn drop(ifindex: u32, direction: Direction, reason: DropReason) {
    // An interface without an entry in `VIFS` has no counters either.
    let ifindex = if matches!(reason, DropReason::NoVif) { 0 } else { ifindex };
    let Some(counters) = of(ifindex) else {
        return;
    };
    let traffic = match direction {
        Direction::Ingress => &mut counters.ingress,
        Direction::Egress => &mut counters.egress,
    };
    count(&mut traffic.drops, reason);
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
fn of(ifindex: u32) -> Option<&'static mut Counters> {
    // SAFETY: the slot is this CPU's, and tc programs do not preempt each other on a CPU.
    VIF_COUNTERS.get_ptr_mut(VifKey { ifindex }).map(|counters| unsafe { &mut *counters })
}

/// Counts a packet that passes.
#[inline(always)]
pub fn add(traffic: &mut Traffic, bytes: u32) {
    traffic.packets += 1;
    traffic.bytes += u64::from(bytes);
}
