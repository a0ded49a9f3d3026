//! Returns memory to the kernel after the programs are loaded.
//!
//! aya parses all of the kernel's BTF to load a program, which takes about 20 MB for a moment. The allocator
//! returns freed memory only on later allocations, and an idle agent makes few.

/// Returns free memory to the kernel.
#[expect(unsafe_code, reason = "the allocator's own function, for which there is no wrapper")]
pub(super) fn release() {
    // SAFETY: takes no pointer, may be called at any time from any thread, and changes no memory in use.
    unsafe { libmimalloc_sys::mi_collect(true) };
}
