//! Tunnels that end at the node: a packet inside of one would come out as if from another host, unchecked.

use agent_common::DropReason;
use aya_ebpf::bindings::{
    BPF_FIB_LKUP_RET_FWD_DISABLED, BPF_FIB_LKUP_RET_NOT_FWDED, bpf_fib_lookup as Lookup,
};

use crate::{
    headers::{GRE, IP_IN_IP, IPV6_IN_IP},
    meta::{Family, Meta},
    packet::Packet,
};

/// Address families of the kernel (`linux/socket.h`).
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// # Errors
/// `Tunnel`, if the packet carries a packet to the node itself.
#[inline(always)]
pub fn check(packet: &Packet<'_>, meta: &Meta) -> Result<(), DropReason> {
    let is_tunnel = matches!(meta.protocol, IP_IN_IP | IPV6_IN_IP | GRE);
    if is_tunnel && ends_here(packet, meta) { Err(DropReason::Tunnel) } else { Ok(()) }
}

/// Whether the kernel would not forward a packet: its destination is an address of the node, or has no route.
#[inline(never)]
fn ends_here(packet: &Packet<'_>, meta: &Meta) -> bool {
    // SAFETY: integers and arrays of integers, for which zero is valid.
    let mut lookup: Lookup = unsafe { core::mem::zeroed() };
    lookup.ifindex = packet.ifindex();
    lookup.l4_protocol = meta.protocol;
    match meta.family {
        Family::Ipv4 => {
            lookup.family = AF_INET;
            lookup.__bindgen_anon_3.ipv4_src = u32::from_ne_bytes(meta.source.to_v4());
            lookup.__bindgen_anon_4.ipv4_dst = u32::from_ne_bytes(meta.destination.to_v4());
        }
        Family::Ipv6 => {
            lookup.family = AF_INET6;
            lookup.__bindgen_anon_3.ipv6_src = meta.source.to_v6_words();
            lookup.__bindgen_anon_4.ipv6_dst = meta.destination.to_v6_words();
        }
    }
    let result = packet.look_up_route(&mut lookup);
    result == i64::from(BPF_FIB_LKUP_RET_NOT_FWDED) || result == i64::from(BPF_FIB_LKUP_RET_FWD_DISABLED)
}
