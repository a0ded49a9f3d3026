//! `POLICY_PLACES`: each pod's share of `POLICY_FLOWS`.
//!
//! A pod has as many places as answered flows: those that the pod has begun, also where another pod of this
//! node sees them, and those that began elsewhere. As for `FLOW_STATS`, a new flow takes one of a few places
//! that its hash names, and removes the flow that had it: one that has ended, or the longest unused. So a pod
//! with many flows displaces its own.

use agent_common::{
    MAX_POLICY_FLOWS, RingKey, flows_per_pod,
    policy::{View, ViewKey},
};
use aya_ebpf::{Global, btf_maps::LruHashMap, macros::btf_map};

use super::{
    case::{self, Case},
    flows::{POLICY_FLOWS, POLICY_PENDING, is_closed, now},
};

#[btf_map]
static POLICY_PLACES: LruHashMap<RingKey, ViewKey, MAX_POLICY_FLOWS> = LruHashMap::new();

/// Places of one pod; the agent sets it for other capacities.
#[unsafe(no_mangle)]
static POLICY_FLOWS_PER_POD: Global<u32> = Global::new(flows_per_pod(MAX_POLICY_FLOWS as u32));

/// Places of which a new flow takes one.
const TRIES: u32 = 8;
const BPF_NOEXIST: u64 = 1;

/// Moves the case's pending flow to the answered ones.
///
/// No lock: of two CPUs that want one place, the second one gets none, and the flow's next packet tries
/// again.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_keep_flow() -> u32 {
    let Some(case) = case::get() else { return 0 };
    let key = case.view_key();
    let Some(pending) = POLICY_PENDING.get_ptr(key) else { return 0 };
    // SAFETY: an entry stays readable until the program returns; copied at once.
    let view = unsafe { *pending };
    let Some(place) = take(case, payer(key, &view)) else { return 0 };
    if POLICY_PLACES.insert(place, key, BPF_NOEXIST).is_err() {
        return 0;
    }
    if POLICY_FLOWS.insert(key, view, 0).is_ok() {
        let _ = POLICY_PENDING.remove(key);
    } else {
        let _ = POLICY_PLACES.remove(place);
    }
    0
}

/// The pod in whose places a flow is: that which has begun the flow, if it is of this node.
#[inline(always)]
fn payer(key: &ViewKey, view: &View) -> u32 {
    if view.flags & View::BEGUN_BY_PEER != 0 && view.peer != 0 { view.peer } else { key.ifindex }
}

/// An empty place: if none of a few is, the longest unused flow leaves its place.
#[inline(always)]
fn take(case: &Case, ifindex: u32) -> Option<RingKey> {
    let hash = hash(case);
    let places = POLICY_FLOWS_PER_POD.load().max(1);
    let now = now();
    let (mut chosen, mut oldest) = (RingKey { ifindex, place: hash % places }, 0);
    for number in 0..TRIES {
        let place = RingKey { ifindex, place: hash.wrapping_add(number) % places };
        // SAFETY: another CPU that replaces the key makes a wrong choice at worst.
        let age = match unsafe { POLICY_PLACES.get(place) } {
            Some(old) => age(old, ifindex, now),
            None => u64::MAX,
        };
        if age >= oldest {
            (chosen, oldest) = (place, age);
        }
    }
    // SAFETY: as above.
    if let Some(old) = unsafe { POLICY_PLACES.get(chosen) } {
        case.displaced.set(*old);
        // Succeeds on one CPU only.
        POLICY_PLACES.remove(chosen).ok()?;
        // SAFETY: nothing writes to the key meanwhile.
        let old = unsafe { &*case.displaced.as_ptr() };
        if owned(old, ifindex).is_some() {
            let _ = POLICY_FLOWS.remove(old);
        }
    }
    Some(chosen)
}

/// The flow of a place; `None` if the flow is gone, or in a place of another pod.
#[inline(always)]
fn owned(key: &ViewKey, ifindex: u32) -> Option<&'static View> {
    // SAFETY: an entry stays readable until the program returns; other CPUs may write to its integers.
    let view = POLICY_FLOWS.get_ptr(key).map(|view| unsafe { &*view })?;
    (payer(key, view) == ifindex).then_some(view)
}

/// Jiffies since a flow's last packet; the largest number if the flow is gone or has ended.
#[inline(always)]
fn age(key: &ViewKey, ifindex: u32, now: u64) -> u64 {
    match owned(key, ifindex) {
        Some(view) if !is_closed(view) => now.saturating_sub(view.used),
        _ => u64::MAX,
    }
}

/// Spreads flows evenly over the numbers.
#[inline(always)]
fn hash(case: &Case) -> u32 {
    let case::View { peer, ifindex, own_port, peer_port, protocol, .. } = case.view.get();
    let [a, b] = peer.words();
    let ports = u64::from(own_port) << 16 | u64::from(peer_port) | u64::from(protocol.byte()) << 32;
    let mixed = (a ^ b.rotate_left(16) ^ ports.rotate_left(8) ^ u64::from(ifindex) << 48)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}
