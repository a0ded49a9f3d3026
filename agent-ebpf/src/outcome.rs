//! The outcome of a packet that passes every check.

use crate::{address::Address, packet::Stamp};

/// Where a packet that passes goes.
pub enum Outcome {
    /// To the host's stack.
    Stack(Stamp),
    /// To a pod of this node, by its host interface. The packet has been rewritten for it.
    Local { ifindex: u32 },
    /// To a pod of another node by the tunnel device; the tunnel's other end is set.
    Tunnel { ifindex: u32 },
    /// To a pod of another node by an uplink, to the next hop.
    Neighbour { ifindex: u32, next: Address },
    /// Back to the pod: the packet has been rewritten into the gateway's answer. No interface has the
    /// gateway's addresses, so the kernel does not answer.
    Answered,
}

/// Where a packet from outside that passes goes.
pub enum Inbound {
    /// To the host's stack.
    Stack,
    /// To a pod, as in [`Outcome::Local`].
    Local { ifindex: u32 },
}
