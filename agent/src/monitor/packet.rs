//! What is known of a packet: the facts that its captured bytes, or the key of a flow, give.

use std::net::IpAddr;

use ferrule_vif::Mac;

/// A packet, as far as its bytes were captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// `None` for a flow, and for a frame that is cut off.
    pub macs: Option<Macs>,
    /// The ID of the outermost VLAN tag.
    pub vlan: Option<u16>,
    pub network: Network,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Macs {
    pub source: Mac,
    pub destination: Mac,
}

/// The network layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Cut off before the type.
    Unknown,
    /// Of another type, or too short or wrong for its type.
    Other {
        ethertype: u16,
    },
    Arp(Arp),
    Ip(Ip),
}

/// ARP for IPv4 over Ethernet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp {
    /// 1: request. 2: reply.
    pub operation: u16,
    pub sender: (Mac, IpAddr),
    pub target: (Mac, IpAddr),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Behind extension headers; that of the extension header at which the packet is cut off.
    pub protocol: u8,
    pub is_fragment: bool,
    /// `None` for other protocols, later fragments, and packets that are cut off.
    pub transport: Option<Transport>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// The flags are `None` if the header is cut off behind the ports.
    Tcp(Ports, Option<TcpFlags>),
    Udp(Ports),
    Sctp(Ports),
    Icmpv4(Icmp),
    Icmpv6(Icmp),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    pub source: u16,
    pub destination: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Icmp {
    pub kind: u8,
    pub code: u8,
}

/// The flags of a TCP header (RFC 9293, 3.1; RFC 3168, 6.1): FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE
/// 64, CWR 128.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TcpFlags(pub u8);

/// Protocol numbers of IANA.
pub mod protocol {
    pub const ICMPV4: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ICMPV6: u8 = 58;
    pub const SCTP: u8 = 132;
}

// === impl Packet ===

impl Packet {
    pub fn ip(&self) -> Option<&Ip> {
        match &self.network {
            Network::Ip(ip) => Some(ip),
            Network::Unknown | Network::Other { .. } | Network::Arp(_) => None,
        }
    }

    pub fn transport(&self) -> Option<Transport> {
        self.ip()?.transport
    }

    /// What rules of policies ask about: protocol and destination port. `None` if the ports are not known.
    pub fn traffic(&self) -> Option<(u8, u16)> {
        let Ip { protocol, transport, .. } = self.ip()?;
        let has_ports = matches!(*protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
        let port = transport.and_then(|it| it.ports()).map(|it| it.destination);
        Some((*protocol, if has_ports { port? } else { 0 }))
    }
}

// === impl Transport ===

impl Transport {
    /// `None` for ICMP.
    pub fn ports(&self) -> Option<Ports> {
        match self {
            Self::Tcp(ports, _) | Self::Udp(ports) | Self::Sctp(ports) => Some(*ports),
            Self::Icmpv4(_) | Self::Icmpv6(_) => None,
        }
    }
}

// === impl TcpFlags ===

impl TcpFlags {
    pub const SYN: Self = Self(2);
    pub const ACK: Self = Self(16);
    const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];

    /// Whether all flags of another set are in this one.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The names of the flags, lowest bit first.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        (0..).zip(Self::NAMES).filter(move |(bit, _)| self.0 >> bit & 1 == 1).map(|(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_traffic_of_a_packet_is_its_protocol_and_destination_port_as_far_as_both_are_there() {
        let packet = |protocol, transport| {
            let [source, destination] = ["10.0.0.1", "10.0.0.2"].map(|it| it.parse().unwrap());
            let ip = Ip { source, destination, protocol, is_fragment: false, transport };
            Packet { macs: None, vlan: None, network: Network::Ip(ip) }.traffic()
        };
        let ports = Ports { source: 1, destination: 53 };
        assert_eq!(packet(protocol::UDP, Some(Transport::Udp(ports))), Some((17, 53)));
        assert_eq!(packet(protocol::TCP, Some(Transport::Tcp(ports, None))), Some((6, 53)));
        assert_eq!(packet(protocol::TCP, None), None, "a later fragment");
        let echo = Transport::Icmpv4(Icmp { kind: 8, code: 0 });
        assert_eq!(packet(protocol::ICMPV4, Some(echo)), Some((1, 0)));
        assert_eq!(packet(47, None), Some((47, 0)));
        assert_eq!(Packet { macs: None, vlan: None, network: Network::Unknown }.traffic(), None);
    }
}
