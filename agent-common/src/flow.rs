//! Keys and values of `STACK_FLOWS` and `FLOW_RINGS`.

use crate::EndpointKey;

/// Key of `STACK_FLOWS`: a flow between two pods of this node, by the pods' own addresses. Both directions
/// have the same key: the end with the lower address is first; with equal addresses, the end with the lower
/// port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(8))]
pub struct FlowKey {
    pub low: EndpointKey,
    pub high: EndpointKey,
    /// The port at `low`, in host order. For an ICMP echo, both ports are its identifier.
    pub low_port: u16,
    /// The port at `high`, in host order.
    pub high_port: u16,
    /// IPv4 protocol or IPv6 next header.
    pub protocol: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

/// Value of `STACK_FLOWS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    /// Index of the interface at which the flow's server is: by which the stack sent the last request for a
    /// TCP connection, otherwise the flow's first packet. If that packet accepts a connection, or is in the
    /// middle of one and from a server's port, its sender is the server: the index of the pod's host
    /// interface, or 0 for a pod of another node.
    pub ifindex: u32,
    /// Time of the last packet, in jiffies modulo 2^32; less [`Flow::CLOSED_BY_LOW`] if the end `low` has
    /// closed the TCP connection, less twice that if `high` has, less both if both have or one has reset it.
    pub used: u32,
}

/// Key of `FLOW_RINGS`: a place in the ring of a client pod's flows. The value is the flow's key. Also the
/// key of `POLICY_PLACES`, whose pending flows have places from 2^30 on; flows that others begin have places
/// from 2^29 on, pending ones from 2^31 on. And the key of `FRAGMENT_PLACES`, where packets from elsewhere
/// have places from 2^31 on; the place behind the last one of a ring has the number of the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct RingKey {
    /// Index of the client pod's host interface.
    pub ifindex: u32,
    /// Below [`flows_per_pod`](crate::flows_per_pod).
    pub place: u32,
}

impl Flow {
    /// Six days at 1000 jiffies a second. A flow that is unused for half as long looks closed, and is unknown
    /// to conntrack (`nf_conntrack_tcp_timeout_established` is five days) or nearly so.
    pub const CLOSED_BY_LOW: u32 = 1 << 29;
    /// The ends that have closed a connection.
    pub const LOW: u32 = 1;
    pub const HIGH: u32 = 2;
    pub const BOTH: u32 = Self::LOW | Self::HIGH;

    /// Which ends have closed a connection, of [`Flow::used`] and the time in jiffies.
    #[inline(always)]
    pub const fn closed(used: u32, now: u32) -> u32 {
        // Rounded: another CPU may have noted a later time.
        let closed = now.wrapping_sub(used).wrapping_add(Self::CLOSED_BY_LOW / 2) / Self::CLOSED_BY_LOW;
        // The largest is `BOTH`, without a branch, which the verifier would walk both ways, and which LLVM
        // would make.
        let closed = core::hint::black_box(closed);
        (closed | (closed / (Self::BOTH + 1) * Self::BOTH)) & Self::BOTH
    }
}

// A change of these sizes is a change of the ABI.
const _: () = assert!(size_of::<FlowKey>() == 40);
const _: () = assert!(size_of::<Flow>() == 8);
const _: () = assert!(size_of::<RingKey>() == 8);

#[cfg(feature = "user")]
mod user {
    use super::FlowKey;
    use crate::EndpointKey;

    #[expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
    mod pod {
        use super::super::{Flow, FlowKey, RingKey};

        // SAFETY: `repr(C)` of integers only, without padding (the size is asserted above): every bit pattern
        // is valid.
        unsafe impl aya::Pod for FlowKey {}
        // SAFETY: as for `FlowKey`.
        unsafe impl aya::Pod for Flow {}
        // SAFETY: as for `FlowKey`.
        unsafe impl aya::Pod for RingKey {}
    }

    impl FlowKey {
        /// The flow between two ends, in any order.
        pub fn between(protocol: u8, one: (EndpointKey, u16), other: (EndpointKey, u16)) -> Self {
            let order = |(end, port): (EndpointKey, u16)| (end.address, port);
            let ((low, low_port), (high, high_port)) =
                if order(one) <= order(other) { (one, other) } else { (other, one) };
            Self { low, high, low_port, high_port, protocol, reserved: [0; 3] }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn both_directions_of_a_flow_have_the_same_key() {
            let (a, b) = (EndpointKey::ipv4([10, 0, 0, 1]), EndpointKey::ipv4([10, 0, 0, 2]));
            let key = FlowKey::between(6, (b, 1), (a, 65535));
            assert_eq!(key, FlowKey::between(6, (a, 65535), (b, 1)));
            assert_eq!((key.low, key.low_port, key.high, key.high_port), (a, 65535, b, 1));
            assert_eq!(FlowKey::between(6, (a, 2), (a, 1)), FlowKey::between(6, (a, 1), (a, 2)));
            assert_ne!(FlowKey::between(6, (a, 1), (b, 2)), FlowKey::between(6, (a, 2), (b, 1)));
            assert_ne!(FlowKey::between(6, (a, 1), (b, 2)), FlowKey::between(17, (a, 1), (b, 2)));
        }
    }
}
