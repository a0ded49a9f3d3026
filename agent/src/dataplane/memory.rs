//! What loading the programs took, given back.
//!
//! aya parses all of the kernel's BTF to load a program, which takes some twenty megabytes for a moment. The allocator
//! would keep them for as long as the agent lives: it gives memory back when it is asked for more, and an idle agent asks
//! for none.

/// Gives back to the kernel what is free.
#[expect(unsafe_code, reason = "the allocator's own function, for which there is no wrapper")]
pub(super) fn give_back() {
    // SAFETY: it takes no pointer, may be called at any time from any thread, and changes nothing that is in use.
    unsafe { libmimalloc_sys::mi_collect(true) };
}
