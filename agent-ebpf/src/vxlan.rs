//! Packets of the tunnel between nodes (VXLAN, RFC 7348), made and unpacked past the kernel's tunnel device,
//! which costs more than all the rest of their way.
//!
//! Only over IPv4, and only packets that are not segmented (GSO): the kernel and the drivers expect more of
//! others than a program can tell. The device handles these, and all that are not plainly forwarded. On the
//! way out, both ways end in the uplink's queue, and packets of a flow keep their order. On the way in, the
//! device queues what it unpacks: a flow with packets for the device is left to the device for a while
//! ([`flows`]).

mod flows;

use agent_common::{DropReason, TUNNEL_VNI, UnderlayEntry};
use aya_ebpf::{
    Global,
    bindings::{
        BPF_F_ADJ_ROOM_DECAP_L3_IPV6, BPF_F_ADJ_ROOM_ENCAP_L2_ETH, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4,
        BPF_F_ADJ_ROOM_ENCAP_L4_UDP, TC_ACT_SHOT, TC_ACT_UNSPEC,
    },
    helpers::generated::bpf_redirect,
};

use crate::{
    address::Address,
    checksum::Sum,
    endpoints,
    headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, Header, Ipv4, Ipv6, L3, TCP, UDP},
    links,
    meta::{Meta, Sender},
    nodes,
    outcome::Inbound,
    packet::{Packet, Stamp},
    remote::{self, Arrival},
    route, tunnels, underlay,
};

/// The ports that the kernel gives to packets of the tunnel by their inner flow: the agent sets those of
/// `net.ipv4.ip_local_port_range`. Routers and NICs then see one flow, whichever way its packets take here.
#[unsafe(no_mangle)]
static TUNNEL_SOURCE_PORTS: Global<[u16; 2]> = Global::new(agent_common::TUNNEL_SOURCE_PORTS);

/// What a packet of the tunnel has in front of the inner IP header, but for its own Ethernet header.
#[derive(Clone, Copy)]
#[repr(C)]
struct Outer {
    ip: Ipv4,
    source_port: [u8; 2],
    port: [u8; 2],
    /// Of header and payload.
    udp_len: [u8; 2],
    /// Zero: the inner checksums suffice.
    udp_checksum: [u8; 2],
    /// [`VNI_IS_VALID`], and bits that must be zero.
    flags: [u8; 4],
    /// In the first three bytes.
    vni: [u8; 4],
    frame: Ethernet,
}

// SAFETY: bytes, and headers of bytes only (alignment 1 is asserted).
unsafe impl Header for Outer {}
const _: () = assert!(align_of::<Outer>() == 1);

const LEN: usize = size_of::<Outer>();
/// Headers that are read of a received packet: up to the flags of an inner TCP header behind IPv6.
const HEADERS: usize = LEN + L3 + size_of::<Ipv6>() + 14;
const VNI_IS_VALID: [u8; 4] = [0x08, 0, 0, 0];
const VNI: [u8; 4] = (TUNNEL_VNI << 8).to_be_bytes();
const TTL: u8 = 64;
/// Explicit congestion notification (RFC 3168, 5): the last two bits of the traffic class.
const ECN: u8 = 3;
const CONGESTED: u8 = 3;
const ECT_0: u8 = 2;
/// Set in `CONGESTED` and in ECT(1), which the kernel's device passes on to the inner header (RFC 6040, 4.2).
const ECT_1: u8 = 1;

/// Sends a packet to another node inside of a packet of the tunnel. Returns the verdict.
#[inline(always)]
pub fn send(packet: &mut Packet, way: &UnderlayEntry) -> i64 {
    match pack(packet, way) {
        Ok(true) => {
            packet.stamp(Stamp::Tunnelled);
            route::send(way.ifindex, Address::v4(way.next))
        }
        Ok(false) if packet.set_tunnel(Address::v4(way.remote)) => {
            packet.stamp(Stamp::Direct);
            // SAFETY: a helper call without pointers.
            unsafe { bpf_redirect(way.device, 0) }
        }
        // By the stack. `to_link` records the flow as if translated, and the replies go through the stack,
        // too.
        Ok(false) => {
            packet.stamp(Stamp::Service);
            TC_ACT_UNSPEC.into()
        }
        Err(_) => TC_ACT_SHOT.into(),
    }
}

/// Puts a packet of the tunnel around a packet. `false`: the packet is as it was.
///
/// # Errors
/// Never for a parsed packet; the verifier requires the bounds check.
#[inline(always)]
fn pack(packet: &mut Packet, way: &UnderlayEntry) -> Result<bool, DropReason> {
    const FLAGS: u32 =
        BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2_ETH;
    // The length of the inner Ethernet header (`BPF_F_ADJ_ROOM_ENCAP_L2` in `linux/bpf.h`).
    const INNER: u64 = (L3 as u64) << 56;

    let hash = packet.flow_hash();
    // The kernel has another rule for a hash of 0.
    if hash == 0 {
        return Ok(false);
    }
    let ecn = match u16::from_be_bytes(packet.header::<Ethernet>(0)?.ethertype) {
        ETHERTYPE_IPV4 => packet.header::<Ipv4>(L3)?.tos,
        _ => {
            let [_, class_flow, ..] = packet.header::<Ipv6>(L3)?.version_class_flow;
            class_flow >> 4
        }
    } & ECN;
    let len = LEN + packet.len() as usize - L3;
    let [_, flow] = source_port(hash).to_be_bytes();
    let id = flows::next_id(flow);
    if !packet.resize_behind_ethernet(LEN as i32, FLAGS as u64 | INNER) {
        return Ok(false);
    }
    let ethernet = packet.header_mut::<Ethernet>(0)?;
    let frame = *ethernet;
    ethernet.ethertype = ETHERTYPE_IPV4.to_be_bytes();
    // In place: the stack has no room for another copy.
    let outer = packet.header_mut::<Outer>(L3)?;
    outer.ip.version_ihl = 0x45;
    outer.ip.tos = if ecn == CONGESTED { ECT_0 } else { ecn };
    outer.ip.total_len = (len as u16).to_be_bytes();
    outer.ip.id = id.to_be_bytes();
    outer.ip.fragment = [0; 2];
    outer.ip.ttl = TTL;
    outer.ip.protocol = UDP;
    outer.ip.checksum = [0; 2];
    outer.ip.source = way.source;
    outer.ip.destination = way.remote;
    outer.ip.checksum = (!Sum::ZERO.header(&outer.ip).fold()).to_ne_bytes();
    outer.source_port = source_port(hash).to_be_bytes();
    outer.port = tunnels::port().to_be_bytes();
    outer.udp_len = ((len - size_of::<Ipv4>()) as u16).to_be_bytes();
    outer.udp_checksum = [0; 2];
    outer.flags = VNI_IS_VALID;
    outer.vni = VNI;
    outer.frame = frame;
    Ok(true)
}

/// Takes a packet to a pod of this node out of a packet of the tunnel with the IPv4 header `ip`, and delivers
/// it. `None`: the packet is as it was, and the kernel's tunnel device is to unpack or refuse it.
///
/// # Errors
/// Why to drop the packet.
#[inline(always)]
pub fn unpack(packet: &mut Packet, ip: Ipv4) -> Result<Option<Inbound>, DropReason> {
    if !is_tunnels(packet, &ip) {
        return Ok(None);
    }
    packet.pull(HEADERS);
    let Ok(outer) = packet.header::<Outer>(L3) else { return Ok(None) };
    let Outer { source_port: [_, flow], frame: Ethernet { ethertype, .. }, .. } = *outer;
    if !outer.is_plain(packet) {
        return Ok(None);
    }
    let is_for_device = packet.is_gso() || outer.ip.tos & ECT_1 != 0;
    let ethertype = u16::from_be_bytes(ethertype);
    let inner = packet.inside(LEN);
    let Some(meta) = parse(&inner, ethertype) else { return Ok(None) };
    let Some(node) = nodes::range(meta.source) else { return Ok(None) };
    if !node.is_remote_range() || !node.is_tunnelled() {
        return Ok(None);
    }
    // From the node that has the inner source, to the address that packets to that node leave from, and by
    // the same interface: the kernel may refuse such packets on others (`rp_filter`).
    let Some(way) = underlay::to(node.id) else { return Ok(None) };
    if way.remote != ip.source || way.source != ip.destination || way.ifindex != packet.ifindex() {
        return Ok(None);
    }
    if is_for_device {
        flows::leave_to_device(flow);
        return Ok(None);
    }
    let Ok(Some((endpoint, receiver))) = endpoints::find(&meta) else { return Ok(None) };
    if tunnels::carries_packet(&meta) || flows::is_left_to_device(flow) {
        return Ok(None);
    }
    match remote::judge(&inner, &meta, &node, receiver) {
        Ok(Arrival::PastStack) => {}
        _ => return Ok(None),
    }
    // The kernel must know that the packet is of another family than the packet of the tunnel.
    let flags = if ethertype == ETHERTYPE_IPV6 { BPF_F_ADJ_ROOM_DECAP_L3_IPV6 } else { 0 };
    if !packet.resize_behind_ethernet(-(LEN as i32), u64::from(flags)) {
        return Ok(None);
    }
    packet.header_mut::<Ethernet>(0)?.ethertype = ethertype.to_be_bytes();
    links::pass(node.ifindex, packet.len());
    remote::deliver(packet, &meta, endpoint, receiver).map(Some)
}

/// Whether a packet from the wire is one of the tunnel, to this host, in one piece.
#[inline(always)]
fn is_tunnels(packet: &Packet, ip: &Ipv4) -> bool {
    const FRAGMENT: u16 = Ipv4::MORE_FRAGMENTS | Ipv4::OFFSET;
    const PORT: usize = L3 + size_of::<Ipv4>() + size_of::<[u8; 2]>();
    ip.protocol == UDP
        && ip.version_ihl == 0x45
        && u16::from_be_bytes(ip.fragment) & FRAGMENT == 0
        && packet.is_for_host()
        && packet.header::<[u8; 2]>(PORT).is_ok_and(|port| tunnels::is_port(u16::from_be_bytes(*port)))
}

/// An inner packet of TCP or UDP. Errors of ICMP can concern a translated flow.
#[inline(always)]
fn parse(inner: &Packet, ethertype: u16) -> Option<Meta> {
    let protocol = match ethertype {
        ETHERTYPE_IPV4 => inner.header::<Ipv4>(L3).ok()?.protocol,
        ETHERTYPE_IPV6 => inner.header::<Ipv6>(L3).ok()?.next_header,
        _ => return None,
    };
    if protocol != TCP && protocol != UDP {
        return None;
    }
    Meta::parse(inner, ethertype, Sender::Outside).ok()
}

/// The kernel's `udp_flow_src_port`.
#[inline(always)]
fn source_port(hash: u32) -> u16 {
    let [first, last] = TUNNEL_SOURCE_PORTS.load();
    let spread = u64::from(hash ^ hash << 16);
    ((spread * u64::from(last.wrapping_sub(first))) >> 32) as u16 + first
}

// === impl Outer ===

impl Outer {
    /// Whether the packet is as nodes make them, and nothing is left to do for the kernel but to unpack it.
    #[inline(always)]
    fn is_plain(&self, packet: &Packet) -> bool {
        let len = packet.len() as usize - L3;
        self.flags == VNI_IS_VALID
            && self.vni == VNI
            && self.udp_checksum == [0; 2]
            && (packet.is_gso()
                || usize::from(u16::from_be_bytes(self.ip.total_len)) == len
                    && usize::from(u16::from_be_bytes(self.udp_len)) + size_of::<Ipv4>() == len
                    && self.ip.is_intact())
    }
}
