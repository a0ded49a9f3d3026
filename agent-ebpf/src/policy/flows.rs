//! `POLICY_FLOWS` and `POLICY_PENDING`: the flows that policies allow, each as one of its pods sees it.
//!
//! A packet of a known flow passes, in either direction; so a reply needs no rule. Only a flow that is not
//! known, and one that was judged by rules that are no longer the pod's, asks the rules. A flow is *pending*
//! until the end that began it has sent once more after an answer: a flood of flows that no one answers
//! evicts flows of this kind only. Both kinds have [places](super::places), a share for each pod.
//!
//! Times are in jiffies, which cost less than a clock. The kernel counts from 100 to 1000 of them in a
//! second: the times below hold for 1000, and are longer with fewer.

use agent_common::{
    DropReason, MAX_POLICY_FLOWS, VifEntry,
    event::direction,
    pending_flows,
    policy::{Subject, View, ViewKey},
};
use aya_ebpf::{btf_maps::LruHashMap, helpers::generated::bpf_jiffies64, macros::btf_map};

use super::{
    case::{self, Case, End, Peer, Question, Verdict, origin, pair},
    fragments,
    judge::{self, answer},
    new_view::NewView,
};
use crate::{
    address::Address,
    branchless::{Condition, pick},
    flow_key::Key,
    flows as stack_flows,
    headers::{ACK, FIN, RST, SCTP, SYN, TCP},
    vifs,
};

#[btf_map]
pub static POLICY_FLOWS: LruHashMap<ViewKey, View, MAX_POLICY_FLOWS> = LruHashMap::new();

#[btf_map]
pub static POLICY_PENDING: LruHashMap<ViewKey, View, { pending_flows(MAX_POLICY_FLOWS as u32) as usize }> =
    LruHashMap::new();

const SECOND: u64 = 1000;
/// As conntrack's for connections (`nf_conntrack_tcp_timeout_established`).
const TCP_IDLE: u64 = 5 * 24 * 60 * 60 * SECOND;
/// As conntrack's for a connection request (`nf_conntrack_tcp_timeout_syn_sent`), and for datagrams in both
/// directions.
const IDLE: u64 = 120 * SECOND;
/// After both ends have closed a connection, or one has reset it: time for retransmissions. Counted from the
/// last packet, so that a forged reset ends no connection in use.
const CLOSED: u64 = 60 * SECOND;

/// A known flow.
#[derive(Clone, Copy)]
pub struct Found {
    pub view: *mut View,
    pub is_answered: bool,
}

/// The first step, for the sender or for the receiver: the packet's flow. Without one of the present rules,
/// notes the question.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_find_policy(is_receiver: u32) -> u32 {
    let Some(case) = case::get() else { return answer::DENY };
    case.turn_to(is_receiver != 0);
    if case.is_unknown() {
        case.verdict.set(Verdict { reason: DropReason::PolicyUnknown as u32, ruleset: 0, class: 0, bit: 0 });
        return answer::DENY;
    }
    let ports = if case.has(Case::LATER_FRAGMENT) { fragments::ports(case) } else { case.read_ports() };
    let Some(ports) = ports else { return without_ports(case) };
    case.ports.set(ports);
    look_up(case, ports)
}

/// The last step, after the rules have judged: changes the flow.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_settle_policy() -> u32 {
    let Some(case) = case::get() else { return answer::DENY };
    settle(case)
}

/// In jiffies.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: a helper call without arguments.
    unsafe { bpf_jiffies64() }
}

/// Whether a flow has ended, or was not used for long.
#[inline(always)]
pub fn is_over(view: &View, protocol: u8, is_answered: bool, now: u64) -> bool {
    let limit = if is_closed(view) {
        CLOSED
    } else if is_answered && protocol == TCP {
        TCP_IDLE
    } else {
        IDLE
    };
    // Another CPU may have noted a later time.
    now.saturating_sub(view.used) > limit
}

/// Whether both ends have closed a connection, or one has reset it.
#[inline(always)]
pub fn is_closed(view: &View) -> bool {
    let (pod, peer) = (view.closed_by_pod, view.closed_by_peer);
    // One comparison: the verifier walks the rest twice for each.
    pod & peer & FIN | (pod | peer) & RST != 0
}

/// Without ports, a packet belongs to no flow.
#[inline(always)]
fn without_ports(case: &Case) -> u32 {
    let (end, subject) = (case.end.get(), case.subject.get());
    let is_ingress = end.direction == direction::INGRESS;
    let (ruleset, reason) = if is_ingress {
        (subject.ingress, DropReason::PolicyIngress)
    } else {
        (subject.egress, DropReason::PolicyEgress)
    };
    if ruleset == Subject::OPEN || is_ingress && end.origin == origin::OWN_NODE {
        return 0;
    }
    judge::deny(case, reason, Verdict { reason: 0, ruleset, class: 0, bit: 0 })
}

#[inline(always)]
fn look_up(case: &Case, [from, to]: [u16; 2]) -> u32 {
    let (ends, end) = (case.ends.get(), case.end.get());
    // A pod may always send to itself.
    if ends.source == ends.destination && end.origin != origin::HAIRPIN {
        return 0;
    }
    let is_egress = end.direction == direction::EGRESS;
    if case.has(Case::HAS_QUOTE) && quotes_known_flow(case, is_egress) {
        return 0;
    }
    let (peer, own_port, peer_port) =
        if is_egress { (ends.destination, from, to) } else { (ends.source, to, from) };
    let (ifindex, protocol) = (end.ifindex, ends.protocol.byte());
    case.view.set(case::View { peer, ifindex, own_port, peer_port, protocol: protocol.into() });
    match case.pair.get() {
        pair::FORWARD | pair::BACK => return ask_pair_again(case, is_egress),
        // What the end knows would not keep the packet from beginning a pair.
        pair::NEW | pair::REPLACED if opens(case) => return ask_to_begin(case, Question::NEW),
        _ => {}
    }
    let Some(found) = find(case) else { return ask_to_begin(case, Question::NEW) | may_be_of_pair(case) };
    // SAFETY: an entry stays readable until the program returns. Other CPUs write to it, too; the fields are
    // copied at once.
    let view = unsafe { *found.view };
    let is_forward = is_egress == (view.flags & View::BEGUN_BY_PEER == 0);
    // A connection of the other end on the ports of one of this end's, and the reverse.
    let is_other = opens(case) && !is_forward;
    if is_other || is_over(&view, protocol, found.is_answered, now()) {
        // Since then, packets past the stack may have begun a pair.
        return ask_to_begin(case, Question::REPLACES) | may_be_of_pair(case);
    }
    let is_deferred = view.flags & View::UNJUDGED != 0;
    // No later program judges the packet.
    let is_last = is_deferred && is_forward && end.may_defer == 0;
    if view.epoch != case.subject.get().epoch || is_last {
        return ask_again(case, view.flags, view.peer, is_forward);
    }
    let answer = if is_deferred && is_forward { answer::DEFER } else { 0 };
    answer | note(case, found, is_forward, is_egress)
}

/// The flag of an answer to a packet that belongs to none of the end's views.
#[inline(always)]
fn may_be_of_pair(case: &Case) -> u32 {
    let may = case.pair.get() == pair::NONE && !opens(case) || case.has(Case::HAS_QUOTE);
    if may { answer::PAIR } else { 0 }
}

/// Asks the rules of one end about the first packet of a pair.
#[inline(always)]
fn ask_pair_again(case: &Case, is_egress: bool) -> u32 {
    let is_forward = case.pair.get() == pair::FORWARD;
    let flags = if is_egress == is_forward { 0 } else { View::BEGUN_BY_PEER };
    let other = if is_egress { case.receiver.get().ifindex } else { case.sender.get().ifindex };
    let peer = if flags == 0 { 0 } else { other };
    ask_again(case, flags, peer, is_forward)
}

/// After the rules have judged.
#[inline(always)]
fn settle(case: &Case) -> u32 {
    let (answer, question) = (case.answer.get(), case.question.get());
    if !question.is_of_known_flow() {
        let begins = answer & answer::DENY == 0 && may_begin(case);
        return if begins { answer | answer::BEGIN } else { answer };
    }
    if answer & answer::DENY != 0 {
        // The flow stays known, with its old epoch, so that each packet asks again.
        if let Some(Found { view, .. }) = find(case) {
            keep_known(case, view);
        }
        return answer;
    }
    let Some(found) = find(case) else {
        // Gone since, so that the flow's next packet is judged once more; or a pair's, which only one end
        // sees.
        let may_be_of_pair = case.pair.get() == pair::NONE && answer & answer::DEFER == 0;
        return if may_be_of_pair { answer | answer::PAIR } else { answer };
    };
    let unjudged = unjudged(case);
    let is_forward = question.known == Question::FORWARD;
    // SAFETY: an entry stays writable until the program returns; aligned fields, to which other CPUs may
    // write, too.
    unsafe {
        let view = found.view;
        (*view).flags = (*view).flags & !View::UNJUDGED | unjudged;
        (*view).epoch = case.subject.get().epoch;
    }
    let answer = if is_forward { answer } else { answer & !answer::DEFER };
    answer | note(case, found, is_forward, case.end.get().direction == direction::EGRESS)
}

/// Notes the time of a connection's packet that may be denied: what the server goes on to send must not begin
/// the connection once more, the other way round. Of protocols without connections, only what passes keeps a
/// flow known: an end that its rules let send, and whose packets count as replies in a flow that is denied,
/// begins its own after the usual time.
#[inline(always)]
pub fn keep_known(case: &Case, view: *mut View) {
    let protocol = case.ends.get().protocol.byte();
    let is_other = |than: u8| Condition::nonzero((protocol ^ than).into());
    let has_none = (is_other(TCP) & is_other(SCTP)).mask();
    // Without a branch, which the verifier would walk both ways.
    // SAFETY: an entry stays writable until the program returns; an aligned field, to which other CPUs may
    // write, too.
    unsafe { (*view).used = pick(has_none, (*view).used, now()) };
}

/// The entry of the case's view.
#[inline(always)]
pub fn find(case: &Case) -> Option<Found> {
    let key = case.view_key();
    if let Some(view) = POLICY_FLOWS.get_ptr_mut(key) {
        return Some(Found { view, is_answered: true });
    }
    POLICY_PENDING.get_ptr_mut(key).map(|view| Found { view, is_answered: false })
}

/// Removes the entry of the case's view.
#[inline(always)]
pub fn forget(case: &Case) {
    let _ = POLICY_FLOWS.remove(case.view_key());
    let _ = POLICY_PENDING.remove(case.view_key());
}

/// Whether the packet opens a TCP connection.
#[inline(always)]
pub fn opens(case: &Case) -> bool {
    case.ends.get().protocol.byte() == TCP && case.tcp_flags.get() as u8 & (SYN | ACK) == SYN
}

/// Notes time, answer and end of a flow. Writes only where they change something: CPUs share the line.
/// `by_pod`: the pod of the entry's key sends.
#[inline(always)]
pub fn note(case: &Case, found: Found, is_forward: bool, by_pod: bool) -> u32 {
    let (now, view) = (now(), found.view);
    let ended = case.tcp_flags.get() as u8 & (FIN | RST);
    // SAFETY: as in `settle`.
    unsafe {
        if (*view).used != now {
            (*view).used = now;
        }
        if opens(case) && is_closed(&*view) {
            ((*view).closed_by_pod, (*view).closed_by_peer, (*view).answered) = (0, 0, 0);
        }
        if !is_forward && (*view).answered == 0 {
            (*view).answered = 1;
        }
        if ended != 0 {
            if by_pod {
                (*view).closed_by_pod |= ended;
            } else {
                (*view).closed_by_peer |= ended;
            }
        }
        if !found.is_answered && is_forward && (*view).answered != 0 { answer::KEEP } else { 0 }
    }
}

/// Asks the rules about the first packet of a known flow. `flags` and `via`: as in its entry.
#[inline(always)]
pub fn ask_again(case: &Case, flags: u8, via: u32, is_forward: bool) -> u32 {
    let key = case.view.get();
    let (direction, port) = if flags & View::BEGUN_BY_PEER != 0 {
        (direction::INGRESS, key.own_port)
    } else {
        (direction::EGRESS, key.peer_port)
    };
    let origin = if flags & View::OWN_NODE != 0 {
        origin::OWN_NODE
    } else if flags & View::HAIRPIN != 0 {
        origin::HAIRPIN
    } else {
        origin::OTHER
    };
    let (known, may_defer) = if is_forward {
        (Question::FORWARD, case.end.get().may_defer)
    } else {
        (Question::BACK, u32::from(flags & View::UNJUDGED))
    };
    ask(case, via, Question { direction, origin, may_defer, peer: 0, port, protocol: 0, known })
}

/// Asks the rules about the first packet of a flow that is not known, or has ended.
#[inline(always)]
pub fn ask_to_begin(case: &Case, known: u8) -> u32 {
    let (End { direction, origin, may_defer, via, .. }, [_, port]) = (case.end.get(), case.ports.get());
    ask(case, via, Question { direction, origin, may_defer, peer: 0, port, protocol: 0, known })
}

/// Notes the entry of a flow that the case's packet begins.
#[inline(always)]
pub fn begin(case: &Case) {
    let end = case.end.get();
    let of_peer = if end.direction == direction::INGRESS { View::BEGUN_BY_PEER } else { 0 };
    let of_origin = match end.origin {
        origin::OWN_NODE => View::OWN_NODE,
        origin::HAIRPIN => View::HAIRPIN,
        _ => 0,
    };
    let unjudged = unjudged(case);
    case.begun.set(NewView {
        used: now(),
        epoch: case.subject.get().epoch,
        peer: case.question.get().peer,
        flags: (of_peer | of_origin | unjudged).into(),
    });
}

/// The flag of a flow that a later program judges, whatever the rules say of the address before its
/// translation: a flow that the host does not translate now may be translated later.
#[inline(always)]
fn unjudged(case: &Case) -> u8 {
    if case.may_translate.get() != 0 { View::UNJUDGED } else { 0 }
}

/// Whether the packet can be the first of a flow: the answers of one that ends, and of an echo, begin none.
#[inline(always)]
fn may_begin(case: &Case) -> bool {
    case.tcp_flags.get() as u8 & (FIN | RST) == 0
        && !is_of_server(case)
        && !case.has(Case::LATER_FRAGMENT)
        && !case.is_icmp_but_no_request()
}

/// Whether the packet accepts a TCP connection, or is in the middle of one and most likely of the server. The
/// connection may be older than the pod's policies. If this packet began a view, the client's packets would
/// pass as its replies, unjudged; so the client's next packet takes the connection up.
#[inline(always)]
fn is_of_server(case: &Case) -> bool {
    let flags = case.tcp_flags.get() as u8;
    flags & ACK != 0 && (flags & SYN != 0 || is_from_server(case))
}

/// Whether a packet in the middle of a TCP connection is the server's, by the record of a connection from a
/// port of translated flows: that port is often the lower one. Without a record, by the ports: from the lower
/// port, and one that kernels do not give to clients.
#[inline(always)]
fn is_from_server(case: &Case) -> bool {
    let (ends, [from, to]) = (case.ends.get(), case.ports.get());
    let End { ifindex, direction, .. } = case.end.get();
    match stack_flows::server(&Key::between(ends.protocol, (ends.source, from), (ends.destination, to))) {
        Some(server) => (server == ifindex) == (direction == direction::EGRESS),
        None => stack_flows::is_from_server([from, to]).factor() != 0,
    }
}

/// Asks the rules about the other end of the view. `via` may be the host interface of a pod, whose address
/// counts then: the packet's may be another's after source NAT.
#[inline(always)]
fn ask(case: &Case, via: u32, question: Question) -> u32 {
    let mut address = case.view.get().peer;
    let mut peer = 0;
    if via != 0 && vifs::find(via).is_ok() {
        peer = via;
        address = address_at(via, address).unwrap_or(address);
    }
    let protocol = case.ends.get().protocol.byte();
    case.peer_key.set(Peer { address, table: case.subject.get().table, padding: 0 });
    case.question.set(Question { peer, protocol, ..question });
    answer::ASK
}

/// The address of the pod at a host interface, of the family of another address.
#[inline(always)]
pub fn address_at(ifindex: u32, of_family: Address) -> Option<Address> {
    let vif = vifs::find(ifindex).ok()?;
    if of_family.is_mapped_ipv4() {
        (vif.flags & VifEntry::HAS_IPV4 != 0).then(|| Address::v4(vif.ipv4))
    } else {
        (vif.flags & VifEntry::HAS_IPV6 != 0).then(|| Address::v6(vif.ipv6))
    }
}

/// Whether an ICMP error is about a packet of a known flow, from the error's receiver to its sender or
/// beyond.
#[inline(always)]
fn quotes_known_flow(case: &Case, is_egress: bool) -> bool {
    if !set_quoted_view(case, is_egress) {
        return false;
    }
    let Some(found) = find(case) else { return false };
    // SAFETY: as in `look_up`.
    let view = unsafe { *found.view };
    let protocol = case.quote.get().protocol.byte();
    // Of other rules: the flow's next packet decides.
    view.epoch == case.subject.get().epoch && !is_over(&view, protocol, found.is_answered, now())
}

/// Makes the quoted packet's flow, as the end sees it, the case's view. `false` if the error is not from a
/// receiver of that flow, or not to its sender.
#[inline(always)]
pub fn set_quoted_view(case: &Case, is_egress: bool) -> bool {
    let (ends, quote, end) = (case.ends.get(), case.quote.get(), case.end.get());
    // Otherwise, a pod could send errors about one flow to anyone, and receive those for others.
    if quote.source != ends.destination || is_egress && quote.destination != ends.source {
        return false;
    }
    let [from, to] = case.quoted_ports(quote.protocol.byte());
    let (peer, own_port, peer_port) =
        if is_egress { (quote.source, to, from) } else { (quote.destination, from, to) };
    let (ifindex, protocol) = (end.ifindex, quote.protocol.byte());
    case.view.set(case::View { peer, ifindex, own_port, peer_port, protocol: protocol.into() });
    true
}
