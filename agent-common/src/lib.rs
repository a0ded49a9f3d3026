//! The types of the eBPF maps, shared by the agent and the eBPF programs.
//!
//! They are an ABI: the maps are pinned and outlive the agent, and `bpftool` shows them by these very
//! names. Hence no padding, no `bool`, no `enum`, no tuple; addresses are bytes in network order. Whoever changes a
//! layout raises [`ABI_VERSION`], which is part of the pins' path.
//!
//! Text is `[i8; N]`, ended by a NUL: the build renames that one BTF type to C's `char`, which `bpftool` prints as
//! a string. Nothing else may be an `i8`.

#![no_std]

mod counters;
mod flow;
mod vif;

pub use counters::{Counters, DropReason, Drops, Traffic};
pub use flow::{Flow, FlowKey};
pub use vif::{Endpoint, EndpointKey, VifEntry, VifKey};

/// Version of all that is in this crate; pins live in `<bpf dir>/v<ABI_VERSION>/`.
pub const ABI_VERSION: u32 = 1;

/// How many interfaces of pods a node can have: the capacity of `VIFS` and `VIF_COUNTERS`.
pub const MAX_VIFS: usize = 4096;

/// How many addresses a node can deliver: the capacity of `ENDPOINTS`.
pub const MAX_ENDPOINTS: usize = 16384;

/// How many flows between pods of this node can be known to be the stack's: the capacity of `STACK_FLOWS`. The one that
/// was used the longest ago makes room for a new one.
pub const MAX_FLOWS: usize = 65536;

/// The MAC address of every pod's host interface, which is the pod's gateway.
///
/// One for all: pods share no link, so none can see two of them, and the dataplane needs no lookup for it.
/// Locally administered and unicast (IEEE 802: bits 1 and 0 of the first byte, here 0b10).
pub const GATEWAY_MAC: [u8; 6] = *b"ferrul";

/// The gateway of every pod, IPv4: link-local (RFC 3927), so that it takes no address of the pods' ranges.
pub const GATEWAY_IPV4: [u8; 4] = [169, 254, 1, 1];

/// The gateway of every pod, IPv6: `fe80::1`.
pub const GATEWAY_IPV6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
