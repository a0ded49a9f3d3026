//! What the runtime asks for beside the interface: ports of the node, and limits of the pod's traffic.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ferrule_vif::Addresses;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The requests of one ADD.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wishes {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPort>,
    /// Of what the pod receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Rate>,
    /// Of what the pod sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Rate>,
    /// Wishes that only a later release knows: kept for the way back to it.
    #[serde(flatten)]
    pub later: Map<String, Value>,
}

/// A limit of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Per second.
    pub bits: u64,
    /// What may pass at once; 0 for the agent's choice.
    pub burst_bits: u64,
}

/// A port of the node that leads to a port of the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostPort {
    pub protocol: Transport,
    /// An address of the node; an unspecified one for all addresses of its family, `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    pub port: u16,
    pub pod_port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Tcp,
    Udp,
    Sctp,
}

/// A port of the node, of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Unspecified for all addresses of the family.
    pub address: IpAddr,
    pub protocol: Transport,
    pub port: u16,
}

/// Where the packets to a port of the node go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    pub from: Place,
    pub to: SocketAddr,
}

// === impl Wishes ===

impl Wishes {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn has_host_ports(&self) -> bool {
        !self.host_ports.is_empty()
    }

    /// The mappings to a pod with these addresses, each once.
    ///
    /// # Errors
    /// A port on an address of a family that the pod lacks.
    pub fn mappings(&self, pod: Addresses) -> Result<Vec<Mapping>, HostPort> {
        let mut all: Vec<Mapping> = Vec::new();
        for host_port in &self.host_ports {
            let of_one = host_port.mappings(pod);
            if of_one.is_empty() {
                return Err(*host_port);
            }
            all.extend(of_one);
        }
        all.sort_by_key(|it| (it.from, it.to));
        all.dedup();
        Ok(all)
    }

    /// The requests that lead to these mappings.
    pub fn of(mappings: impl IntoIterator<Item = Mapping>) -> Self {
        let host_port = |Mapping { from, to }: Mapping| HostPort {
            protocol: from.protocol,
            address: Some(from.address),
            port: from.port,
            pod_port: to.port(),
        };
        Self { host_ports: mappings.into_iter().map(host_port).collect(), ..Self::default() }
    }
}

// === impl Rate ===

impl Rate {
    /// From here on, a burst is what a runtime passes for a pod, which cannot name one, and no bucket at all:
    /// half a gigabyte with containerd (2^32-1 bits), four with CRI-O (eight times as much, or one bit less).
    const UNSET: u64 = u32::MAX as u64;
    /// Bytes: the largest packet before segmentation, and the size below which some senders stall.
    const LEAST_BURST: u64 = 64 * 1024;
    /// The agent's choice, in fractions of a second: 50 ms.
    const BURST_TIME: u64 = 20;
    /// How long a packet may wait beyond a burst, in fractions of a second: as the reference plugin
    /// `bandwidth`, 25 ms.
    const LATENCY: u64 = 40;
    /// Bytes: the queue is memory of the node, and this one is full after 50 ms at 10 Gbit/s.
    const MOST_QUEUED: u64 = 64 * 1024 * 1024;

    /// Per second, at least one.
    pub fn bytes(self) -> u64 {
        (self.bits / 8).max(1)
    }

    pub fn burst_bytes(self) -> u32 {
        let bytes = match self.burst_bits {
            0 | Self::UNSET.. => self.own_burst(),
            bits => (bits / 8).max(Self::LEAST_BURST),
        };
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// What may wait: bytes. A burst larger than the agent's choice passes at once, and is no reason for a
    /// longer queue.
    pub fn queue_bytes(self) -> u32 {
        let burst = u64::from(self.burst_bytes()).min(self.own_burst());
        let bytes = (self.bytes() / Self::LATENCY).saturating_add(burst).min(Self::MOST_QUEUED);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    fn own_burst(self) -> u64 {
        (self.bytes() / Self::BURST_TIME).max(Self::LEAST_BURST)
    }
}

// === impl HostPort ===

impl HostPort {
    fn mappings(&self, pod: Addresses) -> Vec<Mapping> {
        let Self { protocol, address, port, pod_port } = *self;
        let to_pod = |own: IpAddr| {
            let all = if own.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let address = address.unwrap_or(all);
            let from = Place { address, protocol, port };
            (own.is_ipv4() == address.is_ipv4()).then(|| Mapping { from, to: SocketAddr::new(own, pod_port) })
        };
        pod.iter().filter_map(to_pod).collect()
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{} {}", self.protocol, SocketAddr::new(address, self.port)),
            None => write!(f, "{} {}", self.protocol, self.port),
        }
    }
}

// === impl Place ===

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol, SocketAddr::new(self.address, self.port))
    }
}

// === impl Transport ===

impl Transport {
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The number in IP headers.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.number() == number)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(address: Option<&str>) -> HostPort {
        let address = address.map(|it| it.parse().unwrap());
        HostPort { protocol: Transport::Tcp, address, port: 8080, pod_port: 80 }
    }

    fn pod() -> Addresses {
        Addresses { v4: Some([10, 0, 0, 2].into()), v6: Some("fd00::2".parse().unwrap()) }
    }

    fn shown(ports: &[HostPort], pod: Addresses) -> Result<Vec<String>, HostPort> {
        let wishes = Wishes { host_ports: ports.to_vec(), ..Wishes::default() };
        let line = |it: &Mapping| format!("{} > {}", it.from, it.to);
        Ok(wishes.mappings(pod)?.iter().map(line).collect())
    }

    #[test]
    fn a_port_without_an_address_is_on_all_addresses_of_the_pods_families() {
        let (v4, v6) = ("TCP 0.0.0.0:8080 > 10.0.0.2:80", "TCP [::]:8080 > [fd00::2]:80");
        assert_eq!(shown(&[port(None)], pod()).unwrap(), [v4, v6]);
        assert_eq!(shown(&[port(Some("0.0.0.0"))], pod()).unwrap(), [v4]);
        assert_eq!(shown(&[port(Some("::")), port(None)], pod()).unwrap(), [v4, v6], "each once");
        assert_eq!(shown(&[port(None)], Addresses { v6: None, ..pod() }).unwrap(), [v4]);
        assert_eq!(shown(&[port(Some("127.0.0.1"))], pod()).unwrap(), ["TCP 127.0.0.1:8080 > 10.0.0.2:80"]);
    }

    #[test]
    fn a_port_of_a_family_that_the_pod_lacks_is_refused() {
        let v6 = Addresses { v4: None, ..pod() };
        for address in ["0.0.0.0", "192.0.2.1"] {
            assert_eq!(shown(&[port(None), port(Some(address))], v6), Err(port(Some(address))));
        }
    }

    #[test]
    fn a_burst_that_no_user_has_chosen_is_50_ms_and_any_holds_a_large_packet() {
        let burst = |bits, burst_bits| Rate { bits, burst_bits }.burst_bytes();
        // None, and what containerd and two versions of CRI-O pass for none.
        for unset in [0, 4_294_967_295, 34_359_738_359, 34_359_738_360, u64::MAX] {
            assert_eq!(burst(1_000_000_000, unset), 6_250_000, "{unset}");
        }
        assert_eq!(burst(1_000_000_000, 4_294_967_294), 536_870_911, "a user's");
        assert_eq!((burst(1_000_000, 0), burst(1_000_000, 8)), (65_536, 65_536));
        assert_eq!(burst(1_000_000, 8_000_000), 1_000_000);
        assert_eq!(
            (Rate { bits: 9, burst_bits: 0 }.bytes(), Rate { bits: 1, burst_bits: 0 }.bytes()),
            (1, 1)
        );
        assert_eq!(burst(u64::MAX, u64::MAX), u32::MAX);
    }

    #[test]
    fn the_queue_has_25_ms_and_a_burst_and_never_more_than_64_mib() {
        let queue = |bits, burst_bits| Rate { bits, burst_bits }.queue_bytes();
        assert_eq!(queue(1_000_000_000, 0), 3_125_000 + 6_250_000);
        assert_eq!(queue(1_000_000_000, 800_000), 3_125_000 + 100_000, "a user's burst");
        assert_eq!(queue(8_000_000, 4_294_967_294), 25_000 + 65_536, "not for minutes");
        assert_eq!((queue(1, 0), queue(1, u64::MAX)), (65_536, 65_536));
        assert_eq!((queue(u64::MAX, 0), queue(10_000_000_000, u64::MAX)), (67_108_864, 67_108_864));
    }

    #[test]
    fn mappings_are_rebuilt_and_records_without_wishes_are_read() {
        let host_ports = vec![port(None), port(Some("127.0.0.1"))];
        let ports = Wishes { host_ports, ..Wishes::default() };
        let mappings = ports.mappings(pod()).unwrap();
        assert_eq!(Wishes::of(mappings.clone()).mappings(pod()).unwrap(), mappings);
        let json = serde_json::to_string(&ports).unwrap();
        assert_eq!(serde_json::from_str::<Wishes>(&json).unwrap(), ports);
        assert!(serde_json::from_str::<Wishes>("{}").unwrap().is_empty());
    }
}
