//! `NODES`: which node of the cluster an address belongs to.

use agent_common::{MAX_NODE_ENTRIES, NodeEntry};
use aya_ebpf::{
    btf_maps::{LpmTrie, lpm_trie::Key},
    macros::btf_map,
};

use crate::address::Address;

#[btf_map]
static NODES: LpmTrie<[u8; 16], NodeEntry, MAX_NODE_ENTRIES> = LpmTrie::new();

/// A key for a single address, whose parts are aligned: the verifier refuses misaligned access to the stack.
#[repr(C)]
struct AlignedKey {
    padding: u32,
    prefix_len: u32,
    address: Address,
}

/// The node that an address belongs to, by the longest prefix.
#[inline(always)]
pub fn find(address: Address) -> Option<&'static NodeEntry> {
    let key = AlignedKey { padding: 0, prefix_len: 128, address };
    // SAFETY: behind the padding are a `u32` and 16 bytes, like in the packed `Key`.
    let key: &Key<[u8; 16]> = unsafe { &*(&raw const key).byte_add(size_of::<u32>()).cast() };
    NODES.get(key)
}
