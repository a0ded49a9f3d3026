//! The pod to which a pod sends.

use agent_common::{Endpoint, NodeEntry, VifEntry};

use crate::{address::Address, flows, policy::Judge};

/// A pod of this node or of another one, in one form: what follows is the same for both.
#[derive(Clone, Copy)]
pub struct Target {
    /// Host interface of a pod of this node, or [`flows::REMOTE`].
    pub peer: u32,
    /// Bytes without the Ethernet header; 0 for a pod to which packets may not bypass the stack.
    pub mtu: u32,
    /// The slot of a pod of this node; or the interface by which packets to a remote pod leave.
    pub place: u32,
    /// The number of the node to which a packet takes the tunnel; 0 without a tunnel.
    pub tunnel_to: u32,
    /// The MAC of a pod of this node, and what judges the pod; or where packets to a remote pod go.
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
            place: receiver.slot,
            tunnel_to: 0,
            address: Address::from_words([
                u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]),
                Judge::of(receiver).word(),
            ]),
        }
    }

    /// What judges a pod of this node.
    #[inline(always)]
    pub fn judge(&self) -> Judge {
        let [_, word] = self.address.words();
        Judge::from_word(word)
    }

    #[inline(always)]
    pub fn remote(node: &NodeEntry) -> Self {
        Self {
            peer: flows::REMOTE,
            mtu: node.mtu & 0xffff,
            place: node.ifindex,
            tunnel_to: if node.is_tunnelled() { node.id } else { 0 },
            address: Address::v6(node.address),
        }
    }
}
