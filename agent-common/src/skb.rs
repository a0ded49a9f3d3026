//! Places in the kernel's `struct sk_buff`, which programs read, and which differ between kernels.

/// The global `SKB_FIELDS`: what tells where the kernel will write a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SkbFields {
    /// First byte of the structure that is read; 0 if the places are not known.
    pub window: u16,
    /// Bit of `ip_summed` in the window, which has two bits.
    pub ip_summed: u16,
    /// Byte of `csum_start` in the window; `csum_offset` follows.
    pub csum_start: u16,
    /// Byte of `network_header` in the window.
    pub network_header: u16,
}

const _: () = assert!(size_of::<SkbFields>() == 8);

// === impl SkbFields ===

impl SkbFields {
    /// Bytes that are read.
    pub const WINDOW: usize = 64;
}

#[cfg(feature = "user")]
#[expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
mod user {
    // SAFETY: `repr(C)` of `u16` only, so there is no padding, and every bit pattern is valid.
    unsafe impl aya::Pod for super::SkbFields {}
}
