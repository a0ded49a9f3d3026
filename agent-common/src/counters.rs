//! The values of `VIF_TRAFFIC`, `VIF_COUNTERS` and `LINK_COUNTERS`, and the reasons for which a packet is
//! dropped.

/// A pod's packets. Directions are the pod's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// From the pod.
    pub egress: Traffic,
    /// To the pod.
    pub ingress: Traffic,
}

/// Value of `VIF_TRAFFIC`, one for each CPU: a pod's packets that pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Passed {
    /// From the pod: left to the host's stack, or sent past it.
    pub egress: Volume,
    /// Delivered to the pod.
    pub ingress: Volume,
}

/// Packets, and their bytes.
///
/// A packet that is segmented later (GSO) counts once, with all its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Volume {
    pub packets: u64,
    /// Including Ethernet headers.
    pub bytes: u64,
}

/// Value of `VIF_COUNTERS`, one for each CPU: a pod's dropped packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Dropped {
    /// From the pod.
    pub egress: Drops,
    /// To the pod.
    pub ingress: Drops,
}

/// One direction of a pod's packets; and the value of `LINK_COUNTERS`, one for each CPU: packets from other
/// hosts, by the tunnel or by an uplink.
///
/// A packet that is segmented later (GSO) counts once, with all its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Traffic {
    /// Forwarded from the pod, delivered to it, or left to the host's stack.
    pub packets: u64,
    /// Of these packets, including Ethernet headers.
    pub bytes: u64,
    /// Dropped packets.
    pub drops: Drops,
}

/// Defines [`DropReason`] and [`Drops`] from one list, so that every reason has a counter.
macro_rules! drop_reasons {
    ($($(#[$doc:meta])+ $reason:ident = $index:literal => $field:ident,)+) => {
        /// The reason for dropping a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

            /// The name of the reason and of its counter.
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
            /// Counts packets that were dropped for a reason.
            pub const fn add(&mut self, reason: DropReason, packets: u64) {
                let count = match reason {
                    $(DropReason::$reason => &mut self.$field,)+
                };
                *count = count.wrapping_add(packets);
            }

            /// Packets that were dropped for a reason.
            pub const fn get(&self, reason: DropReason) -> u64 {
                match reason {
                    $(DropReason::$reason => self.$field,)+
                }
            }
        }

        // The programs index the counters by the reason's number.
        const _: () = { $(assert!(core::mem::offset_of!(Drops, $field) == 8 * $index);)+ };
    };
}

drop_reasons! {
    /// The interface, or the destination's interface, has no entry in `VIFS`. Counted under ifindex 0.
    NoVif = 0 => no_vif,
    /// From the pod, with a foreign source MAC.
    SpoofedMac = 1 => spoofed_mac,
    /// From the pod, with a foreign IPv4 source. From another host, with a pod's IPv4 source.
    SpoofedIpv4 = 2 => spoofed_ipv4,
    /// The same for IPv6.
    SpoofedIpv6 = 3 => spoofed_ipv6,
    /// ARP from the pod that claims a foreign address or MAC, or is neither request nor reply.
    SpoofedArp = 4 => spoofed_arp,
    /// Neighbour discovery from the pod that claims a foreign address or MAC, that only a router may send, or
    /// that an extension header could hide.
    SpoofedNd = 5 => spoofed_nd,
    /// Headers that contradict each other or the frame's length.
    Malformed = 6 => malformed,
    /// Neither IPv4, IPv6 nor ARP.
    Ethertype = 7 => ethertype,
    /// With a VLAN tag.
    Vlan = 8 => vlan,
    /// Multicast or broadcast, which is not routed. The kernel of a starting pod sends a few MLD reports.
    Multicast = 9 => multicast,
    /// To an address that never leaves a host: loopback or unspecified.
    Martian = 10 => martian,
    /// From the pod in a frame that is not addressed to its gateway.
    NotToGateway = 11 => not_to_gateway,
    /// To the pod, for a foreign address.
    NotForPod = 12 => not_for_pod,
    /// An answer of a DHCP or DHCPv6 server, from the pod.
    DhcpServer = 13 => dhcp_server,
    /// An ICMP error from the pod to another pod of the node, about a flow that is not between them.
    ForgedIcmp = 14 => forged_icmp,
    /// From the pod: IP-in-IP or GRE to the node itself, or VXLAN to the tunnel's port of a node.
    Tunnel = 15 => tunnel,
    /// From the tunnel: the outer packet is not from another node's address to one of this node's, or of
    /// another network (VNI).
    TunnelOuter = 16 => tunnel_outer,
    /// From the tunnel: the inner source is neither in the sending node's ranges nor one of its addresses.
    TunnelInner = 17 => tunnel_inner,
    /// From the tunnel: the inner destination is neither in this node's ranges nor one of its addresses.
    TunnelDestination = 18 => tunnel_destination,
    /// From the tunnel: the inner packet carries a packet once more, by IP-in-IP, GRE or VXLAN.
    TunnelNested = 19 => tunnel_nested,
    /// From the pod: the policies that judge what the pod sends do not allow the packet.
    PolicyEgress = 20 => policy_egress,
    /// To the pod: the policies that judge what the pod receives do not allow the packet.
    PolicyIngress = 21 => policy_ingress,
    /// Denied by policies, because the other end may be a pod whose labels the agent does not know yet.
    PeerUnknown = 22 => peer_unknown,
    /// The pod has no subject in `VIFS`: the agent does not know yet which policies judge the pod.
    PolicyUnknown = 23 => policy_unknown,
}

const _: () = assert!(size_of::<Drops>() == 8 * DropReason::ALL.len());
const _: () = assert!(size_of::<Traffic>() == 16 + size_of::<Drops>());
const _: () = assert!(size_of::<Passed>() == 2 * size_of::<Volume>());
const _: () = assert!(size_of::<Dropped>() == 2 * size_of::<Drops>());

impl core::ops::AddAssign for Counters {
    fn add_assign(&mut self, Self { egress, ingress }: Self) {
        self.egress += egress;
        self.ingress += ingress;
    }
}

impl core::ops::AddAssign<&Passed> for Counters {
    /// Adds the counts of a CPU.
    fn add_assign(&mut self, Passed { egress, ingress }: &Passed) {
        self.egress.pass(egress);
        self.ingress.pass(ingress);
    }
}

impl core::ops::AddAssign<&Dropped> for Counters {
    /// Adds the counts of a CPU.
    fn add_assign(&mut self, Dropped { egress, ingress }: &Dropped) {
        self.egress.drops += *egress;
        self.ingress.drops += *ingress;
    }
}

impl Traffic {
    fn pass(&mut self, Volume { packets, bytes }: &Volume) {
        self.packets = self.packets.wrapping_add(*packets);
        self.bytes = self.bytes.wrapping_add(*bytes);
    }
}

impl core::ops::AddAssign for Traffic {
    fn add_assign(&mut self, Self { packets, bytes, drops }: Self) {
        self.packets = self.packets.wrapping_add(packets);
        self.bytes = self.bytes.wrapping_add(bytes);
        self.drops += drops;
    }
}

#[cfg(feature = "user")]
#[expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
mod user {
    // SAFETY: `repr(C)` of `u64` only, so there is no padding, and every bit pattern is valid.
    unsafe impl aya::Pod for super::Passed {}
    // SAFETY: as for `Passed`.
    unsafe impl aya::Pod for super::Dropped {}
    // SAFETY: as for `Passed`.
    unsafe impl aya::Pod for super::Traffic {}
}
