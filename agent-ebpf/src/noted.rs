//! `FLOW_ENDS`: the ends of the packet at hand, for the global functions that look up, record or count its
//! flow, whose arguments are few.

use aya_ebpf::{bindings::__sk_buff, btf_maps::PerCpuArray, macros::btf_map};

use crate::{
    ends::Ends,
    meta::{self, Meta},
    packet::Packet,
};

#[btf_map]
static FLOW_ENDS: PerCpuArray<Ends, 1> = PerCpuArray::new();

/// Notes the ends of a packet.
#[inline(always)]
pub fn note(packet: &Packet, meta: &Meta) {
    if let Some(noted) = FLOW_ENDS.get_ptr_mut(0) {
        // SAFETY: the value is this CPU's, and with BH disabled, no other tc program runs there.
        unsafe { noted.write(Ends::of(packet, meta)) };
    }
}

/// The noted ends, until the next ones are noted.
#[inline(always)]
pub fn ends() -> Option<&'static Ends> {
    // SAFETY: as above.
    FLOW_ENDS.get_ptr(0).map(|noted| unsafe { &*noted })
}

/// The flags of the noted packet's TCP header; none if there is no such header.
#[inline(always)]
pub fn tcp_flags(skb: *mut __sk_buff, ends: &Ends) -> u8 {
    let Some(header) = ends.tcp_header() else { return 0 };
    // SAFETY: programs pass their context.
    meta::tcp_flags(&unsafe { Packet::of_caller(skb) }, header)
}
