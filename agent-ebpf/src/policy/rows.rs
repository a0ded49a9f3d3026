//! The rows that the agent writes: the rules, and what is known of the other ends.

use agent_common::{
    MAX_POLICY_PEERS, MAX_POLICY_RULES,
    policy::{Bits, NamedKey, Peer, PeerKey, RuleKey, Ruleset},
    rulesets,
};
use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    btf_maps::{HashMap, LpmTrie},
    macros::btf_map,
};

const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;

#[btf_map]
pub static PEERS: HashMap<PeerKey, Peer, MAX_POLICY_PEERS, NO_PREALLOC> = HashMap::new();

/// By table, family and address.
#[btf_map]
pub static BLOCKS: LpmTrie<[u8; 20], u32, { MAX_POLICY_RULES / 4 }> = LpmTrie::new();

#[btf_map]
pub static RULESETS: HashMap<u32, Ruleset, { rulesets(MAX_POLICY_RULES as u32) as usize }, NO_PREALLOC> =
    HashMap::new();

#[btf_map]
pub static RULES: HashMap<RuleKey, Bits, MAX_POLICY_RULES, NO_PREALLOC> = HashMap::new();

#[btf_map]
pub static NAMED: HashMap<NamedKey, Bits, { MAX_POLICY_RULES / 2 }, NO_PREALLOC> = HashMap::new();

/// By ruleset, protocol and port.
#[btf_map]
pub static PORTS: LpmTrie<[u8; 8], Bits, { MAX_POLICY_RULES / 8 }> = LpmTrie::new();
