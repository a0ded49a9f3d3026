//! The ends of a packet's flow, and what tells flows apart.

use crate::{
    address::Address,
    branchless::Condition,
    flow_key::{Key, Padded},
    headers::{ICMP, ICMPV6, Ipv4, SCTP, TCP, Transport, UDP},
    meta::Meta,
    packet::Packet,
};

/// The ends of a packet's flow.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ends {
    source: Address,
    destination: Address,
    /// Zeros if the frame ends before these eight bytes do.
    transport: Transport,
    protocol: Padded<u32>,
    /// Offsets of the transport header and of the frame's end in the data.
    payload: u32,
    end: u32,
    /// Flag "more fragments" and offset, as in IPv4.
    fragment: u32,
}

// LLVM would clear padding byte by byte.
const _: () = assert!(size_of::<Ends>() == 56);

// === impl Ends ===

impl Ends {
    /// Of a packet that is quoted in another one: only [`Self::translatable`] has a meaning.
    #[inline(always)]
    pub fn new(source: Address, destination: Address, protocol: u8, transport: Transport) -> Self {
        let protocol = protocol.into();
        Self { source, destination, transport, protocol, payload: 0, end: 0, fragment: 0 }
    }

    #[inline(always)]
    pub fn of(packet: &Packet, meta: &Meta) -> Self {
        Self {
            payload: (packet.start() + meta.payload) as u32,
            end: packet.start() as u32 + packet.len(),
            fragment: meta.fragment() as u32,
            ..Self::new(meta.source, meta.destination, meta.protocol, meta.first_bytes())
        }
    }

    /// The flow of a packet with a transport header; `None` if the stack does not translate its protocol.
    #[inline(always)]
    pub fn translatable(&self) -> Option<Key> {
        self.ports().map(|ports| self.key(ports))
    }

    /// The flow. Without ports, and without an echo's identifier, both ports are zero.
    #[inline(always)]
    pub fn flow(&self) -> Key {
        self.key(if self.has_transport() { self.ports().unwrap_or_default() } else { [0; 2] })
    }

    /// Offset of the TCP header in the data, if there is one.
    #[inline(always)]
    pub fn tcp_header(&self) -> Option<usize> {
        (self.protocol.byte() == TCP && self.has_transport()).then_some(self.payload as usize)
    }

    /// The ports of the sender and of the receiver, if the protocol is TCP.
    #[inline(always)]
    pub fn ports_of_tcp(&self) -> [u16; 2] {
        self.transport.ports()
    }

    /// 1 if the sender's end is the higher one of its flow, else 0.
    #[inline(always)]
    pub fn is_high(&self, flow: &Key) -> u8 {
        let ([a, b], [c, d]) = (self.source.words(), flow.low.words());
        Condition::nonzero((a ^ c) | (b ^ d)).factor() as u8
    }

    #[inline(always)]
    fn has_transport(&self) -> bool {
        let is_whole = self.payload + size_of::<Transport>() as u32 <= self.end;
        is_whole && self.fragment as u16 & Ipv4::OFFSET == 0
    }

    #[inline(always)]
    fn key(&self, [from, to]: [u16; 2]) -> Key {
        Key::between(self.protocol, (self.source, from), (self.destination, to))
    }

    /// Both ends' ports, or twice the identifier of an echo.
    #[inline(always)]
    fn ports(&self) -> Option<[u16; 2]> {
        let transport = self.transport;
        match self.protocol.byte() {
            TCP | UDP | SCTP => Some(transport.ports()),
            ICMP if matches!(transport.icmp_type(), 0 | 8) => Some([transport.echo_id(); 2]),
            ICMPV6 if matches!(transport.icmp_type(), 128 | 129) => Some([transport.echo_id(); 2]),
            _ => None,
        }
    }
}
