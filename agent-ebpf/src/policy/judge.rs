//! The verdict of the rules on a flow's first packet. `policy/src/lookup.rs` is the same in words of the
//! compiler, and explains the steps.

use agent_common::{
    DropReason,
    event::direction,
    policy::{self as maps, Bits, NamedKey, Peer, PortRange, RuleKey, Ruleset, Subject},
};
use aya_ebpf::btf_maps::lpm_trie::Key;

use super::{
    case::{self, Case, Class, Question, Verdict, origin},
    rows::{BLOCKS, NAMED, PEERS, PORTS, RULES, RULESETS},
};
use crate::{
    address::Address,
    branchless::Condition,
    headers::{SCTP, TCP, UDP},
    nodes,
};

/// Answers: sets of these flags; without one, the packet passes.
pub mod answer {
    /// The packet passes, and is to be judged after its translation.
    pub const DEFER: u32 = 1;
    /// The packet passes because its pod is only audited; the verdict is a denial.
    pub const RECORD: u32 = 2;
    pub const DENY: u32 = 4;
    /// Of a step: the rules are to judge.
    pub const ASK: u32 = 8;
    /// The flow is answered, and has its place among those.
    pub const KEEP: u32 = 16;
    /// The packet begins a flow.
    pub const BEGIN: u32 = 32;
    /// The end's views do not know the flow; a pair may. With [`ASK`], or after the rules have allowed a
    /// packet.
    pub const PAIR: u32 = 64;
    /// With [`ASK`]: the packet requests a connection between two judged pods.
    pub const REQUEST: u32 = 128;
}

/// The parts of `BLOCKS`' key, aligned: the verifier refuses misaligned access to the stack.
#[repr(C)]
struct BlockKey {
    prefix_len: u32,
    table: u32,
    address: Address,
}

/// The parts of `PORTS`' key.
#[repr(C, align(8))]
struct PortKey {
    prefix_len: u32,
    ruleset: u32,
    protocol: u8,
    reserved: u8,
    port: [u8; 2],
}

#[repr(C, align(8))]
struct Aligned<T>(T);

/// The lowest of some bits; each field is 0, or that bit, of the sets that contain it.
#[derive(Clone, Copy)]
struct Lowest {
    any: u64,
    peers: u64,
    accept: u64,
    pass: u64,
}

/// What is known of the other end: the second step. Answers at once if no rule is to be asked.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_classify_policy() -> u32 {
    let Some(case) = case::get() else { return 0 };
    let answer = classify(case);
    case.answer.set(answer);
    answer
}

#[inline(always)]
fn classify(case: &Case) -> u32 {
    let (question, subject) = (case.question.get(), case.subject.get());
    let is_ingress = question.direction == direction::INGRESS;
    let ruleset = if is_ingress { subject.ingress } else { subject.egress };
    case.may_translate.set(0);
    case.verdict.set(Verdict { reason: 0, ruleset, class: 0, bit: 0 });
    if ruleset == Subject::OPEN || is_ingress && question.origin == origin::OWN_NODE {
        return 0;
    }
    // SAFETY: the fields are copied at once.
    if let Some(&Peer { class, flags }) = unsafe { PEERS.get(case.peer_key()) } {
        let is_translated = flags & (Peer::SERVICE | Peer::OWN_NODE) != 0;
        case.may_translate.set(u32::from(is_translated) & !u32::from(is_ingress));
        let deferred = if question.may_defer != 0 && is_translated { answer::DEFER } else { 0 };
        if deferred != 0 && flags & Peer::OWN_NODE == 0 {
            return deferred;
        }
        let origin = if deferred != 0 { origin::OWN_NODE } else { question.origin };
        let is_pod = flags & Peer::POD != 0;
        case.class.set(Class { class, is_pod: is_pod.into(), is_known: 1, origin, deferred });
        return answer::ASK;
    }
    let peer = case.peer_key.get();
    let family = if peer.address.is_mapped_ipv4() { maps::BlockKey::IPV4 } else { 0 };
    let key = BlockKey { prefix_len: 160, table: peer.table + family, address: peer.address };
    // SAFETY: a `u32` and 20 bytes, like the packed `Key`.
    let key: &Key<[u8; 20]> = unsafe { &*(&raw const key).cast() };
    let class = BLOCKS.get(key).copied().unwrap_or_default();
    let is_in_range = nodes::range(peer.address).is_some();
    let origin = question.origin;
    case.class.set(Class { class, is_pod: 0, is_known: u32::from(!is_in_range), origin, deferred: 0 });
    answer::ASK
}

/// The third step: the verdict of the rules.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_judge_policy() -> u32 {
    let Some(case) = case::get() else { return 0 };
    case.answer.set(judge(case));
    0
}

#[inline(always)]
fn judge(case: &Case) -> u32 {
    let (question, ruleset) = (case.question.get(), case.verdict.get().ruleset);
    let Class { class, is_pod, is_known, origin, deferred } = case.class.get();
    // SAFETY: the entry stays readable until the program returns. The agent replaces no row that a subject
    // names: other rules have another ruleset.
    let Some(rules) = (unsafe { RULESETS.get(&ruleset) }) else {
        return deny(case, DropReason::PolicyUnknown, Verdict { reason: 0, ruleset, class, bit: 0 });
    };
    fill_peers(case, ruleset, rules, class, Condition::nonzero(is_pod.into()).mask());
    let is_others = Condition::nonzero((origin ^ origin::OWN_NODE).into());
    let unknown = (!Condition::nonzero(is_known.into()) & is_others).mask();
    fill_bits(case, ruleset, rules, class, question, unknown);
    let by = |bit| Verdict { reason: 0, ruleset, class, bit };
    let reason = if question.direction == direction::INGRESS {
        DropReason::PolicyIngress
    } else {
        DropReason::PolicyEgress
    };
    let first = lowest(case, rules, &rules.admin);
    if first.any != 0 {
        if first.peers == 0 {
            return deny(case, DropReason::PeerUnknown, by(number(case, &rules.admin)));
        }
        if first.accept != 0 {
            return deferred;
        }
        if first.pass == 0 {
            return deny(case, reason, by(number(case, &rules.admin)));
        }
    }
    if rules.flags & Ruleset::ISOLATES != 0 {
        return match origin {
            _ if has_middle_bit(case, rules) => deferred,
            origin::OTHER if unknown == 0 => deny(case, reason, by(0)),
            origin::OTHER => deny(case, DropReason::PeerUnknown, by(0)),
            _ => deferred,
        };
    }
    let last = lowest(case, rules, &rules.baseline);
    if last.any == 0 {
        return deferred;
    }
    if last.peers == 0 {
        return deny(case, DropReason::PeerUnknown, by(number(case, &rules.baseline)));
    }
    if last.accept | last.pass == 0 {
        return deny(case, reason, by(number(case, &rules.baseline)));
    }
    deferred
}

/// Notes why a packet is denied.
#[inline(always)]
pub fn deny(case: &Case, reason: DropReason, verdict: Verdict) -> u32 {
    case.verdict.set(Verdict { reason: reason as u32, ..verdict });
    if case.subject.get().flags & Subject::AUDIT != 0 { answer::RECORD } else { answer::DENY }
}

/// The bits whose peers contain the other end. `pods`: all bits for a pod, else none.
#[inline(always)]
fn fill_peers(case: &Case, ruleset: u32, rules: &Ruleset, class: u32, pods: u64) {
    // SAFETY: the row is copied at once.
    if let Some(peers) = unsafe { RULES.get(&RuleKey { ruleset, class }) } {
        for (word, found) in case.peers.iter().zip(peers) {
            word.set(*found);
        }
    } else {
        for ((word, any), pod) in case.peers.iter().zip(&rules.any).zip(&rules.any_pod) {
            word.set(any | pod & pods);
        }
    }
}

/// The bits whose peers and ports contain those of the packet. `of_unknown`: all bits for an unknown peer,
/// else none.
#[inline(always)]
fn fill_bits(case: &Case, ruleset: u32, rules: &Ruleset, class: u32, question: Question, of_unknown: u64) {
    let Question { protocol, port, .. } = question;
    for (word, any) in case.bits.iter().zip(&rules.any_port) {
        word.set(*any);
    }
    let is_other = |than: u8| Condition::nonzero((protocol ^ than).into());
    if (is_other(TCP) & is_other(UDP) & is_other(SCTP)).factor() == 0 {
        if rules.flags & Ruleset::HAS_PORTS == 0 {
            if let Some(range) = range_of(rules, protocol, port) {
                add(case, &range.bits);
            }
        } else {
            let key = PortKey { prefix_len: 64, ruleset, protocol, reserved: 0, port: port.to_be_bytes() };
            // SAFETY: a `u32` and eight bytes, like the packed `Key`.
            let key: &Key<[u8; 8]> = unsafe { &*(&raw const key).cast() };
            if let Some(found) = PORTS.get(key) {
                add(case, found);
            }
        }
        if rules.flags & Ruleset::HAS_NAMES != 0 {
            let Aligned(key) = &Aligned(NamedKey { ruleset, class, port, protocol, reserved: 0 });
            // SAFETY: the row is copied at once.
            if let Some(found) = unsafe { NAMED.get(key) } {
                add(case, found);
            }
        }
    }
    for ((word, peers), unknown) in case.bits.iter().zip(&case.peers).zip(&rules.unknown) {
        word.set((peers.get() | unknown & of_unknown) & word.get());
    }
}

/// The range with a port: they do not overlap.
#[inline(always)]
fn range_of(rules: &Ruleset, protocol: u8, port: u16) -> Option<&PortRange> {
    let (mut place, port) = (0, u64::from(port));
    for (number, range) in (1..).zip(&rules.ranges) {
        if number > rules.used {
            break;
        }
        let is_below = Condition::greater(range.first.into(), port);
        let is_above = Condition::greater(port, range.last.into());
        let is_other = Condition::nonzero((range.protocol ^ protocol).into());
        place |= u64::from(number) * (!(is_below | is_above | is_other)).factor();
    }
    rules.ranges.get((place as usize).wrapping_sub(1))
}

#[inline(always)]
fn add(case: &Case, more: &Bits) {
    for (word, other) in case.bits.iter().zip(more) {
        word.set(word.get() | other);
    }
}

/// The lowest bit of a tier. Arithmetic instead of branches: the verifier would walk the rest once for each
/// word.
#[inline(always)]
fn lowest(case: &Case, rules: &Ruleset, tier: &Bits) -> Lowest {
    let mut lowest = Lowest { any: 0, peers: 0, accept: 0, pass: 0 };
    let words = case.bits.iter().zip(&case.peers).zip(tier).zip(&rules.accept).zip(&rules.pass);
    for ((((bits, peers), tier), accept), pass) in words {
        let of_tier = bits.get() & tier;
        let is_first = !Condition::nonzero(lowest.any);
        let bit = of_tier.isolate_lowest_one() & is_first.mask();
        lowest.any |= bit;
        lowest.peers |= bit & peers.get();
        lowest.accept |= bit & accept;
        lowest.pass |= bit & pass;
    }
    lowest
}

/// Whether a rule of NetworkPolicies allows the packet: a bit of neither tier.
#[inline(always)]
fn has_middle_bit(case: &Case, rules: &Ruleset) -> bool {
    let mut any = 0;
    for ((bits, admin), baseline) in case.bits.iter().zip(&rules.admin).zip(&rules.baseline) {
        any |= bits.get() & !admin & !baseline;
    }
    any != 0
}

/// 1 and the number of a tier's lowest bit, for records.
#[inline(always)]
fn number(case: &Case, tier: &Bits) -> u32 {
    let mut number = 0;
    for (bits, tier) in case.bits.iter().zip(tier) {
        let of_tier = bits.get() & tier;
        if of_tier != 0 {
            return number + 1 + of_tier.isolate_lowest_one().wrapping_sub(1).count_ones();
        }
        number += u64::BITS;
    }
    0
}
