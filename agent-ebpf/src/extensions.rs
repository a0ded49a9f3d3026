//! The walk over IPv6 extension headers as a function of its own.

use aya_ebpf::bindings::__sk_buff;

use crate::{meta, packet::Packet};

/// As [`meta::skip_extensions`], but the verifier walks the loop once, and not with each state in which a
/// program calls it.
#[inline(always)]
pub fn skip(packet: &Packet, next_header: u8) -> u64 {
    ferrule_skip_extensions(packet.context(), next_header.into())
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_skip_extensions(skb: *mut __sk_buff, next_header: u32) -> u64 {
    // SAFETY: programs pass their context.
    meta::skip_extensions(&unsafe { Packet::of_caller(skb) }, next_header as u8)
}
