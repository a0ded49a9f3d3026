//! In place of the programs' module, which makes the walk a function of its own.

use crate::{
    extensions::{self, Skipped},
    packet::Packet,
};

pub fn extensions(packet: &Packet, next_header: u8) -> Skipped {
    Skipped::unpack(extensions::walk(packet, next_header))
}
