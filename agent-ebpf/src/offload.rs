//! Checksums that the kernel writes into a packet when it leaves the node, after the programs.
//!
//! A pod's kernel leaves them to the hardware (`CHECKSUM_PARTIAL`), and says where they belong. A process
//! with a packet socket says that itself (`struct virtio_net_hdr`), and could name a place that the programs
//! have checked: a port, or a part of an IPv6 address. A packet that stays on the node never gets the
//! checksum.

use agent_common::{DropReason, SkbFields};
use aya_ebpf::{Global, bindings::__sk_buff, helpers::generated::bpf_probe_read_kernel};

use crate::{
    headers::{ICMP, ICMPV6, L3, SCTP, TCP, UDP},
    meta::Meta,
    packet::Packet,
};

/// Where the kernel keeps that; the agent finds the places in the kernel's BTF. Without them, packets are not
/// checked: a kernel in the lockdown mode "confidentiality" lets no program read its memory.
#[unsafe(no_mangle)]
static SKB_FIELDS: Global<SkbFields> =
    Global::new(SkbFields { window: 0, ip_summed: 0, csum_start: 0, network_header: 0 });

/// `linux/skbuff.h`.
const CHECKSUM_PARTIAL: u8 = 3;
/// No checksum will be written.
const NONE: u32 = u32::MAX;

/// # Errors
/// `Malformed`, if the kernel would write into a field that is checked, other than the checksum.
#[inline(always)]
pub fn check(packet: &Packet, meta: &Meta) -> Result<(), DropReason> {
    let place = ferrule_late_checksum(packet.context());
    if place == NONE {
        return Ok(());
    }
    let transport = (meta.payload - L3) as u32;
    // The field of the checksum, and the length of the header. The kernel computes those of ICMP itself.
    let (checksum, len) = match meta.protocol {
        TCP => (16, 20),
        UDP => (6, 8),
        SCTP => (8, 12),
        ICMP | ICMPV6 => return Err(DropReason::Malformed),
        _ => (0, 0),
    };
    // Behind the header can be a packet that the pod tunnels, with a checksum of its own.
    if place == transport + checksum || place >= transport + len {
        Ok(())
    } else {
        Err(DropReason::Malformed)
    }
}

/// Where the kernel will write a checksum, in bytes from the IP header; `NONE` if nowhere.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_late_checksum(skb: *mut __sk_buff) -> u32 {
    let fields = SKB_FIELDS.load();
    if fields.window == 0 {
        return NONE;
    }
    let mut window = [0_u64; SkbFields::WINDOW / size_of::<u64>()];
    // SAFETY: the kernel passes its own structure as the context, and the helper reads it as any memory of
    // the kernel, into a buffer of this size.
    let failed = unsafe {
        let from = skb.cast::<u8>().add(usize::from(fields.window));
        bpf_probe_read_kernel(window.as_mut_ptr().cast(), SkbFields::WINDOW as u32, from.cast())
    };
    if failed != 0 {
        return NONE;
    }
    let byte = |at: u16| {
        // SAFETY: in bounds by the mask; any byte of the buffer is valid.
        unsafe { *window.as_ptr().cast::<u8>().add(usize::from(at) % SkbFields::WINDOW) }
    };
    let number = |at: u16| u16::from_ne_bytes([byte(at), byte(at + 1)]);
    if byte(fields.ip_summed / 8) >> (fields.ip_summed % 8) & 3 != CHECKSUM_PARTIAL {
        return NONE;
    }
    let (start, offset) = (number(fields.csum_start), number(fields.csum_start + 2));
    start.wrapping_add(offset).wrapping_sub(number(fields.network_header)).into()
}
