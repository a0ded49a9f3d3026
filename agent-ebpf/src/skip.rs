//! The walk over extension headers as a function of its own.

use aya_ebpf::bindings::__sk_buff;

use crate::{
    extensions::{self, Skipped},
    packet::Packet,
};

/// What is behind extension headers, by the IPv6 header's `next_header`.
#[inline(always)]
pub fn extensions(packet: &Packet, next_header: u8) -> Skipped {
    Skipped::unpack(ferrule_skip_extensions(packet.context(), next_header.into()))
}

/// As [`extensions::walk`], but the verifier walks the loop once, and not with each state in which a program
/// calls it.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_skip_extensions(skb: *mut __sk_buff, next_header: u32) -> u64 {
    // SAFETY: programs pass their context.
    extensions::walk(&unsafe { Packet::of_caller(skb) }, next_header as u8)
}
