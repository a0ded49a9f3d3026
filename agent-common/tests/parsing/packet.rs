//! A packet as the programs see it, over bytes of the host.

use agent_common::DropReason;

use crate::headers::Header;

/// Offers what the parsers use of the programs' `Packet`.
pub struct Packet {
    /// From the Ethernet header on.
    pub frame: Vec<u8>,
    /// How many of the frame's bytes are read in place.
    pub linear: usize,
    /// 0 without GSO.
    pub gso_size: u32,
    /// Offset of the frame in the data, not 0 for one inside of another packet.
    pub start: usize,
}

// === impl Packet ===

impl Packet {
    pub fn start(&self) -> usize {
        self.start
    }

    pub fn len(&self) -> u32 {
        self.frame.len().try_into().unwrap()
    }

    pub fn is_gso(&self) -> bool {
        self.gso_size != 0
    }

    pub fn gso_size(&self) -> u32 {
        self.gso_size
    }

    /// # Errors
    /// `Malformed`, if the linear data end before the header does.
    pub fn header<T: Header>(&self, offset: usize) -> Result<&T, DropReason> {
        let bytes = self.frame[..self.linear].get(offset..).and_then(|rest| rest.get(..size_of::<T>()));
        // SAFETY: as many bytes as the header has, of alignment 1, valid for any bytes.
        bytes.map(|bytes| unsafe { &*bytes.as_ptr().cast() }).ok_or(DropReason::Malformed)
    }

    pub fn copy<T: Header>(&self, offset: usize) -> Option<T> {
        let bytes = self.frame.get(offset..).and_then(|rest| rest.get(..size_of::<T>()))?;
        // SAFETY: as for `header`.
        Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }
}
