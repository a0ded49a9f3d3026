//! Policies: whether a pod may send or receive a packet.
//!
//! The row in `VIFS` says what judges a pod; without that, the pod passes nothing. A pod that no policy
//! judges is *untracked*: the row says so, and nothing else is looked up.

mod allowed;
pub mod case;
mod flows;
mod fragments;
mod judge;
mod new_view;
mod pairs;
mod places;
mod rows;
mod subject;

use agent_common::{DropReason, VifEntry, event::direction};
use aya_ebpf::bindings::__sk_buff;

pub use self::subject::{Judge, set as set_subject};

use self::{
    case::{Case, End, Verdict, origin, pair},
    flows::{ferrule_find_policy, ferrule_settle_policy},
    fragments::ferrule_note_fragment,
    judge::{answer, ferrule_classify_policy, ferrule_judge_policy},
    pairs::{ferrule_find_allowed, ferrule_find_pair, ferrule_find_pair_at_end, ferrule_settle_pair},
    places::{ferrule_begin_flow, ferrule_keep_flow},
};
use crate::{
    clear,
    counters::Direction,
    events,
    meta::Meta,
    packet::{Packet, Stamp},
};

/// What judges the pod behind a host interface.
///
/// # Errors
/// `PolicyUnknown`, if that is not known.
#[inline(always)]
pub fn judge(vif: &VifEntry, ifindex: u32, direction: Direction) -> Result<Judge, DropReason> {
    let judge = Judge::of(vif);
    if judge.is_known() {
        return Ok(judge);
    }
    ferrule_note_unknown(ifindex, direction as u32);
    Err(DropReason::PolicyUnknown)
}

/// Judges what a pod sends, and what the pod at the host interface `to` receives of that past the stack; 0:
/// none does. With `may_defer`, the packet goes to the host's stack: if the stack translates the destination,
/// then a later program judges.
///
/// # Errors
/// Why the packet is denied. `Ok`: whether a later program is to judge.
#[inline(always)]
pub fn passes(
    packet: &Packet,
    meta: &Meta,
    sends: Judge,
    to: u32,
    receives: Judge,
    may_defer: bool,
) -> Result<bool, DropReason> {
    if sends.is_open() && receives.is_open() || receives.is_known() && is_link_local(meta) {
        return Ok(false);
    }
    let Some(case) = case::get() else { return Err(DropReason::PolicyUnknown) };
    let from = packet.ifindex();
    case.note(meta);
    // A pod may always send to itself.
    if to != 0 && to != from && sends.is_judged() && receives.is_judged() {
        let mut answer = ferrule_find_pair(packet.context(), from, to, sends.sum(receives));
        if answer & answer::REQUEST != 0 {
            answer = ferrule_find_allowed();
        }
        if answer & answer::ASK == 0 {
            give_place(answer);
            return Ok(false);
        }
    }
    case.set_sender(End { may_defer: may_defer.into(), ..End::sender(from) }, sends);
    case.set_receiver(End::receiver(to, from), receives);
    let answer = ferrule_police(packet.context());
    if answer & answer::DENY != 0 { Err(case.reason()) } else { Ok(answer & answer::DEFER != 0) }
}

/// Judges what goes from another host to the pod at a host interface, past the host's stack.
///
/// # Errors
/// Why the packet is denied.
#[inline(always)]
pub fn reaches(packet: &Packet, meta: &Meta, ifindex: u32, receives: Judge) -> Result<(), DropReason> {
    if receives.is_open() || receives.is_known() && is_link_local(meta) {
        return Ok(());
    }
    let Some(case) = case::get() else { return Err(DropReason::PolicyUnknown) };
    case.note(meta);
    case.without_sender();
    case.set_receiver(End::receiver(ifindex, 0), receives);
    verdict_of(case, ferrule_police(packet.context()))
}

/// Judges what the host's stack delivers to the pod of the packet's interface. `sibling` is the host
/// interface of the pod that has the source address, or 0.
///
/// # Errors
/// Why the packet is denied.
#[inline(always)]
pub fn arrives(packet: &Packet, meta: &Meta, receives: Judge, sibling: u32) -> Result<(), DropReason> {
    if (receives.is_open() && !packet.has_stamp(Stamp::Service)) || is_link_local(meta) {
        return Ok(());
    }
    let Some(case) = case::get() else { return Err(DropReason::PolicyUnknown) };
    case.note(meta);
    case.set_receiver(End::receiver(packet.ifindex(), sibling), receives);
    ferrule_arrive(packet.context());
    verdict_of(case, ferrule_police(packet.context()))
}

/// Judges what a pod has sent to an address that the host translates, after the translation. `from` is the
/// pod's host interface.
///
/// # Errors
/// Why the packet is denied.
#[inline(always)]
pub fn translated(packet: &Packet, meta: &Meta, from: u32) -> Result<(), DropReason> {
    let sends = Judge::at(from);
    if sends.is_open() || sends.is_known() && is_link_local(meta) {
        return Ok(());
    }
    let Some(case) = case::get() else { return Err(DropReason::PolicyUnknown) };
    case.note(meta);
    case.set_sender(End::sender(from), sends);
    case.without_receiver();
    verdict_of(case, ferrule_police(packet.context()))
}

/// Where to count a packet that policies deny: at the pod whose policies these are. `None` for other reasons.
#[inline(always)]
pub fn place(reason: DropReason) -> Option<(u32, Direction)> {
    if !case::is_of_policy(reason as u32) {
        return None;
    }
    let End { ifindex, direction, .. } = case::get()?.end.get();
    Some((ifindex, if direction == direction::INGRESS { Direction::Ingress } else { Direction::Egress }))
}

/// The link has no other pod, and routers do not forward from or to such an address.
#[inline(always)]
fn is_link_local(meta: &Meta) -> bool {
    meta.source.is_link_local() || meta.destination.is_link_local()
}

#[inline(always)]
fn verdict_of(case: &Case, answer: u32) -> Result<(), DropReason> {
    if answer & answer::DENY == 0 { Ok(()) } else { Err(case.reason()) }
}

/// Completes the ends of a packet that the stack delivers: the sender's only if it is to be judged after the
/// translation.
///
/// Global functions, as all that follow: the verifier walks each once, and not with each state in which a
/// program calls it. They share the case: one after the other, each needs the stack for itself.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_arrive(skb: *mut __sk_buff) -> u32 {
    let Some(case) = case::get() else { return 0 };
    // SAFETY: programs pass their context.
    let packet = unsafe { Packet::of_caller(skb) };
    let End { ifindex, via: sibling, .. } = case.receiver.get();
    // The kernel does not keep the interface of IPv6 fragments that it makes.
    let is_made_here = case.is_fragment_v6();
    let via = match packet.ingress_ifindex() {
        0 if is_made_here => sibling,
        via => via,
    };
    let origin = match via {
        0 if !is_made_here => origin::OWN_NODE,
        via if via == ifindex => origin::HAIRPIN,
        _ => origin::OTHER,
    };
    case.receiver.set(End { origin, ..End::receiver(ifindex, via) });
    if packet.has_stamp(Stamp::Service) {
        let origin = if via == ifindex { origin::HAIRPIN } else { origin::OTHER };
        case.set_sender(End { origin, ..End::sender(via) }, Judge::at(via));
    } else {
        case.without_sender();
    }
    0
}

/// Judges the packet of the case at both ends: a set of the flags in [`answer`].
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_police(skb: *mut __sk_buff) -> u32 {
    let Some(case) = case::get() else { return answer::DENY };
    ferrule_fill_case(skb);
    case.sent.set(police_end(skb, case, false));
    if case.sent.get() & answer::DENY != 0 {
        return case.sent.get();
    }
    let received = police_end(skb, case, true);
    if case.pair.get() != pair::NONE && received & answer::DENY == 0 {
        give_place(ferrule_settle_pair(received));
    }
    case.sent.get() | received
}

/// Gives a place to a flow that begins, and one among the answered flows to one that is answered.
#[inline(always)]
fn give_place(answer: u32) {
    if answer & answer::BEGIN != 0 {
        ferrule_begin_flow();
    }
    keep(answer);
}

#[inline(always)]
fn keep(answer: u32) {
    if answer & answer::KEEP != 0 {
        ferrule_keep_flow();
    }
}

/// Reads what is to be known of the case's packet.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_fill_case(skb: *mut __sk_buff) -> u32 {
    if let Some(case) = case::get() {
        // SAFETY: programs pass their context.
        case.fill(&unsafe { Packet::of_caller(skb) });
    }
    0
}

#[inline(always)]
fn police_end(skb: *mut __sk_buff, case: &Case, is_receiver: bool) -> u32 {
    let subject = if is_receiver { &case.receives } else { &case.sends };
    if subject.get().is_open() {
        return 0;
    }
    let mut answer = ferrule_find_policy(is_receiver.into());
    if answer & answer::PAIR != 0 {
        answer = ferrule_find_pair_at_end(0);
    }
    if answer & answer::ASK != 0 {
        if ferrule_classify_policy() & answer::ASK != 0 {
            ferrule_judge_policy();
        }
        answer = ferrule_settle_policy();
        if answer & answer::PAIR != 0 {
            answer |= ferrule_find_pair_at_end(1) & answer::KEEP;
        }
    }
    // Of a flow with one entry for both ends, both answers decide.
    if answer & answer::BEGIN != 0 && case.pair.get() == pair::NONE {
        flows::begin(case);
        ferrule_begin_flow();
    }
    keep(answer);
    if answer & answer::DENY == 0 && case.has(Case::FIRST_FRAGMENT) {
        ferrule_note_fragment();
    }
    if answer & answer::RECORD != 0 {
        let End { ifindex, direction, .. } = case.end.get();
        events::ferrule_record_drop(skb, ifindex, direction, case.verdict.get().reason, 1);
    }
    answer
}

/// Notes where to count a packet of a pod of which it is not known what judges it.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ferrule_note_unknown(ifindex: u32, direction: u32) -> u32 {
    let Some(case) = case::get() else { return 0 };
    case.end.set(End { direction, ..End::sender(ifindex) });
    case.verdict.set(Verdict { reason: 0, ruleset: 0, class: clear::zero(), bit: 0 });
    0
}
