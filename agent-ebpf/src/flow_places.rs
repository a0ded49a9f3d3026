//! `FLOW_STATS` and `FLOW_PLACES`: the flows that are counted, and each pod's share of them.
//!
//! A pod has as many places as flows. A new flow takes one of a few places that its hash names, and removes
//! the flow that had it: one that is closed, or the longest unused. So a pod with many flows displaces its
//! own.
//!
//! No lock: of two CPUs that want one place, the second one gets none, and the flow's next packet tries
//! again.

use agent_common::{FlowKey, MAX_FLOW_STATS, RingKey, event::FlowStats, flows_per_pod};
use aya_ebpf::{btf_maps::LruHashMap, macros::btf_map};

use crate::branchless::{Condition, pick};

#[btf_map]
pub static FLOW_STATS: LruHashMap<FlowKey, FlowStats, MAX_FLOW_STATS> = LruHashMap::new();

#[btf_map]
static FLOW_PLACES: LruHashMap<RingKey, FlowKey, MAX_FLOW_STATS> = LruHashMap::new();

/// Places of one pod.
const PLACES: u32 = flows_per_pod(MAX_FLOW_STATS as u32);
/// Places of which a new flow takes one.
const TRIES: u32 = 8;
const BPF_NOEXIST: u64 = 1;

/// Takes a place of the pod behind a host interface. `now`: in jiffies. Without a place, the flow is not
/// counted.
#[inline(always)]
pub fn take(ifindex: u32, hash: u32, key: &FlowKey, now: u32) -> Option<RingKey> {
    // Other bits than those by which flows are sampled.
    let first = hash.wrapping_mul(0x9e37_79b1) >> 16;
    let (mut chosen, mut oldest) = (0, 0);
    for step in 0..TRIES {
        let number = (first + step) % PLACES;
        let place = RingKey { ifindex, place: number };
        // SAFETY: the key is copied at once; another CPU that replaces it makes a wrong choice at worst.
        let age = match unsafe { FLOW_PLACES.get(&place) } {
            Some(old) => age(old, ifindex, now),
            None => u32::MAX,
        };
        let keeps = Condition::greater(oldest, age.into()).mask();
        (chosen, oldest) = (pick(keeps, chosen, number.into()), pick(keeps, oldest, age.into()));
        if age == u32::MAX {
            break;
        }
    }
    let chosen = RingKey { ifindex, place: chosen as u32 };
    // SAFETY: as above.
    if let Some(old) = unsafe { FLOW_PLACES.get(&chosen) } {
        let old = *old;
        // Succeeds on one CPU only.
        FLOW_PLACES.remove(&chosen).ok()?;
        if owned(&old, ifindex).is_some() {
            let _ = FLOW_STATS.remove(&old);
        }
    }
    FLOW_PLACES.insert(&chosen, key, BPF_NOEXIST).ok()?;
    Some(chosen)
}

/// Gives a place back.
#[inline(always)]
pub fn leave(place: RingKey) {
    let _ = FLOW_PLACES.remove(&place);
}

/// The entry of a pod's flow. A flow that another pod has opened again is in a place of that pod.
#[inline(always)]
fn owned(key: &FlowKey, ifindex: u32) -> Option<*mut FlowStats> {
    // SAFETY: an aligned field of an entry, which stays readable until the program returns.
    FLOW_STATS.get_ptr_mut(key).filter(|stats| unsafe { (**stats).ifindex == ifindex })
}

/// Jiffies since a flow's last packet; the largest number if the flow is closed or gone.
#[inline(always)]
fn age(key: &FlowKey, ifindex: u32, now: u32) -> u32 {
    let Some(stats) = owned(key, ifindex) else { return u32::MAX };
    // SAFETY: as above.
    let (closed, used) = unsafe { ((*stats).closed, (*stats).used) };
    let age = now.wrapping_sub(used);
    // Another CPU may have noted a later time.
    let age = age & (!Condition::negative(age)).mask() as u32;
    age | Condition::nonzero(closed.into()).mask() as u32
}
