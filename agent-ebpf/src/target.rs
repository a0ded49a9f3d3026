//! The pod to which a pod sends.

use agent_common::{Endpoint, NodeEntry, VifEntry};

use crate::{address::Address, flows};

/// A pod of this node or of another one, in one form: what follows is the same for both.
#[derive(Clone, Copy)]
pub struct Target {
    /// Host interface of a pod of this node, or [`flows::REMOTE`].
    pub peer: u32,
    /// Bytes without the Ethernet header; 0 for a pod to which packets may not pass the stack by.
    pub mtu: u32,
    /// Of `NodeEntry`; 0 for a pod of this node.
    pub flags: u32,
    /// The interface by which packets to a remote pod leave.
    pub ifindex: u32,
    /// The MAC of a pod of this node, and zeros; or where packets to a remote pod go.
    pub address: Address,
}

// === impl Target ===

impl Target {
    #[inline(always)]
    pub fn local(endpoint: &Endpoint, receiver: &VifEntry) -> Self {
        let [a, b, c, d, e, f] = endpoint.mac;
        Self {
            peer: endpoint.ifindex,
            mtu: if receiver.is_shaped() { 0 } else { u32::from(receiver.mtu) },
            flags: 0,
            ifindex: 0,
            address: Address::from_words([u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]), 0]),
        }
    }

    #[inline(always)]
    pub fn remote(node: &NodeEntry) -> Self {
        Self {
            peer: flows::REMOTE,
            mtu: node.mtu & 0xffff,
            flags: node.flags,
            ifindex: node.ifindex,
            address: Address::v6(node.address),
        }
    }
}
