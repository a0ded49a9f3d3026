//! `TUNNEL_FLOWS`: flows in the tunnel, by a byte of their source port in the packets around theirs, on each
//! CPU. A flow's packets come on one CPU, unless the NIC's queues change.
//!
//! The kernel's tunnel device queues what it unpacks. So a flow with packets for the device is left to the
//! device for a while, and no packet overtakes one in that queue.

use aya_ebpf::{btf_maps::PerCpuArray, helpers::generated::bpf_jiffies64, macros::btf_map};

/// Times are in jiffies.
#[repr(C)]
struct TunnelFlow {
    /// Of the last packet that only the device can unpack.
    bulk: u32,
    /// Of the last packet that the device got.
    left: u32,
    /// The identification of the last packet that was sent.
    id: u32,
}

#[btf_map]
static TUNNEL_FLOWS: PerCpuArray<TunnelFlow, 256> = PerCpuArray::new();

/// Jiffies after a packet that only the device can unpack: more may follow. 64 ms at the highest `CONFIG_HZ`.
const BULK: u32 = 64;
/// Jiffies without a packet after which the device has delivered what it has queued.
const QUEUED: u32 = 2;
/// Jiffies after which a flow returns though its packets never pause: a second at the highest `CONFIG_HZ`.
const LONGEST: u32 = 1000;

/// Notes that the device gets a packet that only the device can unpack.
#[inline(always)]
pub fn leave_to_device(flow: u8) {
    if let Some(flow) = get(flow) {
        (flow.bulk, flow.left) = (now(), now());
    }
}

/// Whether the device is to get a packet of the flow, too.
#[inline(always)]
pub fn is_left_to_device(flow: u8) -> bool {
    let Some(flow) = get(flow) else { return false };
    // An element that was never written is recent once, five minutes after the boot.
    let (since_bulk, since_left) = (now().wrapping_sub(flow.bulk), now().wrapping_sub(flow.left));
    let is_left = since_bulk < BULK || since_left < QUEUED && since_bulk < LONGEST;
    if is_left {
        flow.left = now();
    }
    is_left
}

/// The next identification for an IPv4 header of the flow. Receivers merge packets that may be fragmented
/// (GRO) only if their identifications follow each other.
#[inline(always)]
pub fn next_id(flow: u8) -> u16 {
    let Some(flow) = get(flow) else { return 0 };
    flow.id = flow.id.wrapping_add(1);
    flow.id as u16
}

#[inline(always)]
fn get(flow: u8) -> Option<&'static mut TunnelFlow> {
    // SAFETY: the value is this CPU's, and with BH disabled, no other tc program runs there.
    TUNNEL_FLOWS.get_ptr_mut(flow.into()).map(|flow| unsafe { &mut *flow })
}

#[inline(always)]
fn now() -> u32 {
    // SAFETY: a helper call without arguments.
    unsafe { bpf_jiffies64() as u32 }
}
