//! Sets of bits of a ruleset.

use std::{
    fmt,
    ops::{BitAnd, BitOr, BitOrAssign},
};

/// A set of bits. The lowest bit comes first.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mask(pub [u64; 4]);

impl Mask {
    /// Without bits.
    pub const NONE: Self = Self([0; 4]);
    /// How many bits there are.
    pub const BITS: u16 = 256;

    /// The set of one bit.
    pub fn bit(bit: u16) -> Self {
        let mut mask = Self::NONE;
        if let Some(word) = mask.0.get_mut(usize::from(bit / 64)) {
            *word = 1 << (bit % 64);
        }
        mask
    }

    /// The lowest bit from `start` on.
    pub fn lowest(&self, start: u16) -> Option<u16> {
        (0_u16..).zip(self.0).find_map(|(i, word)| {
            let skipped = start.saturating_sub(i * 64);
            let word = word & u64::MAX.checked_shl(u32::from(skipped)).unwrap_or(0);
            // At most 63.
            (word != 0).then(|| i * 64 + u16::try_from(word.trailing_zeros()).unwrap_or_default())
        })
    }

    /// Whether a bit is in the set.
    pub fn has(&self, bit: u16) -> bool {
        !(*self & Self::bit(bit)).is_empty()
    }

    /// Whether there are no bits.
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// Removes a bit.
    pub(crate) fn clear(&mut self, bit: u16) {
        if let Some(word) = self.0.get_mut(usize::from(bit / 64)) {
            *word &= !(1 << (bit % 64));
        }
    }
}

impl BitAnd for Mask {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self([a & e, b & f, c & g, d & h])
    }
}

impl BitOr for Mask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self([a | e, b | f, c | g, d | h])
    }
}

impl BitOrAssign for Mask {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((0..Self::BITS).filter(|bit| self.has(*bit))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_bit_from_a_start() {
        let mask = Mask::bit(3) | Mask::bit(64) | Mask::bit(255);
        for (start, lowest) in
            [(0, Some(3)), (3, Some(3)), (4, Some(64)), (64, Some(64)), (65, Some(255)), (255, Some(255))]
        {
            assert_eq!(mask.lowest(start), lowest, "{start}");
        }
        assert_eq!((mask.lowest(256), Mask::NONE.lowest(0), Mask::bit(256)), (None, None, Mask::NONE));
        let mut cleared = mask;
        cleared.clear(64);
        assert_eq!(format!("{cleared:?} {:?}", mask & Mask::bit(64)), "{3, 255} {64}");
    }
}
