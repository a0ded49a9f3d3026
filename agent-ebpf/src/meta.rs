//! `Meta`: what the programs know about an IP packet, parsed once.

use core::mem::offset_of;

use agent_common::DropReason;

use crate::{
    address::Address,
    extensions,
    headers::{
        ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMPV6, IPV4_PAYLOAD, IPV6_PAYLOAD, IcmpType, Ipv4, Ipv6, L3,
        TCP_FLAGS, Transport,
    },
    packet::Packet,
    skip,
};

/// The first field is none of an address: where `Result<Meta, DropReason>` is an error, the reason is
/// there, and LLVM splits the field that shares its place. Parts of an address would be misaligned on the
/// stack.
#[repr(C)]
pub struct Meta {
    /// Length of the frame.
    len: usize,
    /// Offset of the transport header.
    pub payload: usize,
    pub source: Address,
    pub destination: Address,
    /// See [`Meta::transport`]. Not an `Option`: the verifier would walk all steps once more for `None`.
    transport: Transport,
    pub family: Family,
    /// IPv4's protocol or IPv6's next header, behind extension headers.
    pub protocol: u8,
    /// TTL or hop limit.
    pub hops: u8,
    /// As in [`extensions::Skipped`].
    extensions: u8,
    /// Flag "more fragments" and offset, as in IPv4. An IPv6 packet with a fragment header always has the
    /// flag: an atomic fragment is a fragment too.
    fragment: u16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Ipv4,
    Ipv6,
}

/// Where a packet comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// A pod or another host.
    Outside,
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
    /// version or lengths of a packet from outside contradict each other or the frame.
    #[inline(always)]
    pub fn parse(packet: &Packet, ethertype: u16, sender: Sender) -> Result<Self, DropReason> {
        match ethertype {
            ETHERTYPE_IPV4 => {
                let ip = packet.header::<Ipv4>(L3)?;
                if sender == Sender::Outside {
                    ip.check(packet)?;
                }
                Ok(Self::ipv4(packet, ip))
            }
            ETHERTYPE_IPV6 => {
                let ip = packet.header::<Ipv6>(L3)?;
                if sender == Sender::Outside {
                    ip.check(packet)?;
                }
                let meta = Self::ipv6(packet, ip);
                // The node would look behind any number of them, and the checks would not.
                if sender == Sender::Outside && meta.extensions == extensions::UNKNOWN {
                    return Err(DropReason::Malformed);
                }
                Ok(meta)
            }
            _ => Err(DropReason::Ethertype),
        }
    }

    #[inline(always)]
    fn ipv4(packet: &Packet, ip: &Ipv4) -> Self {
        let payload = L3 + ip.header_len();
        Self {
            source: Address::v4(ip.source),
            destination: Address::v4(ip.destination),
            family: Family::Ipv4,
            protocol: ip.protocol,
            hops: ip.ttl,
            fragment: u16::from_be_bytes(ip.fragment) & (Ipv4::MORE_FRAGMENTS | Ipv4::OFFSET),
            extensions: extensions::NONE,
            payload,
            len: packet.len() as usize,
            transport: Transport::read(packet, payload),
        }
    }

    #[inline(always)]
    fn ipv6(packet: &Packet, ip: &Ipv6) -> Self {
        let mut meta = Self {
            source: Address::v6(ip.source),
            destination: Address::v6(ip.destination),
            family: Family::Ipv6,
            protocol: ip.next_header,
            hops: ip.hop_limit,
            fragment: 0,
            extensions: extensions::NONE,
            payload: IPV6_PAYLOAD,
            len: packet.len() as usize,
            transport: Transport::new([0; 8]),
        };
        if extensions::is_extension(ip.next_header) {
            let skipped = skip::extensions(packet, ip.next_header);
            (meta.protocol, meta.fragment) = (skipped.protocol, skipped.fragment);
            (meta.payload, meta.extensions) = (usize::from(skipped.payload), skipped.extensions);
        }
        meta.transport = Transport::read(packet, meta.payload);
        meta
    }

    /// Whether the packet has IPv4 options, which the stack handles. A router need not look at IPv6 extension
    /// headers (RFC 8200, 4).
    #[inline(always)]
    pub fn has_options(&self) -> bool {
        self.family == Family::Ipv4 && self.payload != IPV4_PAYLOAD
    }

    /// Whether the packet has extension headers other than a fragment header.
    #[inline(always)]
    pub fn is_extended(&self) -> bool {
        self.extensions != extensions::NONE
    }

    #[inline(always)]
    pub fn is_fragment(&self) -> bool {
        self.fragment != 0
    }

    /// Flag "more fragments" and offset, as in IPv4. An IPv6 packet with a fragment header always has the
    /// flag.
    #[inline(always)]
    pub fn fragment(&self) -> u64 {
        self.fragment.into()
    }

    /// Whether a router may forward the packet as it is, but for its size.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        !self.has_options() && self.hops > 1 && !self.is_fragment()
    }

    /// Ports or ICMP type. `None` for a later fragment, and if the frame ends before.
    #[inline(always)]
    pub fn transport(&self) -> Option<Transport> {
        let is_there = self.payload + size_of::<Transport>() <= self.len && self.fragment & Ipv4::OFFSET == 0;
        is_there.then_some(self.transport)
    }

    /// As [`Meta::transport`], if that is not `None`.
    #[inline(always)]
    pub fn first_bytes(&self) -> Transport {
        self.transport
    }

    /// The source port of a packet with ports that is no later fragment; 0 if the frame ends before.
    #[inline(always)]
    pub fn source_port(&self) -> u64 {
        let [from, _] = self.transport.ports();
        from.into()
    }

    /// The flags of a TCP header that is no later fragment; none if the frame ends before.
    #[inline(always)]
    pub fn tcp_flags(&self, packet: &Packet) -> u8 {
        tcp_flags(packet, self.payload)
    }

    /// Type of an ICMPv6 message that directly follows the IPv6 header.
    ///
    /// # Errors
    /// `Malformed`, if the frame ends before the type.
    #[inline(always)]
    pub fn icmpv6_type(&self, packet: &Packet) -> Result<Option<u8>, DropReason> {
        if self.family != Family::Ipv6 || self.protocol != ICMPV6 || self.is_fragment() || self.is_extended()
        {
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

/// The identification of a fragmented packet, by the offset of its payload. Of an IPv6 packet that has more
/// extension headers behind the fragment header, something else.
#[inline(always)]
pub fn fragment_id(packet: &Packet, payload: usize, is_v6: bool) -> [u8; 4] {
    if is_v6 {
        // The last field of the header.
        packet.copy(payload - size_of::<[u8; 4]>()).unwrap_or_default()
    } else {
        let [a, b] = packet.copy(L3 + offset_of!(Ipv4, id)).unwrap_or_default();
        [0, 0, a, b]
    }
}

/// As [`Meta::tcp_flags`], by the offset of the header.
#[inline(always)]
pub fn tcp_flags(packet: &Packet, payload: usize) -> u8 {
    let [flags] = packet.copy(payload + TCP_FLAGS).unwrap_or_default();
    flags
}

// === impl Transport ===

impl Transport {
    #[inline(always)]
    fn read(packet: &Packet, offset: usize) -> Self {
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
    fn check(&self, packet: &Packet) -> Result<(), DropReason> {
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
    fn check(&self, packet: &Packet) -> Result<(), DropReason> {
        let [version_class, ..] = self.version_class_flow;
        let (len, end) = (usize::from(u16::from_be_bytes(self.payload_len)), packet.len() as usize);
        if version_class >> 4 != 6 || IPV6_PAYLOAD + len > end {
            return Err(DropReason::Malformed);
        }
        // The kernel cuts off what is behind the packet: a header there could hide the one that counts.
        // Frames with an extension header are never as short as those that Ethernet pads.
        if IPV6_PAYLOAD + len == end || !extensions::is_extension(self.next_header) {
            return Ok(());
        }
        // A length of zero means "over 64 KiB".
        if len == 0 && packet.is_gso() { Ok(()) } else { Err(DropReason::Malformed) }
    }
}
