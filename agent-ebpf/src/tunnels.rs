//! Tunnels that end at a node: a packet inside of one would come out as if from another host, unchecked.

use agent_common::{DropReason, NodeEntry};
use aya_ebpf::{
    Global,
    bindings::{BPF_FIB_LKUP_RET_FWD_DISABLED, BPF_FIB_LKUP_RET_NOT_FWDED, bpf_fib_lookup as Lookup},
};

use crate::{
    headers::{GRE, IP_IN_IP, IPV6_IN_IP, UDP},
    meta::{Family, Meta},
    nodes,
    packet::Packet,
};

/// The UDP port of the tunnel between nodes; the agent sets it for another port.
#[unsafe(no_mangle)]
static TUNNEL_PORT: Global<u16> = Global::new(agent_common::TUNNEL_PORT);

/// Address families of the kernel (`linux/socket.h`).
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// # Errors
/// `Tunnel`, if the packet carries a packet to the node itself, or to the tunnel's port of any node.
#[inline(always)]
pub fn check(packet: &Packet<'_>, meta: &Meta) -> Result<(), DropReason> {
    let ends_at_node = if is_to_tunnel_port(meta) {
        nodes::find(meta.destination).is_some_and(NodeEntry::is_address)
    } else {
        carries_ip(meta) && ends_here(packet, meta)
    };
    if ends_at_node { Err(DropReason::Tunnel) } else { Ok(()) }
}

/// Whether the packet carries a packet by a protocol that the kernel may unpack.
#[inline(always)]
pub fn carries_packet(meta: &Meta) -> bool {
    carries_ip(meta) || is_to_tunnel_port(meta)
}

#[inline(always)]
fn carries_ip(meta: &Meta) -> bool {
    matches!(meta.protocol, IP_IN_IP | IPV6_IN_IP | GRE)
}

/// Of fragments, the first one has the port; the kernel cannot reassemble the others without it.
#[inline(always)]
fn is_to_tunnel_port(meta: &Meta) -> bool {
    meta.protocol == UDP
        && meta.transport().is_some_and(|transport| {
            let [_, destination] = transport.ports();
            destination == TUNNEL_PORT.load()
        })
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
