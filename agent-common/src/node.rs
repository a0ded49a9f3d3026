//! Keys and values of `NODES`, which node of the cluster an address belongs to, of the index of its rows, and
//! of `UNDERLAY`, how the tunnel's packets get there.

/// Key of `NODES`: a prefix. A look-up finds the longest one that contains an address. Key of
/// `NODE_PREFIXES`, too, where a look-up finds this prefix only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct NodeKey {
    /// Bits of `address` that count: at most 128; those of an IPv4 prefix and 96.
    pub prefix_len: u32,
    /// IPv6, or IPv4-mapped IPv6 (RFC 4291, 2.5.5.2) for IPv4. Zeros behind the prefix.
    pub address: [u8; 16],
}

/// Value of `NODES`: the node that has the addresses of a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NodeEntry {
    /// Tells nodes apart: not 0, and the same in all entries of a node.
    pub id: u32,
    /// A set of the flags below.
    pub flags: u32,
    /// Where packets to the node's pods go, as in [`NodeKey`]: with [`NodeEntry::VXLAN`] the tunnel's other
    /// end, otherwise the next hop. Zeros in other rows, in those of this node, and without a way.
    pub address: [u8; 16],
    /// Index of the interface by which packets to the node's pods leave: the tunnel device or an uplink.
    /// Valid only with [`NodeEntry::FAST`], otherwise 0, as the next field.
    pub ifindex: u32,
    /// The largest packet that gets to the node's pods, in bytes without the Ethernet header.
    pub mtu: u32,
}

/// Value of `NODE_LENGTHS`: which rows of `NODES` the programs find in the index `NODE_PREFIXES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(4))]
pub struct PrefixLen {
    /// Of the ranges in the index, as in [`NodeKey`]; 0 if none is to be looked up there.
    pub prefix_len: u8,
    /// Not 0 if the index has all ranges and addresses of the family.
    pub is_complete: u8,
    pub reserved: [u8; 2],
}

/// Key of `UNDERLAY`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct UnderlayKey {
    /// [`NodeEntry::id`].
    pub node: u32,
}

/// Value of `UNDERLAY`: how packets of the tunnel, which the programs make, leave for a node. Only over IPv4:
/// the kernel's tunnel device makes all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UnderlayEntry {
    /// Index of the uplink.
    pub ifindex: u32,
    /// The next hop: the other node, or a router.
    pub next: [u8; 4],
    /// This node's address. Packets of the node to another one are left to the kernel.
    pub source: [u8; 4],
    /// The tunnel's other end.
    pub remote: [u8; 4],
    /// Index of the tunnel device, which makes the packets that the programs do not.
    pub device: u32,
}

// A change of these sizes is a change of the ABI.
const _: () = assert!(size_of::<UnderlayKey>() == 4);
const _: () = assert!(size_of::<UnderlayEntry>() == 20);
const _: () = assert!(size_of::<NodeKey>() == 20);
const _: () = assert!(size_of::<NodeEntry>() == 32);
const _: () = assert!(size_of::<PrefixLen>() == 4);

// === impl PrefixLen ===

impl PrefixLen {
    /// Keys in `NODE_LENGTHS`.
    pub const IPV4: u32 = 0;
    pub const IPV6: u32 = 1;
}

// === impl NodeEntry ===

impl NodeEntry {
    /// The prefix is an address of the node itself, otherwise a range of its pods.
    pub const ADDRESS: u32 = 1;
    /// The node is this one.
    pub const OWN: u32 = 2;
    /// The node is reached through the tunnel.
    pub const VXLAN: u32 = 4;
    /// Packets between a pod of this node and one of the range may bypass the stack.
    pub const FAST: u32 = 8;

    /// Whether the prefix is an address of a node.
    #[inline(always)]
    pub const fn is_address(&self) -> bool {
        self.flags & Self::ADDRESS != 0
    }

    /// Whether the prefix is a range of another node's pods.
    #[inline(always)]
    pub const fn is_remote_range(&self) -> bool {
        self.flags & (Self::ADDRESS | Self::OWN) == 0
    }

    /// Whether packets may bypass the stack.
    #[inline(always)]
    pub const fn is_fast(&self) -> bool {
        self.flags & Self::FAST != 0
    }

    /// Whether the node is reached through the tunnel.
    #[inline(always)]
    pub const fn is_tunnelled(&self) -> bool {
        self.flags & Self::VXLAN != 0
    }

    /// Whether the node is this one.
    #[inline(always)]
    pub const fn is_own(&self) -> bool {
        self.flags & Self::OWN != 0
    }
}

#[cfg(feature = "user")]
mod user {
    use core::net::IpAddr;

    use super::NodeKey;

    #[expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
    mod pod {
        // SAFETY: `repr(C)` of integers only, without padding (the size is asserted above): every bit pattern
        // is valid.
        unsafe impl aya::Pod for super::super::NodeEntry {}
        // SAFETY: as above.
        unsafe impl aya::Pod for super::super::NodeKey {}
        // SAFETY: as above.
        unsafe impl aya::Pod for super::super::PrefixLen {}
        // SAFETY: as above.
        unsafe impl aya::Pod for super::super::UnderlayKey {}
        // SAFETY: as above.
        unsafe impl aya::Pod for super::super::UnderlayEntry {}
    }

    impl NodeKey {
        /// The key of a prefix of `len` bits; longer ones than the address are cut. Bits behind the prefix
        /// are cleared.
        pub fn new(address: IpAddr, len: u8) -> Self {
            let (address, prefix_len) = match address {
                IpAddr::V4(v4) => (v4.to_ipv6_mapped(), u32::from(len.min(32)) + 96),
                IpAddr::V6(v6) => (v6, u32::from(len.min(128))),
            };
            let mask = u128::MAX.checked_shl(128 - prefix_len).unwrap_or(0);
            Self { prefix_len, address: (u128::from(address) & mask).to_be_bytes() }
        }

        /// The key of a single address.
        pub fn host(address: IpAddr) -> Self {
            Self::new(address, 128)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn keys_of_both_families_are_prefixes_of_128_bits_without_what_is_behind() {
            let key = |address: &str, len| NodeKey::new(address.parse().unwrap(), len);
            let v4 = key("10.244.3.77", 24);
            assert_eq!(v4.prefix_len, 120);
            assert_eq!(v4.address, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 244, 3, 0]);
            assert_eq!(key("fd00:10:244:3::7", 64), key("fd00:10:244:3::", 64));
            assert_eq!(key("::1", 0), NodeKey { prefix_len: 0, address: [0; 16] });
            assert_eq!(key("0.0.0.0", 0).prefix_len, 96);
            let host = NodeKey::host("192.0.2.1".parse().unwrap());
            assert_eq!((host.prefix_len, &host.address[12..]), (128, &[192, 0, 2, 1][..]));
        }
    }
}
