//! `POLICY_PLACES`: each pod's share of `POLICY_FLOWS` and of `POLICY_PENDING`.
//!
//! A pod has as many places as flows: those that the pod has begun, also where another pod of this node sees
//! them, and those that began elsewhere. As for `FLOW_STATS`, a new flow takes one of a few places that its
//! hash names, and removes the flow that had it: one that has ended, or the longest unused. So a pod with
//! many flows displaces its own.
//!
//! Flows that a pod has begun and those that other hosts begin have places apart from each other, pending
//! and answered ones: nothing from outside displaces a flow that the pod has begun. A pending flow that ends
//! or is answered keeps its place until the next one wants it.

use core::cell::Cell;

use agent_common::{
    MAX_POLICY_FLOWS, RingKey, flows_per_pod, pending_flows,
    policy::{View, ViewKey},
    policy_places,
};
use aya_ebpf::{Global, btf_maps::LruHashMap, macros::btf_map};

use super::{
    case::{self, Case, Question},
    flows::{POLICY_FLOWS, POLICY_PENDING, is_closed, now},
    new_view::NewView,
};
use crate::branchless::{Condition, pick};

#[btf_map]
static POLICY_PLACES: LruHashMap<RingKey, ViewKey, { policy_places(MAX_POLICY_FLOWS as u32) as usize }> =
    LruHashMap::new();

/// Places of one pod; the agent sets it for other capacities.
#[unsafe(no_mangle)]
static POLICY_FLOWS_PER_POD: Global<u32> = Global::new(flows_per_pod(MAX_POLICY_FLOWS as u32));

/// A random number, which the agent sets: no sender can choose flows that want the places of others.
#[unsafe(no_mangle)]
static POLICY_PLACES_SECRET: Global<u64> = Global::new(0x9e37_79b9_7f4a_7c15);

/// Places of which a new flow takes one.
const TRIES: u32 = 8;
/// The first place of answered flows, begun by the pod, and by others, and of pending ones. An earlier build
/// gave places of the first kind to both kinds of answered flows; such a flow keeps its place.
const ANSWERED: u32 = 0;
const ANSWERED_OF_OTHERS: u32 = 1 << 29;
const PENDING: u32 = 1 << 30;
const PENDING_OF_OTHERS: u32 = 1 << 31;
/// Two to the power of this is more jiffies than any flow waits.
const FINISHED: u32 = 32;
const BPF_NOEXIST: u64 = 1;

/// Adds the flow that the case's packet begins to the pending ones. Of two CPUs that want one place, the
/// second one gets none, and its flow counts for no pod.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_begin_flow() -> u32 {
    let Some(case) = case::get() else { return 0 };
    let (key, view) = (case.view_key(), case.begun());
    // To remove what is not there would cost a tenth of the rest.
    if case.question.get().known == Question::REPLACES {
        // Of an earlier flow, which would be found first.
        let _ = POLICY_FLOWS.remove(key);
    }
    let ifindex = payer(key, view);
    let first = first_place(view, PENDING_OF_OTHERS, PENDING);
    let places = pending_flows(POLICY_FLOWS_PER_POD.load());
    occupy(case, ifindex, first, places, &POLICY_PENDING);
    let _ = POLICY_PENDING.insert(key, view, 0);
    0
}

/// Moves the case's pending flow to the answered ones.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_keep_flow() -> u32 {
    let Some(case) = case::get() else { return 0 };
    let key = case.view_key();
    let Some(pending) = POLICY_PENDING.get_ptr(key) else { return 0 };
    // SAFETY: an entry stays readable until the program returns, and has the bytes of a `NewView`; copied at
    // once, field by field: LLVM would make a loop for the bytes.
    let NewView { used, epoch, peer, flags } = unsafe { *pending.cast() };
    case.begun.set(NewView { used, epoch, peer, flags });
    let (view, places) = (case.begun(), POLICY_FLOWS_PER_POD.load());
    let ifindex = payer(key, view);
    let first = first_place(view, ANSWERED_OF_OTHERS, ANSWERED);
    // Otherwise, the flow's next packet tries again.
    if occupy(case, ifindex, first, places, &POLICY_FLOWS) && POLICY_FLOWS.insert(key, view, 0).is_ok() {
        let _ = POLICY_PENDING.remove(key);
    }
    0
}

/// The pod in whose places a flow is: that which has begun the flow, if it is of this node.
#[inline(always)]
fn payer(key: &ViewKey, view: &View) -> u32 {
    let (own, peer) = (key.ifindex & !ViewKey::PAIR, view.peer);
    let is_begun_by_peer = Condition::nonzero((view.flags & View::BEGUN_BY_PEER).into());
    let is_peers = is_begun_by_peer & Condition::nonzero(peer.into());
    pick(is_peers.mask(), peer.into(), own.into()) as u32
}

#[inline(always)]
fn first_place(view: &View, of_others: u32, of_pod: u32) -> u32 {
    pick(is_of_others(view).mask(), of_others.into(), of_pod.into()) as u32
}

/// Whether another host has begun the flow, or this node's.
#[inline(always)]
fn is_of_others(view: &View) -> Condition {
    nonzero((view.flags & View::BEGUN_BY_PEER).into()) & !nonzero(view.peer)
}

#[inline(always)]
fn nonzero(number: u32) -> Condition {
    Condition::nonzero(number.into())
}

/// Gives a place of those from `first` on to the case's flow: an empty one, or that of an ended flow, or of
/// the longest unused of a few; that flow is removed. `false` if another CPU takes the place, too. Of two
/// CPUs that take a place whose flow is gone, within the time of a few look-ups, one gets none, and its flow
/// counts for no pod.
#[inline(always)]
fn occupy<const N: usize>(
    case: &Case,
    ifindex: u32,
    first: u32,
    places: u32,
    flows: &LruHashMap<ViewKey, View, N>,
) -> bool {
    let (mut hash, places, now) = (hash(case), places.max(1), now());
    // Neighbours instead would fill runs of places, whose flows displace each other while others are empty.
    let step = hash >> 16 | 1;
    let (mut chosen, mut oldest) = (0, 0);
    for _ in 0..TRIES {
        let number = first + hash % places;
        let place = RingKey { ifindex, place: number };
        hash = hash.wrapping_add(step);
        let Some(old) = place_of(case, place) else {
            return POLICY_PLACES.insert(&place, case.view_key(), BPF_NOEXIST).is_ok();
        };
        let Some(view) = owned(case, flows, ifindex, first) else {
            occupy_place(case, old);
            return true;
        };
        if is_closed(view) {
            return displace(case, old, flows);
        }
        let age = age(view, now);
        let keeps = Condition::greater(oldest, age).mask();
        (chosen, oldest) = (pick(keeps, chosen, number.into()), pick(keeps, oldest, age));
    }
    let Some(old) = place_of(case, RingKey { ifindex, place: chosen as u32 }) else { return false };
    // Otherwise, another CPU has used the flow, or taken the place.
    let is_chosen = owned(case, flows, ifindex, first).is_some_and(|view| age(view, now) == oldest);
    is_chosen && displace(case, old, flows)
}

/// How soon a flow gives up its place: jiffies since its last packet, and far more if the flow has had its
/// answer, so that finished exchanges go before those that wait.
#[inline(always)]
fn age(view: &View, now: u64) -> u64 {
    // Without a branch, which the verifier would walk both ways.
    now.saturating_sub(view.used) + (u64::from(view.answered & 1) << FINISHED)
}

/// A place that a flow has; that flow's key becomes the case's displaced one.
#[inline(always)]
fn place_of(case: &Case, place: RingKey) -> Option<&'static Cell<[u64; 4]>> {
    let old = POLICY_PLACES.get_ptr_mut(&place)?;
    // SAFETY: an entry stays writable until the program returns. The same bytes as words, so that LLVM makes
    // no loop. The kernel may give the entry to another place meanwhile, and another CPU may write, too: the
    // key names another flow then, or none. `owned` compares the pod before a flow goes.
    let old = unsafe { &*old.cast::<Cell<[u64; 4]>>() };
    let [a, b, c, d] = old.get();
    case.displaced.set([a, b, c, d]);
    Some(old)
}

/// Removes the displaced flow and gives its place to the case's, which succeeds on one CPU only. In place: to
/// remove the entry and to add another one would cost several times as much.
#[inline(always)]
fn displace<const N: usize>(
    case: &Case,
    place: &Cell<[u64; 4]>,
    flows: &LruHashMap<ViewKey, View, N>,
) -> bool {
    let is_removed = flows.remove(case.displaced_key()).is_ok();
    if is_removed {
        occupy_place(case, place);
    }
    is_removed
}

/// Word by word: LLVM would make a loop for the bytes.
#[inline(always)]
fn occupy_place(case: &Case, place: &Cell<[u64; 4]>) {
    let [a, b, c, d] = case.view_words();
    place.set([a, b, c, d]);
}

/// The displaced flow; `None` if the flow is gone, or in a place of another pod. A place from `first` on for
/// flows of others may be left from one of these, between the same ends as one that the pod has begun since.
#[inline(always)]
fn owned<'a, const N: usize>(
    case: &Case,
    flows: &'a LruHashMap<ViewKey, View, N>,
    ifindex: u32,
    first: u32,
) -> Option<&'a View> {
    let key = case.displaced_key();
    // SAFETY: an entry stays readable until the program returns; other CPUs may write to its integers.
    let view = flows.get_ptr(key).map(|view| unsafe { &*view })?;
    let is_pods = nonzero(first & (ANSWERED_OF_OTHERS | PENDING_OF_OTHERS)) & !is_of_others(view);
    let is_other = u64::from(payer(key, view) ^ ifindex) | is_pods.factor();
    (is_other == 0).then_some(view)
}

/// Spreads flows evenly over the numbers.
#[inline(always)]
fn hash(case: &Case) -> u32 {
    let case::View { peer, ifindex, own_port, peer_port, protocol, .. } = case.view.get();
    let [a, b] = peer.words();
    let ports = u64::from(own_port) << 16 | u64::from(peer_port) | u64::from(protocol.byte()) << 32;
    let secret = POLICY_PLACES_SECRET.load() | 1;
    // Equal sums of two flows must not mean equal results, whatever the secret is.
    let mix = |mixed: u64, word: u64| {
        let mixed = (mixed ^ word).wrapping_mul(secret);
        mixed ^ mixed >> 32
    };
    let mixed = mix(mix(mix(secret ^ u64::from(ifindex), a), b), ports);
    // The upper half depends on all bits: the lower one of the sums of successive ports would be steps of
    // equal length, and short ones for some secrets.
    (mixed.wrapping_mul(secret) >> 32) as u32
}
