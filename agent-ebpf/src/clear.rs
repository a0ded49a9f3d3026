//! Zeros that LLVM does not know: for 16 bytes and more of constant zeros, it makes a loop over the bytes.

use core::{hint::black_box, mem::MaybeUninit};

/// A zero that LLVM takes for any number.
#[inline(always)]
pub fn zero() -> u32 {
    black_box(0)
}

/// A value of zeros, written word by word.
///
/// # Safety
/// Zeros are valid for the type.
#[inline(always)]
pub unsafe fn zeroed<T>() -> T {
    const { assert!(size_of::<T>().is_multiple_of(size_of::<u32>()) && align_of::<T>() >= align_of::<u32>()) };
    let mut value = MaybeUninit::<T>::uninit();
    let (words, zero) = (value.as_mut_ptr().cast::<u32>(), zero());
    for number in 0..size_of::<T>() / size_of::<u32>() {
        // SAFETY: within the value, and aligned (asserted above).
        unsafe { words.add(number).write(zero) };
    }
    // SAFETY: all words are written; the caller knows that zeros are valid.
    unsafe { value.assume_init() }
}
