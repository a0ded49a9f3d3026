//! The kernel's routes and neighbours.

use aya_ebpf::{
    bindings::{bpf_fib_lookup as Lookup, bpf_redir_neigh},
    helpers::generated::bpf_redirect_neigh,
};

use crate::{
    address::Address,
    clear,
    meta::{Family, Meta},
    packet::Packet,
};

/// Address families of the kernel (`linux/socket.h`).
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// A `bpf_redir_neigh` behind padding, so that the address is at a multiple of eight: LLVM copies it as words
/// of eight bytes.
#[repr(C, align(8))]
struct Neighbour {
    padding: u32,
    family: u32,
    /// IPv6; or IPv4, and zeros.
    address: Address,
}

const _: () = assert!(size_of::<Neighbour>() == size_of::<u32>() + size_of::<bpf_redir_neigh>());

/// Sends the packet by an interface to a neighbour, known or not yet resolved. Returns the verdict.
#[inline(always)]
pub fn send(ifindex: u32, to: Address) -> i64 {
    let (family, address) = if to.is_mapped_ipv4() {
        let [a, b, c, d] = to.to_v4();
        (AF_INET, Address::from_words([u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]), 0]))
    } else {
        (AF_INET6, to)
    };
    let mut neighbour = Neighbour { padding: 0, family: u32::from(family), address };
    // SAFETY: the helper reads a `bpf_redir_neigh`, which is behind the padding and has the given length.
    unsafe {
        let neighbour = (&raw mut neighbour.family).cast::<bpf_redir_neigh>();
        bpf_redirect_neigh(ifindex, neighbour, size_of::<bpf_redir_neigh>() as i32, 0)
    }
}

/// The kernel's answer for a forwarded packet: one of `BPF_FIB_LKUP_RET_`, or a negative error.
#[inline(always)]
pub fn look_up(packet: &Packet, meta: &Meta) -> i64 {
    // SAFETY: integers and arrays of integers, for which zero is valid.
    let mut lookup: Lookup = unsafe { clear::zeroed() };
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
    packet.look_up_route(&mut lookup)
}
