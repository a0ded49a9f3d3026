//! The value of `VIF_COUNTERS`, and the reasons for which a packet is dropped.

/// Value of `VIF_COUNTERS`, one for each CPU: what happened to a pod's packets. Directions are the pod's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Left the pod and was let through.
    pub egress: Traffic,
    /// Was delivered to the pod.
    pub ingress: Traffic,
    /// Was dropped, in either direction.
    pub drops: Drops,
}

/// An amount of packets. A packet that is segmented later (GSO) counts once, with all its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes, from the Ethernet header on.
    pub bytes: u64,
}

/// Defines [`DropReason`] and [`Drops`] from one list, so that a reason without a counter cannot be.
macro_rules! drop_reasons {
    ($($(#[$doc:meta])+ $reason:ident = $index:literal => $field:ident,)+) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum DropReason {
            $($(#[$doc])+ $reason = $index,)+
        }

        /// Dropped packets by reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct Drops {
            $($(#[$doc])+ pub $field: u64,)+
        }

        impl DropReason {
            /// All reasons, in the order of the fields of [`Drops`].
            pub const ALL: &[Self] = &[$(Self::$reason),+];

            /// The name of the reason, which is that of its counter.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => stringify!($field),)+
                }
            }
        }

        impl core::ops::AddAssign for Drops {
            fn add_assign(&mut self, other: Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)+
            }
        }

        impl Drops {
            /// How many packets were dropped for a reason.
            pub const fn get(&self, reason: DropReason) -> u64 {
                match reason {
                    $(DropReason::$reason => self.$field,)+
                }
            }
        }

        // The eBPF side finds a counter by the reason's number.
        const _: () = { $(assert!(core::mem::offset_of!(Drops, $field) == 8 * $index);)+ };
    };
}

drop_reasons! {
    /// The interface, or the one to deliver to, has no entry in `VIFS`: nothing passes. Counted under ifindex 0.
    NoVif = 0 => no_vif,
    /// From the pod with a source MAC that is not its own.
    SpoofedMac = 1 => spoofed_mac,
    /// From the pod with an IPv4 source that is not its own.
    SpoofedIpv4 = 2 => spoofed_ipv4,
    /// From the pod with an IPv6 source that is not its own.
    SpoofedIpv6 = 3 => spoofed_ipv6,
    /// ARP from the pod that claims an address or MAC which is not its own, or is neither request nor reply.
    SpoofedArp = 4 => spoofed_arp,
    /// Neighbour discovery from the pod that claims an address or MAC which is not its own, that only a router may
    /// send, or that could hide behind an extension header.
    SpoofedNd = 5 => spoofed_nd,
    /// Headers that contradict themselves or the frame's length.
    Malformed = 6 => malformed,
    /// Neither IPv4, IPv6 nor ARP.
    Ethertype = 7 => ethertype,
    /// Carries a VLAN tag.
    Vlan = 8 => vlan,
    /// Multicast or broadcast, which is not routed. A few at a pod's start are its kernel's MLD reports.
    Multicast = 9 => multicast,
    /// To an address that never leaves a host: loopback or unspecified.
    Martian = 10 => martian,
    /// From the pod in a frame that is not addressed to its gateway.
    NotToGateway = 11 => not_to_gateway,
    /// To the pod, but for an address that is not its own.
    NotForPod = 12 => not_for_pod,
}

const _: () = assert!(size_of::<Traffic>() == 16);
const _: () = assert!(size_of::<Drops>() == 8 * DropReason::ALL.len());
const _: () = assert!(size_of::<Counters>() == 32 + size_of::<Drops>());

impl core::ops::AddAssign<&Counters> for Counters {
    /// Adds another CPU's share.
    fn add_assign(&mut self, other: &Counters) {
        self.egress += other.egress;
        self.ingress += other.ingress;
        self.drops += other.drops;
    }
}

impl core::ops::AddAssign for Traffic {
    fn add_assign(&mut self, Self { packets, bytes }: Self) {
        self.packets = self.packets.wrapping_add(packets);
        self.bytes = self.bytes.wrapping_add(bytes);
    }
}

#[cfg(feature = "user")]
#[expect(unsafe_code, reason = "aya asks for a promise about the bytes of a type")]
mod user {
    // SAFETY: `repr(C)` of `u64` only, so without padding, and every pattern of bytes is a valid value.
    unsafe impl aya::Pod for super::Counters {}
}
