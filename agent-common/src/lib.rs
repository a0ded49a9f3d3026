//! The types of the eBPF maps, shared by the agent and the eBPF programs.
//!
//! The types are an ABI: the maps are pinned and outlive the agent, the next agent compares their fields by
//! BTF, and `bpftool` prints them by these names. Rules: no padding, no `bool`, no `enum`, no tuple;
//! addresses are bytes in network order. A change of a layout needs a new [`ABI_VERSION`], which is part of
//! the pins' path.
//!
//! Text is `[i8; N]`, terminated by a NUL: the build renames the BTF type `i8` to C's `char`, which `bpftool`
//! prints as a string. No other field may be an `i8`.

#![no_std]

mod counters;
pub mod event;
mod flow;
pub mod names;
mod node;
pub mod policy;
mod skb;
mod vif;

pub use counters::{Counters, DropReason, Dropped, Drops, Passed, Traffic, Volume};
pub use flow::{Flow, FlowKey, RingKey};
pub use node::{NodeEntry, NodeKey, PrefixLen, UnderlayEntry, UnderlayKey};
pub use skb::SkbFields;
pub use vif::{Endpoint, EndpointKey, VifEntry, VifKey};

/// Version of the types in this crate; the maps are pinned in `<bpf dir>/v<ABI_VERSION>/`.
pub const ABI_VERSION: u32 = 6;

/// Default capacity of `VIFS`: pod interfaces of a node.
pub const MAX_VIFS: usize = 4096;

/// The capacity of `RULESETS`, of that of `RULES`: a 32nd. Two tables share it, and the numbers of each are
/// [`policy::Subject::LAST_RULESET`] at most.
pub const fn rulesets(rules: u32) -> u32 {
    const MOST: u32 = policy::Subject::LAST_RULESET / 2;
    if rules / 32 < MOST { rules / 32 } else { MOST }
}

/// The capacity of `VIF_TRAFFIC`, of that of `VIFS`: one more, for the slot 0, which counts nothing.
pub const fn traffic_slots(vifs: u32) -> u32 {
    vifs.saturating_add(1)
}

/// Default capacity of `ENDPOINTS`: addresses that a node delivers.
pub const MAX_ENDPOINTS: usize = 16384;

/// Default capacity of `STACK_FLOWS`: flows between pods of this node that the stack translates.
pub const MAX_FLOWS: usize = 65536;

/// Size of `EVENTS`, in bytes: a power of two, and whole pages.
pub const MAX_EVENT_BYTES: usize = 256 * 1024;

/// Capacity of `FLOW_STATS`: flows whose packets are counted.
pub const MAX_FLOW_STATS: usize = 16384;

/// Capacity of `NODES`: ranges and addresses of the cluster's nodes.
pub const MAX_NODE_ENTRIES: usize = 16384;

/// Default capacity of `PEERS`: addresses that policies judge as peers, twice: a restart fills another table.
pub const MAX_POLICY_PEERS: usize = 262_144;

/// Default capacity of `RULES`, from which those of the other maps of rules follow.
pub const MAX_POLICY_RULES: usize = 131_072;

/// Default capacity of `POLICY_FLOWS`: answered flows of pods that policies judge.
pub const MAX_POLICY_FLOWS: usize = 131_072;

/// Capacity of `FRAGMENTS` and `FRAGMENT_PLACES`: fragmented packets of pods that policies judge.
pub const MAX_FRAGMENTS: usize = 8192;

/// Capacity of `LINK_COUNTERS`: the tunnel device and the uplinks of a node.
pub const MAX_LINKS: usize = 64;

/// The UDP port of the tunnel between nodes, unless the agent sets another: VXLAN's (RFC 7348, 8).
pub const TUNNEL_PORT: u16 = 4789;

/// First and last of the ports from which the kernel sends packets of the tunnel, unless the agent reads
/// others from `net.ipv4.ip_local_port_range`: that setting's default.
pub const TUNNEL_SOURCE_PORTS: [u16; 2] = [32768, 60999];

/// The VXLAN network identifier (VNI) of the tunnel between nodes.
pub const TUNNEL_VNI: u32 = 70;

/// The share of `STACK_FLOWS` that one pod can fill as client, and of `POLICY_FLOWS`, there once more with
/// flows that other hosts begin: a 16th. A new flow above it evicts an older one of the same share.
pub const fn flows_per_pod(capacity: u32) -> u32 {
    capacity / 16
}

/// The share of `FRAGMENTS`, of its capacity, that one pod can fill with packets that it sends, and once more
/// with packets that come to it from elsewhere: a 32nd.
pub const fn fragments_per_ring(capacity: u32) -> u32 {
    capacity / 32
}

/// The capacity of `POLICY_PENDING`, of that of `POLICY_FLOWS`: a quarter.
pub const fn pending_flows(capacity: u32) -> u32 {
    capacity / 4
}

/// The capacity of `POLICY_PLACES`, of that of `POLICY_FLOWS`: a place for each answered flow, and for each
/// pending one.
pub const fn policy_places(capacity: u32) -> u32 {
    capacity.saturating_add(pending_flows(capacity))
}

/// The first and the last client port of flows that the host translates for pods: neither privileged nor of
/// those that a kernel gives to its clients, which begin at 32768 (`ip_local_port_range`).
pub const TRANSLATED_PORTS: (u16, u16) = (1024, 32767);

/// The MAC address of every pod's host interface, which is the pod's gateway.
///
/// All pods have the same one: pods share no link, so none sees two of them, and the dataplane needs no
/// lookup for it. Locally administered and unicast (IEEE 802: bits 1 and 0 of the first byte, here 0b10).
pub const GATEWAY_MAC: [u8; 6] = *b"ferrul";

/// The IPv4 gateway of every pod: link-local (RFC 3927), so that it uses no address of the pods' ranges.
pub const GATEWAY_IPV4: [u8; 4] = [169, 254, 1, 1];

/// The IPv6 gateway of every pod: `fe80::1`.
pub const GATEWAY_IPV6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
