//! The walk over extension headers as a function of its own.

use aya_ebpf::bindings::__sk_buff;

use crate::{
    extensions::{self, Skipped},
    packet::Packet,
};

/// What is behind extension headers, by the IPv6 header's `next_header`.
#[inline(always)]
pub fn extensions(packet: &Packet, next_header: u8) -> Skipped {
    let start = packet.start() as u32;
    Skipped::unpack(ferrule_skip_extensions(packet.context(), next_header.into(), start))
}

/// As [`extensions::walk`], but the verifier walks the loop once, and not with each state in which a program
/// calls it.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_skip_extensions(skb: *mut __sk_buff, next_header: u32, start: u32) -> u64 {
    // SAFETY: programs pass their context.
    let packet = unsafe { Packet::of_caller(skb) };
    extensions::walk(&packet.inside(start as usize), next_header as u8)
}
