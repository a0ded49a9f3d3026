//! The tc programs on the host interface of every pod, on the tunnel device and on the uplinks: attach
//! points, and the verdict for each outcome.
//!
//! Directions are the pod's. Packets that pass are left to later filters (`TC_ACT_UNSPEC`), so that other
//! programs on the interface keep working.
//!
//! Per-CPU values have one user at a time: the kernel runs tc programs with bottom halves (BH) disabled, so
//! that none runs while another one does on the same CPU. Some real-time kernels do not exclude that
//! (`docs/dataplane.md`, Limits).
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "packets and maps are accessed through raw pointers")]

mod address;
mod arp;
mod branchless;
mod checksum;
mod clear;
mod counters;
mod delivery;
mod endpoints;
mod ends;
mod events;
mod extensions;
mod flow_key;
mod flow_places;
mod flow_stats;
mod flows;
mod from_pod;
mod from_tunnel;
mod from_uplink;
mod headers;
mod icmp;
mod links;
mod meta;
mod nd;
mod nodes;
mod noted;
mod offload;
mod outcome;
mod packet;
mod policy;
mod quote;
mod remote;
mod route;
mod services;
mod size;
mod skip;
mod spoofing;
mod target;
mod to_link;
mod to_pod;
mod tunnels;
mod underlay;
mod vifs;
mod vxlan;

use agent_common::{DropReason, event::direction};
use aya_ebpf::{
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC},
    helpers::generated::{bpf_redirect, bpf_redirect_peer},
    macros::classifier,
    programs::TcContext,
};
use aya_log_ebpf::{debug, trace};

use crate::{
    counters::Direction,
    outcome::{Inbound, Outcome, Way},
    packet::{Packet, Stamp},
    to_link::Link,
};

/// clsact ingress of the pod's host interface: packets from the pod.
///
/// Inlined into the entry point: LLVM would leave the body apart, as a frame of its own.
#[classifier]
#[inline(always)]
fn from_pod(ctx: TcContext) -> i32 {
    let mut packet = Packet::new(&ctx);
    let (ifindex, bytes) = (packet.ifindex(), packet.len());
    let Outcome { way, ifindex: to, next, row } = match from_pod::judge(&mut packet) {
        Ok(outcome) => outcome,
        Err(reason) => {
            refuse(&packet, Direction::Egress, reason);
            debug!(&ctx, "if {}: egress dropped, {}, {} bytes", ifindex, reason.name(), bytes);
            return TC_ACT_SHOT;
        }
    };
    match (way, row) {
        (Way::Local, _) => {
            trace!(&ctx, "if {}: egress to if {}, {} bytes", ifindex, to, bytes);
            // SAFETY: a helper call without pointers. The packet bypasses `to_pod`, whose check the lookup of
            // the destination in `ENDPOINTS` replaces.
            unsafe { bpf_redirect_peer(to, 0) as i32 }
        }
        (Way::Tunnel, _) => {
            trace!(&ctx, "if {}: egress to tunnel {}, {} bytes", ifindex, to, bytes);
            packet.stamp(Stamp::Direct);
            // SAFETY: a helper call without pointers.
            unsafe { bpf_redirect(to, 0) as i32 }
        }
        (Way::Packed, Some(row)) => {
            trace!(&ctx, "if {}: egress by VXLAN to uplink {}, {} bytes", ifindex, to, bytes);
            vxlan::send(&mut packet, row) as i32
        }
        (Way::Neighbour, _) => {
            trace!(&ctx, "if {}: egress to uplink {}, {} bytes", ifindex, to, bytes);
            packet.stamp(Stamp::Direct);
            route::send(to, next) as i32
        }
        (Way::Answered, _) => {
            trace!(&ctx, "if {}: egress answered, {} bytes", ifindex, bytes);
            // SAFETY: a helper call without pointers. Like an answer of the host's stack, this one passes
            // `to_pod`.
            unsafe { bpf_redirect(ifindex, 0) as i32 }
        }
        // `Packed` always comes with a row.
        (Way::Stack, _) | (Way::Packed, None) => {
            trace!(&ctx, "if {}: egress to the stack, {} bytes", ifindex, bytes);
            TC_ACT_UNSPEC
        }
    }
}

/// clsact egress of the pod's host interface: packets from the host's stack to the pod.
#[classifier]
fn to_pod(ctx: TcContext) -> i32 {
    let packet = Packet::new(&ctx);
    let (ifindex, bytes) = (packet.ifindex(), packet.len());
    match to_pod::judge(&packet) {
        Ok(()) => {
            trace!(&ctx, "if {}: ingress, {} bytes", ifindex, bytes);
            TC_ACT_UNSPEC
        }
        Err(reason) => {
            refuse(&packet, Direction::Ingress, reason);
            debug!(&ctx, "if {}: ingress dropped, {}, {} bytes", ifindex, reason.name(), bytes);
            TC_ACT_SHOT
        }
    }
}

/// clsact ingress of the tunnel device: packets from other nodes.
#[classifier]
fn from_tunnel(ctx: TcContext) -> i32 {
    let mut packet = Packet::new(&ctx);
    packet.remove_stamp();
    let bytes = packet.len();
    let verdict = from_tunnel::judge(&mut packet);
    if verdict.is_ok() {
        // The inner frame's MAC addresses mean nothing. Not every kernel resets the type for the pod either.
        packet.accept();
    }
    from_link(&ctx, &packet, bytes, verdict)
}

/// clsact ingress of an uplink: packets from the wire.
#[classifier]
fn from_uplink(ctx: TcContext) -> i32 {
    let mut packet = Packet::new(&ctx);
    packet.remove_stamp();
    let bytes = packet.len();
    let verdict = from_uplink::judge(&mut packet);
    from_link(&ctx, &packet, bytes, verdict)
}

#[inline(always)]
fn from_link(ctx: &TcContext, packet: &Packet, bytes: u32, verdict: Result<Inbound, DropReason>) -> i32 {
    let ifindex = packet.ifindex();
    match verdict {
        Ok(inbound) => {
            let to = inbound.ifindex();
            links::pass(ifindex, bytes);
            if to == 0 {
                trace!(ctx, "if {}: from the link, {} bytes", ifindex, bytes);
                return TC_ACT_UNSPEC;
            }
            trace!(ctx, "if {}: from the link to if {}, {} bytes", ifindex, to, bytes);
            // SAFETY: a helper call without pointers. The packet bypasses `to_pod`, as in `from_pod`.
            unsafe { bpf_redirect_peer(to, 0) as i32 }
        }
        Err(reason) => {
            refuse_at_link(packet, direction::LINK, reason);
            debug!(ctx, "if {}: from the link dropped, {}, {} bytes", ifindex, reason.name(), bytes);
            TC_ACT_SHOT
        }
    }
}

/// clsact egress of the tunnel device: packets to other nodes, without the packets of the tunnel around them.
#[classifier]
fn to_tunnel(ctx: TcContext) -> i32 {
    let packet = Packet::new(&ctx);
    let verdict = to_link::judge(&packet, Link::Tunnel);
    // For `to_link` at the uplink, which refuses what the tunnel has not sent.
    packet.stamp(Stamp::Tunnelled);
    leave(&packet, verdict)
}

/// clsact egress of uplinks: packets of this node, and those that pass through it.
#[classifier]
fn to_link(ctx: TcContext) -> i32 {
    let packet = Packet::new(&ctx);
    leave(&packet, to_link::judge(&packet, Link::Uplink))
}

/// Run by the agent, and never attached: changes what judges a pod, by one store. The data is a
/// [`SubjectChange`](agent_common::policy::SubjectChange). Returns 0 if the pod's interface has no entry.
#[classifier]
fn set_subject(ctx: TcContext) -> i32 {
    policy::set_subject(&ctx).into()
}

#[inline(always)]
fn leave(packet: &Packet, verdict: Result<(), DropReason>) -> i32 {
    match verdict {
        Ok(()) => TC_ACT_UNSPEC,
        Err(reason) => {
            refuse_at_link(packet, direction::EGRESS, reason);
            TC_ACT_SHOT
        }
    }
}

/// As [`refuse`], at the tunnel device or an uplink.
#[inline(always)]
fn refuse_at_link(packet: &Packet, direction: u32, reason: DropReason) {
    if policy::place(reason).is_some() {
        refuse(packet, Direction::Egress, reason);
    } else {
        links::drop(packet.ifindex(), reason);
        events::drop(packet, packet.ifindex(), direction, reason);
    }
}

/// Counts and records a dropped packet: at the packet's interface, or at the pod whose policies deny it.
#[inline(always)]
fn refuse(packet: &Packet, direction: Direction, reason: DropReason) {
    let (ifindex, direction) = policy::place(reason).unwrap_or((packet.ifindex(), direction));
    counters::drop(ifindex, direction, reason);
    events::drop(packet, ifindex, direction as u32, reason);
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: the verifier refuses a program with a path to here.
    loop {}
}

/// `bpf_fib_lookup` needs a GPL-compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
