//! The programs call the walk as a function of their kernel's; the host calls the same walk.

use crate::{meta, packet::Packet};

pub fn skip(packet: &Packet, next_header: u8) -> u64 {
    meta::skip_extensions(packet, next_header)
}
