//! The outcome of a packet from a pod that passes every check.

use crate::packet::Stamp;

/// Where a packet that passes goes.
pub enum Outcome {
    /// To the host's stack.
    Stack(Stamp),
    /// To a pod of this node, by its host interface. The packet has been rewritten for it.
    Local { ifindex: u32 },
    /// Back to the pod: the packet has been rewritten into the gateway's answer. No interface has the
    /// gateway's addresses, so the kernel does not answer.
    Answered,
}
