//! Checksums against `etherparse`'s.

use etherparse::checksum::Sum16BitWords;
use fastrand::Rng;

use crate::{
    checksum::Sum,
    headers::{Ipv4, Ipv6},
    packet::Packet,
    random,
};

#[test]
fn a_sum_of_headers_and_numbers_is_the_internet_checksum() {
    random::each(|rng| {
        let (header, number) = (extreme::<40>(rng), rng.u16(..));
        let expected = Sum16BitWords::new().add_slice(&header).add_2bytes(number.to_be_bytes());
        let sum = Sum::ZERO.header(&header).number(number);
        assert_eq!(!sum.fold(), expected.ones_complement(), "{header:x?} {number:x}");
    });
}

#[test]
fn a_checksum_stays_correct_when_the_ttl_is_decremented() {
    random::each(|rng| {
        let mut bytes = extreme::<20>(rng);
        (bytes[0], bytes[8]) = (0x45, rng.u8(1..));
        if rng.bool() {
            // The checksums around the carry.
            bytes[10..12].copy_from_slice(&rng.u16(0xfefd..0xff02).to_be_bytes());
        }
        // The identification makes the checksum correct.
        bytes[4..6].fill(0);
        let sum = Sum16BitWords::new().add_slice(&bytes).ones_complement();
        bytes[4..6].copy_from_slice(&sum.to_ne_bytes());
        let mut ip = header(&bytes);
        assert!(ip.is_intact(), "{bytes:x?}");
        ip.decrement_ttl();
        assert!(ip.is_intact() && ip.ttl == bytes[8] - 1, "{bytes:x?}");

        let (at, bit) = (rng.usize(..20), rng.u8(..8));
        bytes[at] ^= 1 << bit;
        assert!(!header(&bytes).is_intact(), "bit {bit} of byte {at}: {bytes:x?}");
    });
}

/// The kernel adds with `csum_add` (`net/checksum.h`), and compares with zeros in mind: 0 is 0xffff.
#[test]
fn the_sum_of_a_packet_stays_correct_when_the_hop_limit_is_decremented() {
    random::each(|rng| {
        let mut bytes = extreme::<40>(rng);
        bytes[7] = rng.u8(1..);
        let before = Sum16BitWords::new().add_slice(&bytes).ones_complement();
        let mut ip: Ipv6 =
            Packet { frame: bytes.to_vec(), linear: bytes.len(), gso_size: 0, start: 0 }.copy(0).unwrap();
        let added = ip.decrement_hop_limit();
        assert_eq!(ip.hop_limit, bytes[7] - 1);
        bytes[7] -= 1;
        let after = Sum16BitWords::new().add_slice(&bytes).ones_complement();
        let (sum, has_wrapped) = u32::from(!before).overflowing_add(added);
        let sum = sum + u32::from(has_wrapped);
        let (low, high) = ((sum & 0xffff) as u16, (sum >> 16) as u16);
        let (folded, has_wrapped) = low.overflowing_add(high);
        assert_eq!((folded + u16::from(has_wrapped)) % 0xffff, !after % 0xffff, "{bytes:x?}");
    });
}

fn header(bytes: &[u8; 20]) -> Ipv4 {
    Packet { frame: bytes.to_vec(), linear: bytes.len(), gso_size: 0, start: 0 }.copy(0).unwrap()
}

/// Random bytes, many of them 0 and 255: sums with and without carries.
fn extreme<const N: usize>(rng: &mut Rng) -> [u8; N] {
    std::array::from_fn(|_| match rng.u8(..4) {
        0 => 0,
        1 => 0xff,
        _ => rng.u8(..),
    })
}
