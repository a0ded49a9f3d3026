//! Tunnels that end at a node: a packet inside of one would come out as if from another host, unchecked.

use agent_common::{DropReason, NodeEntry};
use aya_ebpf::{
    Global,
    bindings::{BPF_FIB_LKUP_RET_FWD_DISABLED, BPF_FIB_LKUP_RET_NOT_FWDED},
};

use crate::{
    headers::{GRE, IP_IN_IP, IPV6_IN_IP, UDP},
    meta::Meta,
    packet::Packet,
    route,
};

/// The UDP port of the tunnel between nodes; the agent sets it for another port.
#[unsafe(no_mangle)]
static TUNNEL_PORT: Global<u16> = Global::new(agent_common::TUNNEL_PORT);

/// `node` has the packet's destination.
///
/// # Errors
/// `Tunnel`, if the packet carries a packet to the node itself, or to the tunnel's port of any node.
#[inline(always)]
pub fn check(packet: &Packet<'_>, meta: &Meta, node: Option<&NodeEntry>) -> Result<(), DropReason> {
    let ends_at_node = if is_to_tunnel_port(meta) {
        node.is_some_and(NodeEntry::is_address)
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
    let result = route::look_up(packet, meta);
    result == i64::from(BPF_FIB_LKUP_RET_NOT_FWDED) || result == i64::from(BPF_FIB_LKUP_RET_FWD_DISABLED)
}
