//! `FRAGMENTS`: the ports of fragmented packets, which only the first fragment contains; and
//! `FRAGMENT_PLACES`, each pod's share of them.
//!
//! A later fragment is judged by the ports of the first one that has passed. The first one has to come first;
//! without it, no host can put the packet together, so that a later fragment of a denied packet harms no one.
//!
//! A pod has a ring of places for the packets that it sends, and one for those that come to it from
//! elsewhere: a further packet displaces the oldest of the same ring. So no pod displaces those of another
//! pod of its node.

use agent_common::{
    MAX_FRAGMENTS, RingKey,
    event::direction,
    fragments_per_ring,
    policy::{FragmentKey, FragmentPorts},
};
use aya_ebpf::{btf_maps::LruHashMap, macros::btf_map};

use super::case::{self, Case, End};
use crate::{endpoints, vifs};

#[btf_map]
static FRAGMENTS: LruHashMap<FragmentKey, FragmentPorts, MAX_FRAGMENTS> = LruHashMap::new();

#[btf_map]
static FRAGMENT_PLACES: LruHashMap<RingKey, FragmentKey, MAX_FRAGMENTS> = LruHashMap::new();

/// Places in each ring.
const PLACES: u32 = fragments_per_ring(MAX_FRAGMENTS as u32);
/// The place behind a ring's has the number of the ring's next place instead of a packet.
const HAND: u32 = PLACES;
/// The first place for packets that come to the pod from elsewhere.
const OF_OTHERS: u32 = 1 << 31;
/// Places that a packet tries to take, while other CPUs take them.
const CLAIMS: u32 = 2;
const BPF_NOEXIST: u64 = 1;
const BPF_EXIST: u64 = 2;

/// The ports of the case's packet, if its first fragment has passed.
#[inline(always)]
pub fn ports(case: &Case) -> Option<[u16; 2]> {
    // SAFETY: the value is copied at once.
    let found = unsafe { FRAGMENTS.get(case.fragment_key()) }?;
    Some([found.source_port, found.destination_port])
}

/// Notes the ports of a first fragment that passes, if it has them. Without a place, the later fragments are
/// denied.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_note_fragment() -> u32 {
    let Some(case) = case::get() else { return 0 };
    let Some(ports) = case.read_ports() else { return 0 };
    case.ports.set(ports);
    let (key, ports) = (case.fragment_key(), case.fragment_ports());
    // The other end's filter, or a retransmission, has given the packet its place.
    if FRAGMENTS.insert(key, ports, BPF_EXIST).is_ok() {
        return 0;
    }
    // The entry before its place: another CPU that takes the place would leave an entry without one.
    if FRAGMENTS.insert(key, ports, BPF_NOEXIST).is_ok() && !take_place(case) {
        let _ = FRAGMENTS.remove(key);
    }
    0
}

/// Gives the next place of a ring to the case's packet, and forgets the packet that had it. `false` if other
/// CPUs take the places.
#[inline(always)]
fn take_place(case: &Case) -> bool {
    let (ifindex, first) = ring(case);
    for _ in 0..CLAIMS {
        case.place.set(RingKey { ifindex, place: first + HAND });
        let number = next(case);
        case.place.set(RingKey { ifindex, place: first + number % PLACES });
        let place = case.place_key();
        if let Some(old) = FRAGMENT_PLACES.get_ptr(place) {
            // SAFETY: an entry stays readable until the program returns; if another place gets it meanwhile,
            // that place's packet is forgotten.
            let _ = FRAGMENTS.remove(unsafe { &*old });
            let _ = FRAGMENT_PLACES.remove(place);
        }
        if FRAGMENT_PLACES.insert(place, case.fragment_key(), BPF_NOEXIST).is_ok() {
            return true;
        }
    }
    false
}

/// The ring of the pod that has sent the case's packet, also after source NAT; of the pod that receives the
/// packet if that comes from elsewhere.
#[inline(always)]
fn ring(case: &Case) -> (u32, u32) {
    let End { ifindex, direction, via, .. } = case.end.get();
    match endpoints::interface(case.ends.get().source) {
        Some(sender) => (sender.get(), 0),
        None if direction == direction::EGRESS => (ifindex, 0),
        None if vifs::subject(via).is_some() => (via, 0),
        None => (ifindex, OF_OTHERS),
    }
}

/// Counts on at the hand that is the case's place. Other CPUs may get the same number.
#[inline(always)]
fn next(case: &Case) -> u32 {
    let place = case.place_key();
    if FRAGMENT_PLACES.get_ptr_mut(place).is_none() {
        // Any number will do as the first one.
        let _ = FRAGMENT_PLACES.insert(place, case.fragment_key(), BPF_NOEXIST);
    }
    let Some(hand) = FRAGMENT_PLACES.get_ptr_mut(place) else { return 0 };
    let hand: *mut u32 = hand.cast();
    // SAFETY: an aligned part of an entry, which stays readable and writable until the program returns.
    unsafe {
        let number = hand.read_volatile();
        hand.write_volatile(number.wrapping_add(1));
        number
    }
}
