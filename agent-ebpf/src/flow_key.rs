//! The key of a flow: the same for both directions.

use core::mem::offset_of;

use agent_common::FlowKey;

use crate::{address::Address, branchless::Condition};

/// A `FlowKey` whose addresses are words.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Key {
    pub low: Address,
    high: Address,
    low_port: u16,
    high_port: u16,
    protocol: Padded<u32>,
}

/// A byte and zeros behind it, as one word: LLVM makes a loop of the zeros of an array.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Padded<T>(T);

const _: () = assert!(size_of::<Key>() == size_of::<FlowKey>());
const _: () = assert!(offset_of!(Key, low) == offset_of!(FlowKey, low));
const _: () = assert!(offset_of!(Key, high) == offset_of!(FlowKey, high));
const _: () = assert!(offset_of!(Key, low_port) == offset_of!(FlowKey, low_port));
const _: () = assert!(offset_of!(Key, high_port) == offset_of!(FlowKey, high_port));
const _: () = assert!(offset_of!(Key, protocol) == offset_of!(FlowKey, protocol));

// === impl Padded ===

impl From<u8> for Padded<u32> {
    #[inline(always)]
    fn from(byte: u8) -> Self {
        Self(u32::from(byte).to_le())
    }
}

impl From<u8> for Padded<u64> {
    #[inline(always)]
    fn from(byte: u8) -> Self {
        Self(u64::from(byte).to_le())
    }
}

impl Padded<u32> {
    #[inline(always)]
    pub fn byte(self) -> u8 {
        u32::from_le(self.0) as u8
    }
}

impl Padded<u64> {
    #[inline(always)]
    pub fn byte(self) -> u8 {
        u64::from_le(self.0) as u8
    }
}

// === impl Key ===

impl Key {
    /// The flow between two ends, in either order.
    #[inline(always)]
    pub fn between(
        protocol: Padded<u32>,
        (one, port): (Address, u16),
        (other, other_port): (Address, u16),
    ) -> Self {
        let ([a, b], [c, d]) = (one.words(), other.words());
        let greater = |one: u64, other: u64| Condition::greater(u64::from_be(one), u64::from_be(other));
        let by_port = Condition::greater(port.into(), other_port.into());
        let by_low_words = Condition::nonzero(b ^ d).select(greater(b, d), by_port);
        let mask = Condition::nonzero(a ^ c).select(greater(a, c), by_low_words).mask();
        let (upper, lower) = ((a ^ c) & mask, (b ^ d) & mask);
        let ports = (port ^ other_port) & mask as u16;
        Self {
            low: Address::from_words([a ^ upper, b ^ lower]),
            high: Address::from_words([c ^ upper, d ^ lower]),
            low_port: port ^ ports,
            high_port: other_port ^ ports,
            protocol,
        }
    }

    /// Spreads flows evenly over the numbers; the same for both directions.
    #[inline(always)]
    pub fn hash(&self) -> u32 {
        let ([a, b], [c, d]) = (self.low.words(), self.high.words());
        let ports = u64::from(self.low_port) << 16 | u64::from(self.high_port);
        let mixed = (a ^ b.rotate_left(16) ^ c.rotate_left(32) ^ d.rotate_left(48) ^ ports)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as u32
    }

    #[inline(always)]
    pub fn as_flow(&self) -> &FlowKey {
        // SAFETY: the same bytes (asserted above), valid whatever they are.
        unsafe { &*(&raw const *self).cast() }
    }
}
