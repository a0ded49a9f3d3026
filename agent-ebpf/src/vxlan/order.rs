//! `TUNNEL_BULK`: flows in the tunnel that are left to the kernel's tunnel device, so that no packet
//! overtakes one that the device has queued.

use aya_ebpf::{btf_maps::PerCpuArray, helpers::generated::bpf_jiffies64, macros::btf_map};

/// When the last packet of a flow was left to the device, in jiffies, by a byte that its packets share.
#[btf_map]
static TUNNEL_BULK: PerCpuArray<u32, 256> = PerCpuArray::new();

/// Jiffies after which the device has delivered what it has queued: 64 ms at the highest `CONFIG_HZ`.
const QUEUED: u32 = 64;

/// Notes that the device gets a packet of the flow. The flow's packets come on one CPU, unless the NIC's
/// queues change.
#[inline(always)]
pub fn leave_to_device(flow: u8) {
    if let Some(last) = TUNNEL_BULK.get_ptr_mut(flow.into()) {
        // SAFETY: the value is this CPU's, and tc programs do not preempt each other on a CPU.
        unsafe { *last = now() };
    }
}

#[inline(always)]
pub fn is_left_to_device(flow: u8) -> bool {
    // SAFETY: as above. An element that was never written is recent once, five minutes after the boot.
    TUNNEL_BULK.get_ptr(flow.into()).is_some_and(|last| now().wrapping_sub(unsafe { *last }) < QUEUED)
}

#[inline(always)]
fn now() -> u32 {
    // SAFETY: a helper call without arguments.
    unsafe { bpf_jiffies64() as u32 }
}
