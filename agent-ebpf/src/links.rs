//! `LINK_COUNTERS`: packets, bytes and drops of the tunnel device and the uplinks.

use agent_common::{DropReason, MAX_LINKS, Traffic, VifKey};
use aya_ebpf::{bindings::BPF_F_NO_PREALLOC, btf_maps::PerCpuHashMap, macros::btf_map};

use crate::counters;

#[btf_map]
static LINK_COUNTERS: PerCpuHashMap<VifKey, Traffic, MAX_LINKS, { BPF_F_NO_PREALLOC as usize }> =
    PerCpuHashMap::new();

/// Counts a packet that is not dropped, whether the stack or a pod gets it.
#[inline(always)]
pub fn pass(ifindex: u32, bytes: u32) {
    if let Some(traffic) = of(ifindex) {
        counters::add(traffic, bytes);
    }
}

/// Counts a dropped packet.
#[inline(always)]
pub fn drop(ifindex: u32, reason: DropReason) {
    if let Some(traffic) = of(ifindex) {
        counters::count(&mut traffic.drops, reason);
    }
}

/// Whether an interface is the tunnel device or an uplink.
#[inline(always)]
pub fn is_counted(ifindex: u32) -> bool {
    of(ifindex).is_some()
}

#[inline(always)]
fn of(ifindex: u32) -> Option<&'static mut Traffic> {
    // SAFETY: the slot is this CPU's, and with BH disabled, no other tc program runs there.
    LINK_COUNTERS.get_ptr_mut(&VifKey { ifindex }).map(|traffic| unsafe { &mut *traffic })
}
