//! The outcome of a packet that passes every check.

use agent_common::UnderlayEntry;

use crate::{
    address::Address,
    packet::{Packet, Stamp},
};

/// Where a packet that passes goes.
///
/// All fields have a value for every way. LLVM leaves an enum's missing field undefined, and may spill any
/// register in its place; after a call, that register is uninitialised, and the verifier refuses the program.
#[derive(Clone, Copy)]
pub struct Outcome {
    pub way: Way,
    /// The interface that the packet leaves by; 0 for [`Way::Stack`] and [`Way::Answered`].
    pub ifindex: u32,
    /// The next hop; unspecified on other ways than [`Way::Neighbour`].
    pub next: Address,
    /// The node's row in `UNDERLAY`; `None` on other ways than [`Way::Packed`].
    pub row: Option<&'static UnderlayEntry>,
}

#[derive(Clone, Copy)]
pub enum Way {
    /// To the host's stack, with a stamp.
    Stack,
    /// To a pod of this node, by its host interface. The packet has been rewritten for it.
    Local,
    /// To a pod of another node by the tunnel device; the tunnel's other end is set.
    Tunnel,
    /// To a pod of another node inside of a packet of the tunnel, which is to be put around this one.
    Packed,
    /// To a pod of another node by an uplink, to the next hop.
    Neighbour,
    /// Back to the pod: the packet has been rewritten into the gateway's answer. No interface has the
    /// gateway's addresses, so the kernel does not answer.
    Answered,
}

// === impl Outcome ===

impl Outcome {
    pub const STACK: Self = Self::by(Way::Stack, 0);
    pub const ANSWERED: Self = Self::by(Way::Answered, 0);

    /// By an interface, without more to say.
    #[inline(always)]
    pub const fn by(way: Way, ifindex: u32) -> Self {
        Self { way, ifindex, next: Address::UNSPECIFIED, row: None }
    }

    /// To the host's stack. The packet is stamped at once: the verifier would walk the rest of the program
    /// once for each stamp.
    #[inline(always)]
    pub fn stack(packet: &Packet, stamp: Stamp) -> Self {
        packet.stamp(stamp);
        Self::STACK
    }
}

/// Where a packet from outside that passes goes: to a pod, as on [`Way::Local`], or to the host's stack.
///
/// A number and no enum, for the reason that [`Outcome`] is none.
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
