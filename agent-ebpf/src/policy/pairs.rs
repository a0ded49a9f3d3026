//! Flows between two pods of this node that policies judge both: one entry for both ends, a *pair*, if their
//! packets go past the stack.
//!
//! A pair is in the maps of the other flows, under the view of the pod with the lower interface
//! ([`ViewKey::PAIR`]). Its epoch is the sum of both ends': epochs only grow, so that an equal sum means that
//! the rules of neither end have changed since both have allowed the flow. After a change, both are asked
//! again. A packet that takes the way through the stack finds the pair at each end by itself, and so does
//! each packet once no policy judges one of the ends any more.

use agent_common::{
    event::direction,
    policy::{View, ViewKey},
};
use aya_ebpf::bindings::__sk_buff;

use super::{
    allowed::{self, ferrule_note_allowed},
    case::{self, Both, Case, Question, pair},
    flows::{self, Found, is_over, now},
    judge::answer,
    new_view::NewView,
    subject::Judge,
};
use crate::{endpoints, flow_key::Padded, packet::Packet};

/// The step before the ends are judged one by one, and the only one for most packets: a plain packet, noted
/// in the case, that goes past the stack from one judged pod to another. `epochs`: the sum of both ends'.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_find_pair(skb: *mut __sk_buff, from: u32, to: u32, epochs: u32) -> u32 {
    let Some(case) = case::get() else { return answer::ASK };
    case.pair.set(pair::NEW);
    case.both.set(Both { from, to, epochs, reserved: 0 });
    // SAFETY: programs pass their context.
    case.fill_plain(&unsafe { Packet::of_caller(skb) });
    let Some(ports) = case.read_ports() else { return answer::ASK };
    case.ports.set(ports);
    let answer = look_up(case);
    let is_request = matches!(case.pair.get(), pair::NEW | pair::REPLACED) && flows::opens(case);
    if answer & answer::ASK != 0 && is_request { answer | answer::REQUEST } else { answer }
}

/// The step after that one for connection requests: no rules are asked about one like the last that they have
/// allowed.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_find_allowed() -> u32 {
    let Some(case) = case::get() else { return answer::ASK };
    if !allowed::contains(case) {
        return answer::ASK;
    }
    begin(case);
    answer::BEGIN
}

/// The step after both ends have allowed such a packet: changes the flow.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_settle_pair(received: u32) -> u32 {
    let Some(case) = case::get() else { return 0 };
    if matches!(case.pair.get(), pair::FORWARD | pair::BACK) {
        set_key(case);
        return renew(case);
    }
    match (case.sent.get() & answer::BEGIN != 0, received & answer::BEGIN != 0) {
        (false, false) => return 0,
        (true, true) => {
            // Without another flag: an audited pod's packets are to be recorded.
            if flows::opens(case) && case.sent.get() | received == answer::BEGIN {
                ferrule_note_allowed();
            }
            begin(case);
        }
        // One end knows the flow by itself, and so does the other one from now on.
        (false, true) => flows::begin(case),
        (true, false) => begin_at_sender(case),
    }
    answer::BEGIN
}

/// The pair of a packet that only the judged end sees, and that belongs to none of the end's views; also of a
/// packet that an ICMP error quotes. Once more with `is_allowed`, after the end's rules have allowed the
/// packet: a pair whose other end no policy judges is one of the present rules then.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_find_pair_at_end(is_allowed: u32) -> u32 {
    let Some(case) = case::get() else { return answer::ASK };
    let (own, is_egress) = (case.view.get(), case.end.get().direction == direction::EGRESS);
    if case.has(Case::HAS_QUOTE) {
        let is_known = flows::set_quoted_view(case, is_egress) && is_known(case);
        case.view.set(own);
        return if is_known { 0 } else { answer::ASK };
    }
    look_up_at_end(case, own, is_egress, is_allowed != 0)
}

#[inline(always)]
fn look_up_at_end(case: &Case, own: case::View, is_egress: bool, is_allowed: bool) -> u32 {
    let Some((found, other)) = find(case) else { return answer::ASK };
    let others = Judge::at(other);
    // SAFETY: an entry stays readable until the program returns; copied at once.
    let view = unsafe { *found.view };
    let (is_low, is_by_low) = (own.ifindex < other, view.flags & View::BEGUN_BY_PEER == 0);
    let is_own = is_low == is_by_low;
    if is_allowed {
        // Otherwise, the other end has to be asked, too: the receiver is the last one.
        if !others.is_open() {
            if !is_egress {
                // SAFETY: as in `renew`.
                unsafe { (*found.view).used = now() };
            }
            return 0;
        }
        // SAFETY: as in `renew`.
        unsafe { (*found.view).epoch = sum(case, others) };
    } else if !is_current(case, &view, others) {
        flows::keep_known(case, found.view);
        case.view.set(own);
        if case.question.get().known == Question::REPLACES {
            // The answer would be noted in the end's own view, which has ended.
            flows::forget(case);
        }
        let (flags, via) = if is_own { (0, 0) } else { (View::BEGUN_BY_PEER, other) };
        return flows::ask_again(case, flags, via, is_egress == is_own);
    }
    flows::note(case, found, is_egress == is_own, is_egress == is_low)
}

/// Whether the flow of the case's view is that of a pair, by the present rules.
#[inline(always)]
fn is_known(case: &Case) -> bool {
    // SAFETY: as above.
    find(case).is_some_and(|(found, other)| is_current(case, unsafe { &*found.view }, Judge::at(other)))
}

#[inline(always)]
fn look_up(case: &Case) -> u32 {
    set_key(case);
    let Some(found) = flows::find(case) else { return answer::ASK };
    // SAFETY: as above.
    let view = unsafe { *found.view };
    let both = case.both.get();
    let is_forward = both.is_from_low() == (view.flags & View::BEGUN_BY_PEER == 0);
    let is_current = view.epoch == both.epochs;
    // Of an earlier pod with the address, or a connection against the direction of the flow.
    let is_other = view.peer != both.high() || flows::opens(case) && !(is_forward && is_current);
    if is_other || is_over(&view, case.ends.get().protocol.byte(), found.is_answered, now()) {
        case.pair.set(pair::REPLACED);
        return answer::ASK;
    }
    if !is_current {
        flows::keep_known(case, found.view);
        case.pair.set(if is_forward { pair::FORWARD } else { pair::BACK });
        return answer::ASK;
    }
    flows::note(case, found, is_forward, both.is_from_low())
}

#[inline(always)]
fn begin(case: &Case) {
    set_key(case);
    let both = case.both.get();
    let flags = if both.is_from_low() { 0 } else { View::BEGUN_BY_PEER };
    let known = if case.pair.get() == pair::REPLACED { Question::REPLACES } else { Question::NEW };
    case.question.set(Question { known, ..case.question.get() });
    case.begun.set(NewView { used: now(), epoch: both.epochs, peer: both.high(), flags: flags.into() });
}

#[inline(always)]
fn begin_at_sender(case: &Case) {
    let (packet, [own_port, peer_port], end) = (case.ends.get(), case.ports.get(), case.sender.get());
    let protocol: Padded<u64> = packet.protocol.byte().into();
    let peer = packet.destination;
    case.view.set(case::View { peer, ifindex: end.ifindex, own_port, peer_port, protocol });
    case.turn_to(false);
    // The sender may have an entry that is over.
    case.question.set(Question { known: Question::REPLACES, peer: 0, ..case.question.get() });
    flows::begin(case);
}

/// Both ends' present rules allow the flow.
#[inline(always)]
fn renew(case: &Case) -> u32 {
    // Gone since: the flow's next packet is judged once more.
    let Some(found) = flows::find(case) else { return 0 };
    let both = case.both.get();
    // SAFETY: an entry stays writable until the program returns; an aligned field.
    unsafe { (*found.view).epoch = both.epochs };
    flows::note(case, found, case.pair.get() == pair::FORWARD, both.is_from_low())
}

/// Makes the pair's key the case's view.
#[inline(always)]
fn set_key(case: &Case) {
    let (packet, [from, to], both) = (case.ends.get(), case.ports.get(), case.both.get());
    let (low, peer, own_port, peer_port) = if both.is_from_low() {
        (both.from, packet.destination, from, to)
    } else {
        (both.to, packet.source, to, from)
    };
    let protocol: Padded<u64> = packet.protocol.byte().into();
    case.view.set(case::View { peer, ifindex: low | ViewKey::PAIR, own_port, peer_port, protocol });
}

/// The pair of the case's view, and the other end's interface. Then, the case's view is the pair's.
#[inline(always)]
fn find(case: &Case) -> Option<(Found, u32)> {
    let own = case.view.get();
    let other = endpoints::interface(own.peer)?.get();
    let (key, high) = if own.ifindex < other {
        (own, other)
    } else {
        let peer = flows::address_at(own.ifindex, own.peer)?;
        let (own_port, peer_port) = (own.peer_port, own.own_port);
        (case::View { peer, ifindex: other, own_port, peer_port, ..own }, own.ifindex)
    };
    case.view.set(case::View { ifindex: key.ifindex | ViewKey::PAIR, ..key });
    if let Some(found) = flows::find(case) {
        // SAFETY: as above.
        let view = unsafe { &*found.view };
        let is_over = is_over(view, own.protocol.byte(), found.is_answered, now());
        if view.peer == high && !is_over {
            return Some((found, other));
        }
    }
    case.view.set(own);
    None
}

/// Whether both ends' present rules have allowed the flow: those of the judged end, and of the other one.
#[inline(always)]
fn is_current(case: &Case, view: &View, others: Judge) -> bool {
    others.is_known() && sum(case, others) == view.epoch
}

/// The sum of both ends' epochs.
#[inline(always)]
fn sum(case: &Case, others: Judge) -> u32 {
    others.unpack().epoch.wrapping_add(case.subject.get().epoch)
}
