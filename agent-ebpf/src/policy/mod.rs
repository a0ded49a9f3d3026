//! Policies: whether a pod may send or receive a packet.
//!
//! Each pod of this node has a row in `SUBJECTS`; one without passes nothing. A pod that no policy judges is
//! *untracked*: the row says so, and nothing else is looked up.

mod case;
mod flows;
mod fragments;
mod judge;
mod places;
mod rows;

use agent_common::{DropReason, VifKey, event::direction, policy::Subject};

use self::{
    case::{Case, End, Verdict, opaque, origin},
    flows::{ferrule_find_policy, ferrule_settle_policy},
    judge::{answer, ferrule_classify_policy, ferrule_judge_policy},
    places::ferrule_keep_flow,
    rows::SUBJECTS,
};
use crate::{
    counters::Direction,
    events,
    meta::{Family, Meta},
    packet::{Packet, Stamp},
};

/// What judges the pod at a host interface.
///
/// # Errors
/// `PolicyUnknown`, without a row.
#[inline(always)]
pub fn subject(ifindex: u32, direction: Direction) -> Result<&'static Subject, DropReason> {
    // SAFETY: the entry stays readable until the program returns. The agent replaces the whole entry: this
    // packet is judged by the old one or by the new one.
    let subject = unsafe { SUBJECTS.get(VifKey { ifindex }) };
    if subject.is_none() {
        note_unknown(ifindex, direction as u32);
    }
    subject.ok_or(DropReason::PolicyUnknown)
}

/// Judges what a pod sends. With `may_defer`, the packet goes to the host's stack: if the stack translates
/// the destination, then a later program judges.
///
/// # Errors
/// Why the packet is denied. `Ok`: whether a later program is to judge.
#[inline(always)]
pub fn leaves(
    packet: &Packet<'_>,
    meta: &Meta,
    subject: &Subject,
    may_defer: bool,
) -> Result<bool, DropReason> {
    let end = End {
        ifindex: packet.ifindex(),
        direction: direction::EGRESS,
        via: 0,
        origin: origin::OTHER,
        may_defer: may_defer.into(),
        reserved: 0,
    };
    let answer = judge(packet, meta, subject, end)?;
    Ok(answer & answer::DEFER != 0)
}

/// Judges what goes to the pod at a host interface, past the host's stack: from the pod at the interface
/// `via`, or from another host if that is 0.
///
/// # Errors
/// Why the packet is denied.
#[inline(always)]
pub fn reaches(packet: &Packet<'_>, meta: &Meta, ifindex: u32, via: u32) -> Result<(), DropReason> {
    let subject = subject(ifindex, Direction::Ingress)?;
    let end =
        End { ifindex, direction: direction::INGRESS, via, origin: origin::OTHER, may_defer: 0, reserved: 0 };
    judge(packet, meta, subject, end)?;
    Ok(())
}

/// Judges what the host's stack delivers to the pod of the packet's interface. `sibling` is the host
/// interface of the pod that has the source address, or 0.
///
/// # Errors
/// Why the packet is denied.
#[inline(always)]
pub fn arrives(packet: &Packet<'_>, meta: &Meta, subject: &Subject, sibling: u32) -> Result<(), DropReason> {
    let ifindex = packet.ifindex();
    // The kernel does not keep the interface of IPv6 fragments that it makes.
    let is_made_here = opaque(meta.family as u64) != Family::Ipv4 as u64 && opaque(meta.fragment()) != 0;
    let via = match packet.ingress_ifindex() {
        0 if is_made_here => sibling,
        via => via,
    };
    if packet.has_stamp(Stamp::Service) {
        translated(packet, meta, via)?;
    }
    let origin = match via {
        0 if !is_made_here => origin::OWN_NODE,
        via if via == ifindex => origin::HAIRPIN,
        _ => origin::OTHER,
    };
    let end = End { ifindex, direction: direction::INGRESS, via, origin, may_defer: 0, reserved: 0 };
    judge(packet, meta, subject, end)?;
    Ok(())
}

/// Judges what a pod has sent to an address that the host translates, after the translation. `from` is the
/// pod's host interface.
///
/// # Errors
/// Why the packet is denied.
#[inline(always)]
pub fn translated(packet: &Packet<'_>, meta: &Meta, from: u32) -> Result<(), DropReason> {
    let subject = subject(from, Direction::Egress)?;
    let origin = if packet.ifindex() == from { origin::HAIRPIN } else { origin::OTHER };
    let end = End { ifindex: from, direction: direction::EGRESS, via: 0, origin, may_defer: 0, reserved: 0 };
    judge(packet, meta, subject, end)?;
    Ok(())
}

/// Where to count a packet that policies deny: at the pod whose policies these are. `None` for other reasons.
#[inline(always)]
pub fn place(reason: DropReason) -> Option<(u32, Direction)> {
    if !is_of_policy(reason) {
        return None;
    }
    let End { ifindex, direction, .. } = case::get()?.end.get();
    Some((ifindex, if direction == direction::INGRESS { Direction::Ingress } else { Direction::Egress }))
}

/// What the rules have found, for a record: ruleset, class and bit.
#[inline(always)]
pub fn verdict(reason: DropReason) -> (u32, u32, u32) {
    match case::get().filter(|_| is_of_policy(reason)).map(|case| case.verdict.get()) {
        Some(Verdict { ruleset, class, bit, .. }) => (ruleset, class, bit),
        None => (0, 0, 0),
    }
}

#[inline(always)]
fn is_of_policy(reason: DropReason) -> bool {
    matches!(
        reason,
        DropReason::PolicyEgress
            | DropReason::PolicyIngress
            | DropReason::PeerUnknown
            | DropReason::PolicyUnknown
    )
}

#[inline(always)]
fn judge(packet: &Packet<'_>, meta: &Meta, subject: &Subject, end: End) -> Result<u32, DropReason> {
    // The link has no other pod, and routers do not forward from or to such an address.
    if subject.is_open() || meta.source.is_link_local() || meta.destination.is_link_local() {
        return Ok(0);
    }
    let Some(case) = case::get() else { return Err(DropReason::PolicyUnknown) };
    case.end.set(end);
    case.subject.set(*subject);
    fill(packet, meta, case);
    let answer = ferrule_police();
    if answer & answer::RECORD != 0 {
        events::drop(packet, end.ifindex, end.direction, case.reason(), true);
    }
    if answer & answer::DENY == 0 {
        return Ok(answer);
    }
    Err(case.reason())
}

/// Notes in the case what is to be known of the packet.
#[inline(never)]
fn fill(packet: &Packet<'_>, meta: &Meta, case: &Case) {
    case.fill(packet, meta);
}

/// Judges the packet of the case: a set of the flags in [`answer`].
///
/// A global function: the verifier walks it once, and not with each state in which a program calls it. So are
/// its steps, which share the case: one after the other, each needs the stack for itself.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_police() -> u32 {
    let mut answer = ferrule_find_policy();
    if answer & answer::ASK != 0 {
        if ferrule_classify_policy() & answer::ASK != 0 {
            ferrule_judge_policy();
        }
        answer = ferrule_settle_policy();
    }
    if answer & answer::KEEP != 0 {
        ferrule_keep_flow();
    }
    answer
}

/// Notes where to count a packet of an interface without a row.
#[inline(never)]
fn note_unknown(ifindex: u32, direction: u32) {
    let Some(case) = case::get() else { return };
    case.end.set(End { ifindex, direction, via: 0, origin: 0, may_defer: 0, reserved: 0 });
    case.verdict.set(Verdict { reason: 0, ruleset: 0, class: 0, bit: 0 });
}
