//! The key of a flow: the same for both directions.

use core::mem::offset_of;

use agent_common::FlowKey;

use crate::{
    address::Address,
    headers::{ICMP, ICMPV6, SCTP, TCP, Transport, UDP},
    meta::Meta,
};

/// A `FlowKey` whose addresses are words.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Key {
    pub low: Address,
    high: Address,
    low_port: u16,
    high_port: u16,
    protocol: Padded<u32>,
}

/// A byte and zeros behind it, as one word: LLVM makes a loop of the zeros of an array.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Padded<T>(T);

const _: () = assert!(size_of::<Key>() == size_of::<FlowKey>());
const _: () = assert!(offset_of!(Key, low) == offset_of!(FlowKey, low));
const _: () = assert!(offset_of!(Key, high) == offset_of!(FlowKey, high));
const _: () = assert!(offset_of!(Key, low_port) == offset_of!(FlowKey, low_port));
const _: () = assert!(offset_of!(Key, high_port) == offset_of!(FlowKey, high_port));
const _: () = assert!(offset_of!(Key, protocol) == offset_of!(FlowKey, protocol));

/// Both ends' ports, or twice the identifier of an echo.
#[inline(always)]
fn ends(protocol: u8, transport: Transport) -> Option<[u16; 2]> {
    match protocol {
        TCP | UDP | SCTP => Some(transport.ports()),
        ICMP if matches!(transport.icmp_type(), 0 | 8) => Some([transport.echo_id(); 2]),
        ICMPV6 if matches!(transport.icmp_type(), 128 | 129) => Some([transport.echo_id(); 2]),
        _ => None,
    }
}

// === impl Padded ===

impl From<u8> for Padded<u32> {
    #[inline(always)]
    fn from(byte: u8) -> Self {
        Self(u32::from(byte).to_le())
    }
}

impl From<u8> for Padded<u64> {
    #[inline(always)]
    fn from(byte: u8) -> Self {
        Self(u64::from(byte).to_le())
    }
}

impl Padded<u32> {
    #[inline(always)]
    pub fn byte(self) -> u8 {
        u32::from_le(self.0) as u8
    }
}

impl Padded<u64> {
    #[inline(always)]
    pub fn byte(self) -> u8 {
        u64::from_le(self.0) as u8
    }
}

// === impl Key ===

impl Key {
    /// The flow of a packet; `None` if the stack does not translate its protocol.
    #[inline(always)]
    pub fn translatable(
        source: Address,
        destination: Address,
        protocol: u8,
        transport: Transport,
    ) -> Option<Self> {
        let [from, to] = ends(protocol, transport)?;
        Some(Self::between(protocol, (source, from), (destination, to)))
    }

    /// The flow of a packet. Without ports, and without an echo's identifier, both ports are zero.
    #[inline(always)]
    pub fn of(meta: &Meta) -> Self {
        let ends = meta.transport().and_then(|transport| ends(meta.protocol, transport));
        let [from, to] = ends.unwrap_or_default();
        Self::between(meta.protocol, (meta.source, from), (meta.destination, to))
    }

    /// The flow between two ends, in either order.
    ///
    /// Arithmetic puts the ends in order: after a branch, the verifier would walk the rest once for each
    /// order.
    #[inline(always)]
    fn between(protocol: u8, (one, port): (Address, u16), (other, other_port): (Address, u16)) -> Self {
        let ([a, b], [c, d]) = (one.words(), other.words());
        let swapped = if a != c {
            u64::from_be(a) > u64::from_be(c)
        } else if b != d {
            u64::from_be(b) > u64::from_be(d)
        } else {
            port > other_port
        };
        let mask = core::hint::black_box(u64::from(swapped).wrapping_neg());
        let (upper, lower) = ((a ^ c) & mask, (b ^ d) & mask);
        let ports = (port ^ other_port) & mask as u16;
        Self {
            low: Address::from_words([a ^ upper, b ^ lower]),
            high: Address::from_words([c ^ upper, d ^ lower]),
            low_port: port ^ ports,
            high_port: other_port ^ ports,
            protocol: protocol.into(),
        }
    }

    /// Spreads flows evenly over the numbers; the same for both directions.
    #[inline(always)]
    pub fn hash(&self) -> u32 {
        let ([a, b], [c, d]) = (self.low.words(), self.high.words());
        let ports = u64::from(self.low_port) << 16 | u64::from(self.high_port);
        let mixed = (a ^ b.rotate_left(16) ^ c.rotate_left(32) ^ d.rotate_left(48) ^ ports)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as u32
    }

    #[inline(always)]
    pub fn as_flow(&self) -> &FlowKey {
        // SAFETY: the same bytes (asserted above), valid whatever they are.
        unsafe { &*(&raw const *self).cast() }
    }
}
