//! IP addresses in the form of `EndpointKey`.

use core::mem::transmute;

use agent_common::EndpointKey;

/// An IPv6 address, or an IPv4 address mapped into IPv6 (RFC 4291, 2.5.5.2), in network order.
///
/// Two words instead of 16 bytes: the verifier walks a comparison of byte arrays byte by byte.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Address([u64; 2]);

impl Address {
    pub const UNSPECIFIED: Self = Self([0; 2]);

    #[inline(always)]
    pub const fn v4(bytes: [u8; 4]) -> Self {
        let words = [0x0000_ffff_u32.to_be(), u32::from_ne_bytes(bytes)];
        // SAFETY: integers of the same size. Memory order stays network order.
        Self([0, unsafe { transmute::<[u32; 2], u64>(words) }])
    }

    #[inline(always)]
    pub const fn v6(bytes: [u8; 16]) -> Self {
        // SAFETY: integers of the same size, valid for any bytes. Memory order stays network order.
        unsafe { transmute::<[u8; 16], Self>(bytes) }
    }

    #[inline(always)]
    pub fn key(&self) -> &EndpointKey {
        // SAFETY: 16 bytes, valid for any bytes.
        unsafe { &*(&raw const *self).cast() }
    }

    /// From words in network order, as the kernel's `in6_addr`.
    #[inline(always)]
    pub const fn v6_words(words: [u32; 4]) -> Self {
        // SAFETY: integers of the same size.
        unsafe { transmute::<[u32; 4], Self>(words) }
    }

    #[inline(always)]
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// In network order, most significant word first.
    #[inline(always)]
    pub fn words(&self) -> [u64; 2] {
        self.0
    }

    #[inline(always)]
    pub fn to_v6(self) -> [u8; 16] {
        // SAFETY: as for `v6`.
        unsafe { transmute::<Self, [u8; 16]>(self) }
    }

    #[inline(always)]
    pub fn to_v4(self) -> [u8; 4] {
        let [_, low] = self.0;
        let [_, _, _, _, bytes @ ..] = low.to_ne_bytes();
        bytes
    }

    /// In network order, as the kernel's `in6_addr`.
    #[inline(always)]
    pub fn to_v6_words(self) -> [u32; 4] {
        // SAFETY: integers of the same size.
        unsafe { transmute::<Self, [u32; 4]>(self) }
    }

    /// Without the bits behind a prefix.
    #[inline(always)]
    pub fn masked(self, prefix_len: u32) -> Self {
        let [high, low] = self.0;
        if prefix_len > 64 {
            Self([high, low & u64::MAX.wrapping_shl(128 - prefix_len).to_be()])
        } else {
            Self([high & u64::MAX.wrapping_shl(64 - prefix_len).to_be(), 0])
        }
    }

    /// The first byte of an IPv6 address.
    #[inline(always)]
    pub fn first_of_v6(&self) -> u8 {
        let [high, _] = self.0;
        (u64::from_be(high) >> 56) as u8
    }

    /// The first byte of an IPv4 address.
    #[inline(always)]
    pub fn first_of_v4(&self) -> u8 {
        let [first, ..] = self.to_v4();
        first
    }

    /// Whether the address is link-local unicast, `fe80::/10`.
    #[inline(always)]
    pub fn is_link_local(&self) -> bool {
        let [high, _] = self.0;
        u64::from_be(high) >> 54 == 0xfe80 >> 6
    }

    /// Whether the address is on this link only: link-local unicast, or multicast of the link, `ff02::/16`.
    #[inline(always)]
    pub fn is_on_link(&self) -> bool {
        let [high, _] = self.0;
        self.is_link_local() || u64::from_be(high) >> 48 == 0xff02
    }

    /// Whether this is an IPv4 address.
    #[inline(always)]
    pub fn is_mapped_ipv4(&self) -> bool {
        let [high, low] = self.0;
        high == 0 && u64::from_be(low) >> 32 == 0xffff
    }

    /// Whether the address is `::`, `::1`, or IPv4 in IPv6 (`::/96`, `::ffff:0:0/96`).
    #[inline(always)]
    pub fn embeds_ipv4(&self) -> bool {
        let [high, low] = self.0;
        let middle = u64::from_be(low) >> 32;
        high == 0 && (middle == 0 || middle == 0xffff)
    }
}
