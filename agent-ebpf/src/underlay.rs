//! `UNDERLAY`: how packets of the tunnel leave this node for another one.

use agent_common::{MAX_NODE_ENTRIES, UnderlayEntry, UnderlayKey};
use aya_ebpf::{bindings::BPF_F_NO_PREALLOC, btf_maps::HashMap, macros::btf_map};

#[btf_map]
static UNDERLAY: HashMap<UnderlayKey, UnderlayEntry, MAX_NODE_ENTRIES, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

/// The way to a node by its number; `None` if only the kernel's tunnel device makes packets to the node.
#[inline(always)]
pub fn to(node: u32) -> Option<&'static UnderlayEntry> {
    // SAFETY: the entry stays readable until the program returns. If the agent replaces the entry meanwhile,
    // this packet takes the old or the new way, or that to another node, which drops it.
    unsafe { UNDERLAY.get(&UnderlayKey { node }) }
}
