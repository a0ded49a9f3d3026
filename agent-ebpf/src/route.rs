//! The kernel's route for a packet.

use aya_ebpf::bindings::{
    BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup as Lookup, bpf_redir_neigh,
};

use crate::{
    meta::{Family, Meta},
    packet::Packet,
};

/// Where a forwarded packet leaves this node.
#[derive(Clone, Copy)]
pub struct NextHop {
    pub ifindex: u32,
    pub neighbour: bpf_redir_neigh,
}

/// Address families of the kernel (`linux/socket.h`).
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// The next hop, if the kernel would forward the packet to one, known or not yet resolved.
#[inline(always)]
pub fn next_hop(packet: &Packet<'_>, meta: &Meta) -> Option<NextHop> {
    let (found, result) = look_up(packet, meta);
    if result != i64::from(BPF_FIB_LKUP_RET_SUCCESS) && result != i64::from(BPF_FIB_LKUP_RET_NO_NEIGH) {
        return None;
    }
    // SAFETY: integers and arrays of integers, for which zero is valid.
    let mut neighbour: bpf_redir_neigh = unsafe { core::mem::zeroed() };
    neighbour.nh_family = u32::from(found.family);
    // SAFETY: the helper has replaced the destination by the gateway, of the family that it has set.
    unsafe {
        if found.family == AF_INET6 {
            neighbour.__bindgen_anon_1.ipv6_nh = found.__bindgen_anon_4.ipv6_dst;
        } else {
            neighbour.__bindgen_anon_1.ipv4_nh = found.__bindgen_anon_4.ipv4_dst;
        }
    }
    Some(NextHop { ifindex: found.ifindex, neighbour })
}

/// The kernel's answer: parameters, and one of `BPF_FIB_LKUP_RET_`, or a negative error.
#[inline(always)]
pub fn look_up(packet: &Packet<'_>, meta: &Meta) -> (Lookup, i64) {
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
    (lookup, result)
}
