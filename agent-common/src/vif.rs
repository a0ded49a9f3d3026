//! Keys and values of `VIFS` and `ENDPOINTS`.

use crate::policy::PackedSubject;

/// Key of `VIFS`, `VIF_COUNTERS` and `LINK_COUNTERS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct VifKey {
    /// Index of the pod's host interface; in `LINK_COUNTERS`, of the tunnel device or an uplink.
    pub ifindex: u32,
}

/// Value of `VIFS`: the addresses and the MAC that the pod behind an interface may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct VifEntry {
    /// Valid only with [`VifEntry::HAS_IPV4`].
    pub ipv4: [u8; 4],
    /// A set of the `HAS_` flags and [`VifEntry::SHAPED`].
    pub flags: u32,
    /// Valid only with [`VifEntry::HAS_IPV6`].
    pub ipv6: [u8; 16],
    /// Of the interface in the pod.
    pub mac: [u8; 6],
    /// Of the interface in the pod, in bytes without the Ethernet header.
    pub mtu: u16,
    /// What judges the pod's packets. Changed in place, by one store of the program `set_subject`.
    pub subject: PackedSubject,
    /// The pod's place in `VIF_TRAFFIC`; 0: its packets are not counted.
    pub slot: u32,
    /// Written by the programs: flows in `STACK_FLOWS` that this pod has begun so far.
    pub stack_flows: u32,
    /// Written by the programs: not 0 at the host interface's index, modulo 32, of each pod with which this
    /// one has had a flow in `STACK_FLOWS`.
    pub stack_peers: [u8; 32],
    /// Zero.
    pub reserved: u32,
    /// Tells attachments apart that have the same index, one after another: the time of the attachment's
    /// creation since boot, in 2^20 ns (about a millisecond), modulo 2^32.
    pub generation: u32,
    /// Text: `namespace/name` of the pod, or the container ID if the runtime named no pod; truncated.
    pub pod: [i8; 128],
    /// Text: the pod's UID; empty if the runtime passed none.
    pub pod_uid: [i8; 40],
    /// Text: name of the interface in the pod.
    pub ifname: [i8; 16],
}

/// Key of `ENDPOINTS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct EndpointKey {
    /// IPv6, or IPv4-mapped IPv6 (RFC 4291, 2.5.5.2) for IPv4.
    pub address: [u8; 16],
}

/// Value of `ENDPOINTS`: the interface behind an address that this node delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Endpoint {
    /// Index of the pod's host interface.
    pub ifindex: u32,
    /// Of the interface in the pod.
    pub mac: [u8; 6],
    /// Zero.
    pub reserved: [u8; 2],
}

// A change of these sizes is a change of the ABI.
const _: () = assert!(size_of::<VifKey>() == 4);
const _: () = assert!(size_of::<VifEntry>() == 272);
const _: () = assert!(size_of::<EndpointKey>() == 16);
const _: () = assert!(size_of::<Endpoint>() == 12);

// === impl VifEntry ===

impl VifEntry {
    /// The pod has the address in `ipv4`.
    pub const HAS_IPV4: u32 = 1;
    /// The pod has the address in `ipv6`.
    pub const HAS_IPV6: u32 = 2;
    /// The qdisc of the host interface limits what the pod receives: all of its packets take the stack, in
    /// both directions.
    pub const SHAPED: u32 = 4;

    #[inline(always)]
    pub const fn is_shaped(&self) -> bool {
        self.flags & Self::SHAPED != 0
    }

    /// The place in `stack_peers` of the pod behind a host interface.
    #[inline(always)]
    pub const fn peer(ifindex: u32) -> usize {
        ifindex as usize % 32
    }

    /// Whether an address is the pod's.
    #[inline(always)]
    pub fn owns_ipv4(&self, address: [u8; 4]) -> bool {
        self.flags & Self::HAS_IPV4 != 0 && address == self.ipv4
    }

    /// Whether an address is the pod's, other than its link-local one.
    #[inline(always)]
    pub fn owns_ipv6(&self, address: [u8; 16]) -> bool {
        self.flags & Self::HAS_IPV6 != 0 && address == self.ipv6
    }

    /// The link-local address that the pod's kernel derives from the MAC (RFC 4291, appendix A).
    #[inline(always)]
    pub fn link_local(&self) -> [u8; 16] {
        let [a, b, c, d, e, f] = self.mac;
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]
    }
}

// === impl EndpointKey ===

impl EndpointKey {
    /// The key of an IPv4 address.
    #[inline(always)]
    pub const fn ipv4([a, b, c, d]: [u8; 4]) -> Self {
        Self { address: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] }
    }

    /// The key of an IPv6 address.
    #[inline(always)]
    pub const fn ipv6(address: [u8; 16]) -> Self {
        Self { address }
    }
}

#[cfg(feature = "user")]
mod user {
    use super::{Endpoint, EndpointKey, VifEntry, VifKey};

    #[expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
    mod pod {
        use super::{Endpoint, EndpointKey, VifEntry, VifKey};

        // SAFETY: `repr(C)` of integers only, without padding (the size is asserted above): every bit pattern
        // is valid.
        unsafe impl aya::Pod for VifKey {}
        // SAFETY: as for `VifKey`.
        unsafe impl aya::Pod for VifEntry {}
        // SAFETY: as for `VifKey`.
        unsafe impl aya::Pod for EndpointKey {}
        // SAFETY: as for `VifKey`.
        unsafe impl aya::Pod for Endpoint {}
    }

    impl VifEntry {
        /// Text for one of the `[i8; N]` fields, truncated to fit with its NUL. A byte that is not printable
        /// ASCII becomes `?`, because `bpftool` does not print such bytes as a string.
        pub fn text<const N: usize>(text: &str) -> [i8; N] {
            let mut field = [0; N];
            let room = N.saturating_sub(1);
            for (slot, byte) in field.iter_mut().take(room).zip(text.bytes()) {
                let printable = byte == b' ' || byte.is_ascii_graphic();
                *slot = if printable { byte.cast_signed() } else { b'?'.cast_signed() };
            }
            field
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn text_is_truncated_and_nul_terminated() {
            assert_eq!(VifEntry::text::<4>("ab"), [97, 98, 0, 0]);
            assert_eq!(VifEntry::text::<4>("abcdef"), [97, 98, 99, 0]);
            assert_eq!(VifEntry::text::<4>("a\n"), [97, 63, 0, 0]);
            assert_eq!(VifEntry::text::<0>("a"), []);
        }
    }
}
