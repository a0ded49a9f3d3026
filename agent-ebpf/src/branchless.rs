//! Conditions as numbers: after a branch, the verifier walks the rest once for each way.

use core::{
    hint::black_box,
    ops::{BitAnd, BitOr, Not},
};

/// A condition: the highest bit of a number.
#[derive(Clone, Copy)]
pub struct Condition(u64);

/// The first number for a mask of all bits, the other one for none.
#[inline(always)]
pub fn pick(mask: u64, one: u64, other: u64) -> u64 {
    other ^ (one ^ other) & mask
}

// === impl Condition ===

impl Condition {
    /// Whether a number is not zero.
    #[inline(always)]
    pub fn nonzero(number: u64) -> Self {
        Self(number | number.wrapping_neg())
    }

    /// Whether a number is negative, as a signed one.
    #[inline(always)]
    pub fn negative(number: u32) -> Self {
        Self(u64::from(number) << 32)
    }

    /// Whether the first number is greater.
    #[inline(always)]
    pub fn greater(one: u64, other: u64) -> Self {
        // The borrow of `other - one`.
        Self((!other & one) | ((!other | one) & other.wrapping_sub(one)))
    }

    /// 1 if the condition holds, else 0. For constants: where a mask meets a constant in an AND or an OR,
    /// later verifiers walk what follows once for each value of the mask (`maybe_fork_scalars`).
    #[inline(always)]
    pub fn factor(self) -> u64 {
        // LLVM would see a comparison before, or a choice behind, and branch.
        black_box(black_box(self.0) >> 63)
    }

    /// All bits if the condition holds, else none.
    #[inline(always)]
    pub fn mask(self) -> u64 {
        self.factor().wrapping_neg()
    }

    /// The value of one condition or another.
    #[inline(always)]
    pub fn select(self, one: Self, other: Self) -> Self {
        (self & one) | (!self & other)
    }
}

impl BitAnd for Condition {
    type Output = Self;

    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for Condition {
    type Output = Self;

    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Not for Condition {
    type Output = Self;

    #[inline(always)]
    fn not(self) -> Self {
        Self(!self.0)
    }
}
