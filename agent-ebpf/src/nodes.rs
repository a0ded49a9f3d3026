//! Which node of the cluster an address belongs to: `NODES`, and `NODE_PREFIXES`, the index of most of its
//! rows.
//!
//! With a thousand nodes, a walk through the trie costs ten memory accesses that wait for each other, and a
//! look-up by hash two. No row in the index contains another row of `NODES`: a row of the index that contains
//! an address is the one with the longest prefix.

use agent_common::{MAX_NODE_ENTRIES, NodeEntry, NodeKey, PrefixLen};
use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    btf_maps::{Array, HashMap, LpmTrie, lpm_trie::Key},
    macros::btf_map,
};

use crate::address::Address;

#[btf_map]
static NODES: LpmTrie<[u8; 16], NodeEntry, MAX_NODE_ENTRIES> = LpmTrie::new();

#[btf_map]
static NODE_PREFIXES: HashMap<NodeKey, NodeEntry, MAX_NODE_ENTRIES, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

#[btf_map]
static NODE_LENGTHS: Array<PrefixLen, 2> = Array::new();

/// A key of either map, whose parts are aligned: the verifier refuses misaligned access to the stack.
#[repr(C)]
struct AlignedKey {
    padding: u32,
    prefix_len: u32,
    address: Address,
}

/// The range of pods that an address belongs to, unless the address is a node's own.
///
/// Rows are copied: the verifier would walk what follows once for each map that a row may be in.
#[inline(always)]
pub fn range(address: Address) -> Option<NodeEntry> {
    let len = length(address);
    if let Some(node) = indexed_range(address, len) {
        return Some(*node);
    }
    if len.is_complete != 0 { None } else { longest(address).filter(|node| !node.is_address()).copied() }
}

/// The node that has an address itself.
#[inline(always)]
pub fn owner(address: Address) -> Option<NodeEntry> {
    if length(address).is_complete != 0 {
        indexed(address, 128).copied()
    } else {
        longest(address).filter(|node| node.is_address()).copied()
    }
}

/// The node that an address belongs to, by a range or as the node's own.
#[inline(always)]
pub fn find(address: Address) -> Option<NodeEntry> {
    match indexed_range(address, length(address)) {
        Some(node) => Some(*node),
        None => longest(address).copied(),
    }
}

/// Which rows of an address' family the index has; none before the agent has written it.
#[inline(always)]
fn length(address: Address) -> PrefixLen {
    let family = if address.is_mapped_ipv4() { PrefixLen::IPV4 } else { PrefixLen::IPV6 };
    NODE_LENGTHS.get(family).copied().unwrap_or_default()
}

#[inline(always)]
fn indexed_range(address: Address, len: PrefixLen) -> Option<&'static NodeEntry> {
    let prefix_len = u32::from(len.prefix_len);
    if prefix_len == 0 { None } else { indexed(address.masked(prefix_len), prefix_len) }
}

#[inline(always)]
fn indexed(address: Address, prefix_len: u32) -> Option<&'static NodeEntry> {
    let key = AlignedKey { padding: 0, prefix_len, address };
    // SAFETY: behind the padding are a `u32` and 16 bytes, like in `NodeKey`.
    let key: &NodeKey = unsafe { &*(&raw const key).byte_add(size_of::<u32>()).cast() };
    // SAFETY: the entry stays readable until the program returns. If the agent replaces the entry meanwhile,
    // this packet goes by the old or the new row, or by that of another node, which drops it.
    unsafe { NODE_PREFIXES.get(key) }
}

/// The row with the longest prefix.
#[inline(always)]
fn longest(address: Address) -> Option<&'static NodeEntry> {
    let key = AlignedKey { padding: 0, prefix_len: 128, address };
    // SAFETY: behind the padding are a `u32` and 16 bytes, like in the packed `Key`.
    let key: &Key<[u8; 16]> = unsafe { &*(&raw const key).byte_add(size_of::<u32>()).cast() };
    NODES.get(key)
}
