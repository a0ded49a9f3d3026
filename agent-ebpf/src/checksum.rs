//! The Internet checksum (RFC 1071).
//!
//! Sums are in memory order: the ones' complement sum does not depend on the byte order, except for the order
//! of the result's own bytes.

use crate::headers::{Header, Ipv4, Ipv6};

/// A ones' complement sum that is not folded yet.
#[derive(Clone, Copy)]
pub struct Sum(u64);

impl Sum {
    pub const ZERO: Self = Self(0);

    /// Adds a header whose length is a multiple of four.
    #[inline(always)]
    pub fn header<T: Header>(self, header: &T) -> Self {
        const { assert!(size_of::<T>().is_multiple_of(4)) };
        let mut sum = self.0;
        let mut offset = 0;
        while offset < size_of::<T>() {
            // SAFETY: within the header, which is valid as bytes and so as an unaligned integer.
            sum += u64::from(unsafe { (&raw const *header).byte_add(offset).cast::<u32>().read_unaligned() });
            offset += 4;
        }
        Self(sum)
    }

    /// Adds a 16-bit number.
    #[inline(always)]
    pub fn number(self, number: u16) -> Self {
        Self(self.0 + u64::from(number.to_be()))
    }

    /// Folds the sum into 16 bits, in memory order.
    #[inline(always)]
    pub fn fold(self) -> u16 {
        let once = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        let twice = (once & 0xffff) + (once >> 16 & 0xffff) + (once >> 32);
        let thrice = (twice & 0xffff) + (twice >> 16);
        ((thrice & 0xffff) + (thrice >> 16)) as u16
    }
}

// === impl Ipv4 ===

impl Ipv4 {
    /// Whether the checksum of a header without options is correct.
    #[inline(always)]
    pub fn is_intact(&self) -> bool {
        Sum::ZERO.header(self).fold() == 0xffff
    }

    /// Decrements the TTL, and updates the checksum (RFC 1624).
    #[inline(always)]
    pub fn decrement_ttl(&mut self) {
        self.ttl -= 1;
        let sum = u32::from(u16::from_be_bytes(self.checksum)) + 0x0100;
        self.checksum = ((sum + u32::from(sum >= 0xffff)) as u16).to_be_bytes();
    }
}

// === impl Ipv6 ===

impl Ipv6 {
    /// Decrements the hop limit. Returns what that adds to the sum of the packet, which the kernel keeps of
    /// packets whose sum the NIC has computed. (An IPv4 header adds nothing, its checksum included.)
    #[inline(always)]
    pub fn decrement_hop_limit(&mut self) -> u32 {
        self.hop_limit -= 1;
        !u32::from(1_u16.to_be())
    }
}
