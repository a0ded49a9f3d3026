//! The outcome of a packet that passes every check.

use agent_common::UnderlayEntry;

use crate::{
    address::Address,
    packet::{Packet, Stamp},
};

/// Where a packet that passes goes.
pub enum Outcome {
    /// To the host's stack, with a stamp.
    Stack,
    /// To a pod of this node, by its host interface. The packet has been rewritten for it.
    Local { ifindex: u32 },
    /// To a pod of another node by the tunnel device; the tunnel's other end is set.
    Tunnel { ifindex: u32 },
    /// To a pod of another node inside of a packet of the tunnel, which is to be put around this one.
    Packed { way: &'static UnderlayEntry },
    /// To a pod of another node by an uplink, to the next hop.
    Neighbour { ifindex: u32, next: Address },
    /// Back to the pod: the packet has been rewritten into the gateway's answer. No interface has the
    /// gateway's addresses, so the kernel does not answer.
    Answered,
}

// === impl Outcome ===

impl Outcome {
    /// To the host's stack. The packet is stamped at once: the verifier would walk the rest of the program
    /// once for each stamp.
    #[inline(always)]
    pub fn stack(packet: &Packet<'_>, stamp: Stamp) -> Self {
        packet.stamp(stamp);
        Self::Stack
    }
}

/// Where a packet from outside that passes goes: to a pod, as in [`Outcome::Local`], or to the host's stack.
///
/// A number and no enum: LLVM leaves the place of an enum's missing field undefined, with a pointer in it,
/// and computes with what is there, which the verifier refuses.
pub struct Inbound(u32);

// === impl Inbound ===

impl Inbound {
    pub const STACK: Self = Self(0);

    #[inline(always)]
    pub fn to_pod(ifindex: u32) -> Self {
        Self(ifindex)
    }

    /// The pod's host interface; 0: the stack.
    #[inline(always)]
    pub fn ifindex(&self) -> u32 {
        self.0
    }
}
