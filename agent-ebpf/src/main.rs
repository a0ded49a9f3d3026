//! The tc programs on the host interface of every pod.
//!
//! This file holds the attach points, and turns what the rest decided into a verdict. Directions are the pod's.
//!
//! Whatever passes is left to the filters after ours (`TC_ACT_UNSPEC`): other people's programs on the
//! interface keep working.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "packets and maps are reached through raw pointers here")]

mod address;
mod arp;
mod checksum;
mod counters;
mod delivery;
mod endpoints;
mod flows;
mod from_pod;
mod headers;
mod meta;
mod nd;
mod packet;
mod spoofing;
mod to_pod;
mod vifs;

use aya_ebpf::{
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC},
    helpers::generated::{bpf_redirect, bpf_redirect_peer},
    macros::classifier,
    programs::TcContext,
};
use aya_log_ebpf::{debug, trace};

use crate::{from_pod::Outcome, packet::Packet};

/// clsact ingress of the pod's host interface: what the pod sends.
#[classifier]
pub fn from_pod(ctx: TcContext) -> i32 {
    let mut packet = Packet::new(&ctx);
    let (ifindex, bytes) = (packet.ifindex(), packet.len());
    match from_pod::judge(&mut packet) {
        Ok(Outcome::Stack) => {
            counters::egress(ifindex, bytes);
            trace!(&ctx, "if {}: egress to the stack, {} bytes", ifindex, bytes);
            TC_ACT_UNSPEC
        }
        Ok(Outcome::Local { ifindex: to }) => {
            counters::egress(ifindex, bytes);
            counters::ingress(to, bytes);
            trace!(&ctx, "if {}: egress to if {}, {} bytes", ifindex, to, bytes);
            // SAFETY: a helper call without pointers. The packet does not pass `to_pod`: it reached this
            // interface by its address, which is what `to_pod` would check.
            unsafe { bpf_redirect_peer(to, 0) as i32 }
        }
        Ok(Outcome::Answered) => {
            counters::egress(ifindex, bytes);
            trace!(&ctx, "if {}: egress answered, {} bytes", ifindex, bytes);
            // SAFETY: a helper call without pointers. The answer goes out as the host's would, through `to_pod`.
            unsafe { bpf_redirect(ifindex, 0) as i32 }
        }
        Err(reason) => {
            counters::drop(ifindex, reason);
            debug!(&ctx, "if {}: egress dropped, {}, {} bytes", ifindex, reason.name(), bytes);
            TC_ACT_SHOT
        }
    }
}

/// clsact egress of the pod's host interface: what the host's stack sends to the pod.
#[classifier]
pub fn to_pod(ctx: TcContext) -> i32 {
    let packet = Packet::new(&ctx);
    let (ifindex, bytes) = (packet.ifindex(), packet.len());
    match to_pod::judge(&packet) {
        Ok(()) => {
            counters::ingress(ifindex, bytes);
            trace!(&ctx, "if {}: ingress, {} bytes", ifindex, bytes);
            TC_ACT_UNSPEC
        }
        Err(reason) => {
            counters::drop(ifindex, reason);
            debug!(&ctx, "if {}: ingress dropped, {}, {} bytes", ifindex, reason.name(), bytes);
            TC_ACT_SHOT
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: the verifier refuses a program that could come here.
    loop {}
}

/// `bpf_redirect_peer` and friends are open to programs under any licence; the printing helpers are not.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
