//! `FRAGMENTS`: the ports of fragmented packets, which only the first fragment contains.
//!
//! A later fragment is judged by the ports of the first one that has passed. The first one has to come first;
//! without it, no host can put the packet together, so that a later fragment of a denied packet harms no one.

use agent_common::{
    MAX_FRAGMENTS,
    policy::{FragmentKey, FragmentPorts},
};
use aya_ebpf::{btf_maps::LruHashMap, macros::btf_map};

use super::case::Case;

#[btf_map]
static FRAGMENTS: LruHashMap<FragmentKey, FragmentPorts, MAX_FRAGMENTS> = LruHashMap::new();

/// The ports of the case's packet, if its first fragment has passed.
#[inline(always)]
pub fn ports(case: &Case) -> Option<[u16; 2]> {
    // SAFETY: the value is copied at once.
    let found = unsafe { FRAGMENTS.get(case.fragment_key()) }?;
    Some([found.source_port, found.destination_port])
}

/// Notes the ports of a first fragment that passes.
#[inline(always)]
pub fn remember(case: &Case) {
    let [source_port, destination_port] = case.ports.get();
    let _ = FRAGMENTS.insert(case.fragment_key(), &FragmentPorts { source_port, destination_port }, 0);
}
