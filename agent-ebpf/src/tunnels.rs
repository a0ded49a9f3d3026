//! Tunnels that end at a node: a packet inside of one would come out as if from another host, unchecked.
//!
//! The receiver of a packet of the tunnel believes the node that sends. So nothing on that node but the
//! tunnel device may send to the tunnel's port: no pod ([`check`]), and no process or Service of the node
//! ([`check_uplink`]).

use agent_common::DropReason;
use aya_ebpf::{
    Global,
    bindings::{BPF_FIB_LKUP_RET_FWD_DISABLED, BPF_FIB_LKUP_RET_NOT_FWDED},
};

use crate::{
    headers::{
        ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, GRE, ICMPV6, IP_IN_IP, IPV6_IN_IP, Ipv4, Ipv6, L3, TCP, UDP,
    },
    links,
    meta::Meta,
    nodes,
    packet::{Packet, Stamp},
    route, vifs,
};

/// The UDP port of the tunnel between nodes; the agent sets it for another port.
#[unsafe(no_mangle)]
static TUNNEL_PORT: Global<u16> = Global::new(agent_common::TUNNEL_PORT);

/// Whether that port is the tunnel's; the agent clears it if the node's settings have no tunnel. Then other
/// programs of the node may use the port.
#[unsafe(no_mangle)]
static HAS_TUNNEL: Global<u8> = Global::new(1);

/// The tunnel's port.
#[inline(always)]
pub fn port() -> u16 {
    TUNNEL_PORT.load()
}

/// Whether this node may have a tunnel, and a port is the tunnel's.
#[inline(always)]
pub fn is_port(port: u16) -> bool {
    HAS_TUNNEL.load() != 0 && port == self::port()
}

/// Ports of VXLAN: IANA's (RFC 7348, 8), and the one that Linux had before (`drivers/net/vxlan`), as flannel
/// and Cilium have still. A device of another program that listens there unpacks for everybody.
const VXLAN: [u16; 2] = [4789, 8472];

/// # Errors
/// `Tunnel`, if the packet carries a packet to the node itself, or to the tunnel's port of any node.
#[inline(always)]
pub fn check(packet: &Packet, meta: &Meta) -> Result<(), DropReason> {
    let is_nodes = is_to_tunnel_port(meta) && nodes::owner(meta.destination).is_some();
    // The kernel knows addresses of the node that are not in `NODES`, which is empty without other nodes.
    if is_nodes || may_carry_ip(meta) && ends_here(packet, meta) { Err(DropReason::Tunnel) } else { Ok(()) }
}

/// Whether [`check_uplink`] wants to see a packet that leaves by an uplink: datagrams, but not the tunnel's,
/// and what may hide one behind IPv6 extension headers.
#[inline(always)]
pub fn may_forge(packet: &Packet) -> bool {
    let is_stamped = packet.has_stamp(Stamp::Tunnelled);
    if HAS_TUNNEL.load() == 0 || is_stamped && is_from_pod(packet) {
        return false;
    }
    let is_devices = is_stamped && packet.ingress_ifindex() == 0;
    let Ok(ethernet) = packet.header::<Ethernet>(0) else { return false };
    match u16::from_be_bytes(ethernet.ethertype) {
        ETHERTYPE_IPV4 => !is_devices && packet.header::<Ipv4>(L3).is_ok_and(|ip| ip.protocol == UDP),
        ETHERTYPE_IPV6 => packet.header::<Ipv6>(L3).is_ok_and(|ip| match ip.next_header {
            TCP | ICMPV6 => false,
            UDP => !is_devices,
            // The kernel does not keep the interface in IPv6 fragments that it makes; the device sends none.
            _ => true,
        }),
        _ => false,
    }
}

/// Whether the stamp is that of [`vxlan::send`](crate::vxlan::send). The tunnel device clears the interface
/// by which a packet came. Any other one can be that of a network namespace whose user forges the stamp.
#[inline(always)]
fn is_from_pod(packet: &Packet) -> bool {
    let from = packet.ingress_ifindex();
    from != 0 && vifs::find(from).is_ok()
}

/// # Errors
/// `Tunnel`, if a datagram that is not the tunnel's goes to the tunnel's port of a node.
#[inline(always)]
pub fn check_uplink(packet: &Packet, meta: &Meta) -> Result<(), DropReason> {
    let is_to_tunnel = is_to_tunnel_port(meta) && nodes::owner(meta.destination).is_some();
    if is_to_tunnel && !is_between_others(packet, meta) { Err(DropReason::Tunnel) } else { Ok(()) }
}

/// Whether this node only forwards the packet, from one uplink to another: the tunnel's packet of another
/// node, which has judged what may send it.
#[inline(always)]
fn is_between_others(packet: &Packet, meta: &Meta) -> bool {
    links::is_counted(packet.ingress_ifindex())
        && nodes::owner(meta.source).is_some_and(|node| !node.is_own())
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

/// Whether some program of the node may unpack the packet.
#[inline(always)]
fn may_carry_ip(meta: &Meta) -> bool {
    carries_ip(meta) || goes_to(meta, |destination| VXLAN.contains(&destination) || destination == port())
}

#[inline(always)]
fn is_to_tunnel_port(meta: &Meta) -> bool {
    goes_to(meta, |destination| destination == port())
}

/// Whether the packet is a datagram to a port. Of fragments, the first one has the port; the kernel cannot
/// reassemble the others without it.
#[inline(always)]
fn goes_to(meta: &Meta, is_port: impl FnOnce(u16) -> bool) -> bool {
    meta.protocol == UDP
        && meta.transport().is_some_and(|transport| {
            let [_, destination] = transport.ports();
            is_port(destination)
        })
}

/// Whether the kernel would not forward a packet: its destination is an address of the node, or has no route.
#[inline(never)]
fn ends_here(packet: &Packet, meta: &Meta) -> bool {
    let result = route::look_up(packet, meta);
    result == i64::from(BPF_FIB_LKUP_RET_NOT_FWDED) || result == i64::from(BPF_FIB_LKUP_RET_FWD_DISABLED)
}
