//! `Meta`: what the programs know about an IP packet, parsed once.

use agent_common::DropReason;

use crate::{
    address::Address,
    headers::{
        DESTINATION_OPTIONS, ETHERTYPE_IPV4, ETHERTYPE_IPV6, FRAGMENT, FragmentHeader, HOP_BY_HOP, ICMPV6,
        IPV4_PAYLOAD, IPV6_PAYLOAD, IcmpType, Ipv4, Ipv6, L3, ROUTING, Transport,
    },
    packet::Packet,
};

pub struct Meta {
    pub source: Address,
    pub destination: Address,
    pub family: Family,
    /// IPv4's protocol or IPv6's next header; of an IPv6 fragment, the next header of its fragment header.
    pub protocol: u8,
    /// TTL or hop limit.
    pub hops: u8,
    /// Flag "more fragments" and offset, as in IPv4. An IPv6 packet with a fragment header always has the
    /// flag: an atomic fragment is a fragment too.
    fragment: u16,
    /// Offset of the transport header.
    pub payload: usize,
    /// Length of the frame.
    len: usize,
    /// See [`Meta::transport`]. Not an `Option`: the verifier would walk all steps once more for `None`.
    transport: Transport,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Ipv4,
    Ipv6,
}

/// Where a packet comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    Pod,
    /// The host's stack, whose packets need no check.
    Stack,
}

/// Where a destination address leads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Unicast,
    /// Multicast or broadcast.
    Multicast,
    /// Loopback, unspecified, or IPv4 in IPv6: not valid between hosts.
    Host,
}

// === impl Meta ===

impl Meta {
    /// # Errors
    /// `Ethertype` if the frame carries no IP; `Malformed` if the frame ends within the IP header, or if
    /// version or lengths of a pod's packet contradict each other or the frame.
    #[inline(always)]
    pub fn parse(packet: &Packet<'_>, ethertype: u16, sender: Sender) -> Result<Self, DropReason> {
        match ethertype {
            ETHERTYPE_IPV4 => {
                let ip = packet.header::<Ipv4>(L3)?;
                if sender == Sender::Pod {
                    ip.check(packet)?;
                }
                Ok(Self::ipv4(packet, ip))
            }
            ETHERTYPE_IPV6 => {
                let ip = packet.header::<Ipv6>(L3)?;
                if sender == Sender::Pod {
                    ip.check(packet)?;
                }
                Ok(Self::ipv6(packet, ip))
            }
            _ => Err(DropReason::Ethertype),
        }
    }

    #[inline(always)]
    fn ipv4(packet: &Packet<'_>, ip: &Ipv4) -> Self {
        let payload = L3 + ip.header_len();
        Self {
            source: Address::v4(ip.source),
            destination: Address::v4(ip.destination),
            family: Family::Ipv4,
            protocol: ip.protocol,
            hops: ip.ttl,
            fragment: u16::from_be_bytes(ip.fragment) & (Ipv4::MORE_FRAGMENTS | Ipv4::OFFSET),
            payload,
            len: packet.len() as usize,
            transport: Transport::read(packet, payload),
        }
    }

    #[inline(always)]
    fn ipv6(packet: &Packet<'_>, ip: &Ipv6) -> Self {
        let mut meta = Self {
            source: Address::v6(ip.source),
            destination: Address::v6(ip.destination),
            family: Family::Ipv6,
            protocol: ip.next_header,
            hops: ip.hop_limit,
            fragment: 0,
            payload: IPV6_PAYLOAD,
            len: packet.len() as usize,
            transport: Transport::new([0; 8]),
        };
        if ip.next_header != FRAGMENT {
            meta.transport = Transport::read(packet, IPV6_PAYLOAD);
            return meta;
        }
        meta.payload = IPV6_PAYLOAD + size_of::<FragmentHeader>();
        meta.fragment = Ipv4::MORE_FRAGMENTS;
        if let Ok(fragment) = packet.header::<FragmentHeader>(IPV6_PAYLOAD) {
            meta.protocol = fragment.next_header;
            meta.fragment |= u16::from_be_bytes(fragment.offset) >> 3;
            meta.transport = Transport::read(packet, IPV6_PAYLOAD + size_of::<FragmentHeader>());
        }
        meta
    }

    /// Whether the packet has IPv4 options, or IPv6 extension headers other than a fragment header (RFC 8200,
    /// 4.1).
    #[inline(always)]
    pub fn has_options(&self) -> bool {
        match self.family {
            Family::Ipv4 => self.payload != IPV4_PAYLOAD,
            Family::Ipv6 => matches!(self.protocol, HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS),
        }
    }

    #[inline(always)]
    pub fn is_fragment(&self) -> bool {
        self.fragment != 0
    }

    /// Ports or ICMP type. `None` for a later fragment, and if the frame ends before.
    #[inline(always)]
    pub fn transport(&self) -> Option<Transport> {
        let is_there = self.payload + size_of::<Transport>() <= self.len && self.fragment & Ipv4::OFFSET == 0;
        is_there.then_some(self.transport)
    }

    /// Type of an ICMPv6 message that directly follows the IPv6 header.
    ///
    /// # Errors
    /// `Malformed`, if the frame ends before the type.
    #[inline(always)]
    pub fn icmpv6_type(&self, packet: &Packet<'_>) -> Result<Option<u8>, DropReason> {
        if self.family != Family::Ipv6 || self.protocol != ICMPV6 || self.is_fragment() {
            return Ok(None);
        }
        // Not from `transport`: a message can be shorter.
        Ok(Some(packet.header::<IcmpType>(IPV6_PAYLOAD)?.kind))
    }

    #[inline(always)]
    pub fn destination_scope(&self) -> Scope {
        match self.family {
            Family::Ipv4 => match self.destination.first_of_v4() {
                0 | 127 => Scope::Host,
                224.. => Scope::Multicast,
                _ => Scope::Unicast,
            },
            Family::Ipv6 if self.destination.first_of_v6() == 0xff => Scope::Multicast,
            Family::Ipv6 if self.destination.embeds_ipv4() => Scope::Host,
            Family::Ipv6 => Scope::Unicast,
        }
    }
}

// === impl Transport ===

impl Transport {
    #[inline(always)]
    fn read(packet: &Packet<'_>, offset: usize) -> Self {
        let bytes = match packet.header::<[u8; 8]>(offset) {
            Ok(bytes) => Some(*bytes),
            Err(_) => packet.copy(offset),
        };
        Self::new(bytes.unwrap_or_default())
    }
}

// === impl Ipv4 ===

impl Ipv4 {
    #[inline(always)]
    fn check(&self, packet: &Packet<'_>) -> Result<(), DropReason> {
        let (header_len, total_len) = (self.header_len(), usize::from(u16::from_be_bytes(self.total_len)));
        if self.version_ihl >> 4 != 4 || header_len < size_of::<Self>() {
            return Err(DropReason::Malformed);
        }
        if total_len >= header_len && L3 + total_len <= packet.len() as usize {
            return Ok(());
        }
        // A length of zero means "over 64 KiB".
        if total_len == 0 && packet.is_gso() { Ok(()) } else { Err(DropReason::Malformed) }
    }
}

// === impl Ipv6 ===

impl Ipv6 {
    #[inline(always)]
    fn check(&self, packet: &Packet<'_>) -> Result<(), DropReason> {
        let [version_class, ..] = self.version_class_flow;
        let end = IPV6_PAYLOAD + usize::from(u16::from_be_bytes(self.payload_len));
        if version_class >> 4 == 6 && end <= packet.len() as usize {
            Ok(())
        } else {
            Err(DropReason::Malformed)
        }
    }
}
