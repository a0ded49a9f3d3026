//! The nftables table `inet ferrule`: pods' packets to the world get an address of the node, flows of pods
//! that the host translates get client ports that no flow past the host's stack has, and the tunnel between
//! nodes is out of conntrack's sight and out of the Services' reach.
//!
//! ```text
//! table inet ferrule {
//!     set pods4 { type ipv4_addr; flags interval; … }         what is masqueraded, and to where not;
//!     set kept4 { type ipv4_addr; flags interval; … }         pods6 and kept6 likewise
//!     set elsewhere4 { type ipv4_addr; flags interval; … }    the other nodes' pods; elsewhere6 likewise
//!     chain to_world {
//!         meta l4proto tcp masquerade to :32768-65535
//!         meta l4proto udp masquerade to :32768-65535 fully-random        sctp likewise
//!         masquerade fully-random
//!     }
//!     chain to_backend {
//!         tcp sport >= 1024 snat ip to ip saddr:1024-32767                    by the client's port
//!         udp sport >= 1024 snat ip to ip saddr:4790-32767 fully-random       sctp likewise, and IPv6
//!     }
//!     chain of_pod {
//!         ct status dnat goto to_backend
//!         tcp sport 1024-32767 goto to_backend
//!     }
//!     chain postrouting {
//!         type nat hook postrouting priority srcnat + 10; policy accept;
//!         meta mark & 0x0000e000 != 0x00000000 return
//!         ip saddr @pods4 ip daddr != @kept4 goto to_world
//!         ip6 saddr @pods6 ip6 daddr != @kept6 goto to_world
//!         iifname "fr*" goto of_pod
//!         oifname "fr*" ip saddr @elsewhere4 goto of_pod                      ip6 and elsewhere6 likewise
//!     }
//!     set nodes4 { type ipv4_addr; … }        with a tunnel: where it ends; nodes6 likewise
//!     chain tunnel_in {
//!         type filter hook prerouting priority raw; policy accept;
//!         udp dport 4789 ip daddr @nodes4 ip saddr @nodes4 notrack        ip6 and nodes6 likewise
//!     }
//!     chain tunnel_out { type filter hook output priority raw; … }        the same rules
//!     chain not_tunnel {
//!         type filter hook postrouting priority srcnat - 10; policy accept;
//!         udp dport 4789 ip daddr @nodes4 ct state != untracked drop      ip6 and nodes6 likewise
//!     }
//! }
//! ```
//!
//! Conntrack need not know the tunnel's packets: it would look at every packet twice, and would have an entry
//! for each flow inside of the tunnel.
//!
//! A datagram to another node's tunnel port that conntrack sees comes from no tunnel, but has another source
//! than a node, or was translated: once kube-proxy has given it this node's address, the other node would
//! take it for a packet of this one. Conntrack's state of the destination would tell less: IPVS translates
//! without it. The chain is behind all translations of destinations, also those of packets that the node
//! itself sends.
//!
//! A TCP connection to the world keeps its port, if no other pod's has it, for the reason of the next lines.
//!
//! A TCP connection that the host translates gets the same port whenever it comes from the same port: the
//! backend compares timestamps and sequence numbers with those of the last connection from there, while it
//! waits (TIME-WAIT), and another client port has unrelated ones. Flows of UDP and SCTP get random ports:
//! nothing tells the dataplane that one begins past the stack, and the host must not keep such a port.
//!
//! A connection from such a port keeps the port while it is free, also one that the host does not translate:
//! conntrack would give that another one of all ports, among them those of flows past the stack.
//!
//! The same holds for a pod of another node that calls a pod of this one: by a port of this node, or by the
//! pod's own address. What this node leads to a third one has no rule: its replies do not come back this way.
//!
//! A change replaces the whole table in one transaction: packets see the old rules or the new ones, and
//! established flows keep their translation, which conntrack holds.

use std::{io, net::IpAddr};

use agent_common::TRANSLATED_PORTS;
use ipnet::IpNet;

use super::{
    super::{message::Attribute, netlink::NetlinkError, veth},
    expression::{
        AT_LEAST, AT_MOST, Choice, EQUAL, FAMILY, PROTOCOL, Verdict, came_by, compare, destination_port,
        header, is_destination_translated, is_in, is_not_in, is_tracked, leaves_by, masquerade,
        masquerade_to_ports, meta, notrack, port, return_if_marked, source_port, translate_source, verdict,
    },
    numbers::{AT_OUTPUT, AT_POSTROUTING, AT_PREROUTING, IPV4, IPV6},
    sets::Set,
    table::{self, Content, Rule, hooked, named},
};

/// The contents of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Sources: addresses of this node's pods.
    pub sources: Vec<IpNet>,
    /// Destinations that see the pods' own addresses.
    pub kept: Vec<IpNet>,
    /// The other nodes' ranges.
    pub elsewhere: Vec<IpNet>,
    /// The first and the last port of the node's address, for protocols with ports.
    pub ports: (u16, u16),
    /// The first and the last client port of UDP and SCTP flows that the host translates for pods; those of
    /// TCP connections are [`TRANSLATED_PORTS`].
    pub translated_ports: (u16, u16),
    /// `None` if no packet takes the tunnel between nodes.
    pub tunnel: Option<Tunnel>,
}

/// The tunnel between nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// UDP port of all nodes.
    pub port: u16,
    /// Addresses of all nodes, this one included.
    pub nodes: Vec<IpAddr>,
}

/// What rules need of a family.
struct Family {
    number: u8,
    /// The set of the nodes' addresses.
    nodes: &'static str,
    /// The set of the other nodes' ranges.
    elsewhere: &'static str,
    /// Offsets of source and destination in the header, and their length.
    source: u32,
    destination: u32,
    length: u32,
}

pub const NAME: &str = "ferrule";
const POSTROUTING: &str = "postrouting";
const TO_WORLD: &str = "to_world";
const TO_BACKEND: &str = "to_backend";
const OF_POD: &str = "of_pod";
const TUNNEL_IN: &str = "tunnel_in";
const TUNNEL_OUT: &str = "tunnel_out";
const NOT_TUNNEL: &str = "not_tunnel";
/// After all others at `NF_IP_PRI_NAT_SRC` (100, `srcnat`): the first translation counts.
const PRIORITY: i32 = 110;
/// Before all translations of sources.
const NOT_TUNNEL_PRIORITY: i32 = 90;
/// `NF_IP_PRI_RAW` in `linux/netfilter_ipv4.h`: before conntrack.
const RAW: i32 = -300;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FAMILIES: [Family; 2] = [
    Family { number: IPV4, nodes: "nodes4", elsewhere: "elsewhere4", source: 12, destination: 16, length: 4 },
    Family { number: IPV6, nodes: "nodes6", elsewhere: "elsewhere6", source: 8, destination: 24, length: 16 },
];
/// Protocols with ports: TCP, UDP, SCTP.
const WITH_PORTS: [u8; 3] = [TCP, UDP, 132];

// === impl Table ===

impl Table {
    /// Writes the table, in the place of an earlier one.
    ///
    /// # Errors
    /// If the kernel refuses; the earlier table stays.
    pub fn write(&self) -> Result<(), NetlinkError> {
        self.content().write()
    }

    /// The first difference from the kernel's table.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn difference(&self) -> io::Result<Option<String>> {
        self.content().difference()
    }

    fn content(&self) -> Content {
        Content { name: NAME, sets: self.sets(), chains: self.chains(), rules: self.rules() }
    }

    fn sets(&self) -> Vec<Set> {
        let mut sets = vec![
            Set::of_networks("pods4", true, &self.sources),
            Set::of_networks("kept4", true, &self.kept),
            Set::of_networks("pods6", false, &self.sources),
            Set::of_networks("kept6", false, &self.kept),
            Set::of_networks("elsewhere4", true, &self.elsewhere),
            Set::of_networks("elsewhere6", false, &self.elsewhere),
        ];
        if let Some(Tunnel { nodes, .. }) = &self.tunnel {
            sets.push(Set::of_addresses("nodes4", true, nodes));
            sets.push(Set::of_addresses("nodes6", false, nodes));
        }
        sets
    }

    fn chains(&self) -> Vec<(&'static str, Vec<Attribute>)> {
        let mut chains = vec![
            named(NAME, TO_WORLD),
            named(NAME, TO_BACKEND),
            named(NAME, OF_POD),
            hooked(NAME, POSTROUTING, "nat", (AT_POSTROUTING, PRIORITY)),
        ];
        if self.tunnel.is_some() {
            chains.extend([
                hooked(NAME, TUNNEL_IN, "filter", (AT_PREROUTING, RAW)),
                hooked(NAME, TUNNEL_OUT, "filter", (AT_OUTPUT, RAW)),
                hooked(NAME, NOT_TUNNEL, "filter", (AT_POSTROUTING, NOT_TUNNEL_PRIORITY)),
            ]);
        }
        chains
    }

    fn rules(&self) -> Vec<(&'static str, Vec<Rule>)> {
        let (first, last) = self.ports;
        let with_ports = |protocol: u8| {
            let is_protocol = [meta(PROTOCOL), compare(EQUAL, &[protocol])];
            is_protocol
                .into_iter()
                .chain([port(1, first), port(2, last), masquerade_to_ports(protocol != TCP)])
                .collect()
        };
        let mut to_world: Vec<Rule> = WITH_PORTS.into_iter().map(with_ports).collect();
        to_world.push(vec![masquerade(true)]);
        let marked = return_if_marked();
        // Offsets of source and destination in the header, and their length.
        let v4 = of_family(IPV4, ("pods4", 12), ("kept4", 16), 4);
        let v6 = of_family(IPV6, ("pods6", 8), ("kept6", 24), 16);
        let translated = is_destination_translated().into_iter().chain([verdict(Verdict::Goto(TO_BACKEND))]);
        let (first, last) = TRANSLATED_PORTS;
        let by_stack = vec![
            meta(PROTOCOL),
            compare(EQUAL, &[TCP]),
            source_port(),
            compare(AT_LEAST, &first.to_be_bytes()),
            compare(AT_MOST, &last.to_be_bytes()),
            verdict(Verdict::Goto(TO_BACKEND)),
        ];
        let of_own = [&came_by(veth::PREFIX)[..], &[verdict(Verdict::Goto(OF_POD))]].concat();
        let [of_remote_v4, of_remote_v6] = FAMILIES.map(|it| {
            let leaves = leaves_by(veth::PREFIX);
            [&leaves[..], &it.is(), &it.is_from(it.elsewhere), &[verdict(Verdict::Goto(OF_POD))]].concat()
        });
        let to_backend = [(IPV4, 12, 4), (IPV6, 8, 16)].into_iter().flat_map(|family| {
            WITH_PORTS.map(|protocol| with_other_port(protocol, family, self.translated_ports))
        });
        let mut rules = vec![
            (TO_WORLD, to_world),
            (TO_BACKEND, to_backend.collect()),
            (OF_POD, vec![translated.collect(), by_stack]),
            (POSTROUTING, vec![marked, v4, v6, of_own, of_remote_v4, of_remote_v6]),
        ];
        if let Some(Tunnel { port, .. }) = self.tunnel {
            let untracked =
                || FAMILIES.map(|it| [it.is_to_tunnel(port), it.is_from(it.nodes), vec![notrack()]].concat());
            let untracked = || untracked().to_vec();
            let tracked = || [is_tracked().to_vec(), vec![verdict(Verdict::Drop)]].concat();
            let dropped = FAMILIES.map(|it| [it.is_to_tunnel(port), tracked()].concat()).to_vec();
            rules.extend([(TUNNEL_IN, untracked()), (TUNNEL_OUT, untracked()), (NOT_TUNNEL, dropped)]);
        }
        rules
    }
}

/// Deletes the table, if it exists. Returns whether it did.
///
/// # Errors
/// If the kernel refuses.
pub fn remove() -> Result<bool, NetlinkError> {
    table::remove(NAME)
}

// === impl Family ===

impl Family {
    /// A datagram to a node's tunnel port.
    fn is_to_tunnel(&self, port: u16) -> Rule {
        vec![meta(PROTOCOL), compare(EQUAL, &[UDP]), destination_port(), compare(EQUAL, &port.to_be_bytes())]
            .into_iter()
            .chain(self.is())
            .chain([header(self.destination, self.length), is_in(self.nodes)])
            .collect()
    }

    fn is(&self) -> Rule {
        vec![meta(FAMILY), compare(EQUAL, &[self.number])]
    }

    /// The source is in a set.
    fn is_from(&self, set: &str) -> Rule {
        vec![header(self.source, self.length), is_in(set)]
    }
}

/// A packet of a family from a source in one set to a destination outside of another goes to [`TO_WORLD`].
fn of_family(family: u8, source: (&str, u32), kept: (&str, u32), length: u32) -> Rule {
    vec![
        meta(FAMILY),
        compare(EQUAL, &[family]),
        header(source.1, length),
        is_in(source.0),
        header(kept.1, length),
        is_not_in(kept.0),
        verdict(Verdict::Goto(TO_WORLD)),
    ]
}

/// A flow of a protocol gets another client port, unless its own is privileged. `offset` and `length` are
/// those of the source in a family's header; `others` are the ports for protocols other than TCP.
fn with_other_port(protocol: u8, (family, offset, length): (u8, u32, u32), others: (u16, u16)) -> Rule {
    let ((first, last), choice) = match protocol {
        TCP => (TRANSLATED_PORTS, Choice::OfClient),
        _ => (others, Choice::Random),
    };
    vec![
        meta(PROTOCOL),
        compare(EQUAL, &[protocol]),
        source_port(),
        compare(AT_LEAST, &TRANSLATED_PORTS.0.to_be_bytes()),
        meta(FAMILY),
        compare(EQUAL, &[family]),
        header(offset, length),
        port(2, first),
        port(3, last),
        translate_source(family, choice),
    ]
}
