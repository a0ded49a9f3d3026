//! Parses the first bytes of an Ethernet frame, as the programs captured it from a packet that they dropped.
//!
//! Any bytes are input: a pod sends what it likes, and the capture ends anywhere. The parser gives what the
//! bytes say for certain. It has no error and no loop that depends on a length in the packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrule_vif::Mac;

use super::packet::{Arp, Icmp, Ip, Macs, Network, Packet, Ports, TcpFlags, Transport, protocol};

/// Bytes that are not parsed yet.
struct Rest<'a>(&'a [u8]);

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IEEE 802.1Q: tags of customers and of services.
const ETHERTYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];
const MAX_VLAN_TAGS: usize = 2;

/// IPv6 extension headers; more than a capture holds.
const MAX_EXTENSIONS: usize = 16;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
/// Hop-by-hop options, routing, destination options, mobility, HIP, Shim6 (RFC 7045, 4), which state their
/// length in units of 8 bytes without the first unit.
const EXTENSIONS: [u8; 6] = [0, 43, 60, 135, 139, 140];

/// Parses a frame.
pub fn parse(frame: &[u8]) -> Packet {
    let mut rest = Rest(frame);
    let mut packet = Packet { macs: None, vlan: None, network: Network::Unknown };
    let Some((destination, source)) = rest.take().zip(rest.take()) else { return packet };
    packet.macs = Some(Macs { source: Mac(source), destination: Mac(destination) });
    for _ in 0..=MAX_VLAN_TAGS {
        let Some(ethertype) = rest.u16() else { return packet };
        if !ETHERTYPES_VLAN.contains(&ethertype) {
            packet.network = rest.network(ethertype).unwrap_or(Network::Other { ethertype });
            return packet;
        }
        packet.network = Network::Other { ethertype };
        let Some(tag) = rest.u16() else { return packet };
        packet.vlan.get_or_insert(tag & 0x0fff);
    }
    packet
}

// === impl Rest ===

impl Rest<'_> {
    fn network(&mut self, ethertype: u16) -> Option<Network> {
        match ethertype {
            ETHERTYPE_ARP => self.arp().map(Network::Arp),
            ETHERTYPE_IPV4 => self.ipv4().map(Network::Ip),
            ETHERTYPE_IPV6 => self.ipv6().map(Network::Ip),
            _ => None,
        }
    }

    /// RFC 826.
    fn arp(&mut self) -> Option<Arp> {
        // Ethernet, IPv4, and the lengths of their addresses.
        if self.take()? != [0, 1, 8, 0, 6, 4] {
            return None;
        }
        let operation = self.u16()?;
        let mut end = || Some((Mac(self.take()?), IpAddr::from(self.take::<4>()?)));
        Some(Arp { operation, sender: end()?, target: end()? })
    }

    /// RFC 791.
    fn ipv4(&mut self) -> Option<Ip> {
        let whole = self.0;
        let [version_ihl, _, high, low, _, _] = self.take()?;
        if version_ihl >> 4 != 4 {
            return None;
        }
        let fragment = self.u16()?;
        let [_, protocol, _, _] = self.take()?;
        let source = Ipv4Addr::from(self.take::<4>()?);
        let destination = Ipv4Addr::from(self.take::<4>()?);
        let header = usize::from(version_ihl & 0xf) * 4;
        // A frame may be padded; the length is 0 of segments that are larger than its 16 bits.
        let length = match u16::from_be_bytes([high, low]) {
            0 => whole.len(),
            length => whole.len().min(length.into()),
        };
        let is_first = fragment & 0x1fff == 0;
        let payload = (header >= 20).then(|| whole.get(header..length)).flatten();
        let transport = payload.filter(|_| is_first).and_then(|payload| Rest(payload).transport(protocol));
        Some(Ip {
            source: source.into(),
            destination: destination.into(),
            protocol,
            // Neither "don't fragment" nor the reserved bit.
            is_fragment: fragment & 0x3fff != 0,
            transport,
        })
    }

    /// RFC 8200.
    fn ipv6(&mut self) -> Option<Ip> {
        let [version, ..] = self.take::<4>()?;
        if version >> 4 != 6 {
            return None;
        }
        let length = usize::from(self.u16()?);
        let [protocol, _] = self.take()?;
        let source = Ipv6Addr::from(self.take::<16>()?);
        let destination = Ipv6Addr::from(self.take::<16>()?);
        // 0 for a jumbogram.
        let payload = self.0.get(..length).filter(|_| length > 0).unwrap_or(self.0);
        let mut ip = Ip {
            source: source.into(),
            destination: destination.into(),
            protocol,
            is_fragment: false,
            transport: None,
        };
        Rest(payload).extensions(&mut ip);
        Some(ip)
    }

    /// Follows the chain of extension headers to the transport protocol, or to where the packet is cut off.
    fn extensions(&mut self, ip: &mut Ip) -> Option<()> {
        for _ in 0..MAX_EXTENSIONS {
            match ip.protocol {
                FRAGMENT => {
                    let [next, _] = self.take()?;
                    let offset = self.u16()?;
                    self.take::<4>()?;
                    (ip.protocol, ip.is_fragment) = (next, true);
                    if offset >> 3 != 0 {
                        return None;
                    }
                }
                AUTHENTICATION => {
                    // Units of 4 bytes, without two of them (RFC 4302, 2.2).
                    let [next, length] = self.take()?;
                    self.skip(usize::from(length) * 4 + 6)?;
                    ip.protocol = next;
                }
                extension if EXTENSIONS.contains(&extension) => {
                    let [next, length] = self.take()?;
                    self.skip(usize::from(length) * 8 + 6)?;
                    ip.protocol = next;
                }
                protocol => {
                    ip.transport = self.transport(protocol);
                    return None;
                }
            }
        }
        None
    }

    fn transport(&mut self, protocol: u8) -> Option<Transport> {
        match protocol {
            protocol::TCP => {
                let ports = self.ports()?;
                // Two numbers and the header's length come before.
                let flags = self.0.get(9).copied().map(TcpFlags);
                Some(Transport::Tcp(ports, flags))
            }
            protocol::UDP => self.ports().map(Transport::Udp),
            protocol::SCTP => self.ports().map(Transport::Sctp),
            protocol::ICMPV4 => self.icmp().map(Transport::Icmpv4),
            protocol::ICMPV6 => self.icmp().map(Transport::Icmpv6),
            _ => None,
        }
    }

    fn ports(&mut self) -> Option<Ports> {
        Some(Ports { source: self.u16()?, destination: self.u16()? })
    }

    fn icmp(&mut self) -> Option<Icmp> {
        let [kind, code] = self.take()?;
        Some(Icmp { kind, code })
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }
}
