//! IPv6 extension headers (RFC 8200, 4.1), behind which the transport header is.

use core::hint::black_box;

use crate::{
    headers::{DESTINATION_OPTIONS, FRAGMENT, FragmentHeader, HOP_BY_HOP, IPV6_PAYLOAD, Ipv4, ROUTING},
    packet::Packet,
};

/// What is behind extension headers.
pub struct Skipped {
    pub protocol: u8,
    /// [`NONE`], [`SOME`] or [`UNKNOWN`].
    pub extensions: u8,
    /// Flag "more fragments" and offset, as in IPv4. A packet with a fragment header always has the flag: an
    /// atomic fragment is a fragment too.
    pub fragment: u16,
    /// Offset of the transport header: four extension headers of 2 KiB each, at most.
    pub payload: u16,
}

/// Extension headers other than a fragment header.
pub const NONE: u8 = 0;
pub const SOME: u8 = 1;
/// Too many, or cut off.
pub const UNKNOWN: u8 = 2;

/// RFC 8200, 4.1, recommends at most four of the kinds that a router may meet.
const MAX_EXTENSIONS: usize = 4;

#[inline(always)]
pub fn is_extension(next_header: u8) -> bool {
    matches!(next_header, FRAGMENT | HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS)
}

/// Finds the transport header behind extension headers, by the IPv6 header's `next_header`: a packed
/// [`Skipped`], because the verifier lets a function return one integer.
#[inline(always)]
pub fn walk(packet: &Packet, next_header: u8) -> u64 {
    let mut found =
        Skipped { protocol: next_header, extensions: NONE, fragment: 0, payload: IPV6_PAYLOAD as u16 };
    for _ in 0..MAX_EXTENSIONS {
        // All extension headers start like a fragment header.
        let Some(header) = packet.copy::<FragmentHeader>(usize::from(found.payload)) else { break };
        if found.protocol == FRAGMENT {
            found.fragment = Ipv4::MORE_FRAGMENTS | u16::from_be_bytes(header.offset) >> 3;
            found.payload += size_of::<FragmentHeader>() as u16;
        } else {
            found.extensions = SOME;
            found.payload += (u16::from(header.reserved) + 1) * 8;
        }
        found.protocol = header.next_header;
        if found.fragment & Ipv4::OFFSET != 0 || !is_extension(found.protocol) {
            return found.pack();
        }
    }
    found.extensions = UNKNOWN;
    found.pack()
}

// === impl Skipped ===

impl Skipped {
    #[inline(always)]
    fn pack(self) -> u64 {
        u64::from(self.protocol)
            | u64::from(self.extensions) << 8
            | u64::from(self.fragment) << 16
            | u64::from(self.payload) << 32
    }

    #[inline(always)]
    pub fn unpack(packed: u64) -> Self {
        Self {
            protocol: packed as u8,
            extensions: (packed >> 8) as u8,
            fragment: (packed >> 16) as u16,
            // The verifier does not know the bound. LLVM knows one, and would remove the mask.
            payload: black_box(packed >> 32) as u16 & 0x3fff,
        }
    }
}
