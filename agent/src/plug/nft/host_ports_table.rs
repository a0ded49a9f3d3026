//! The nftables table `inet ferrule-ports`: packets to ports of the node that lead to pods.
//!
//! ```text
//! table inet ferrule-ports {
//!     map own4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; … }   one address
//!     map any4 { type inet_proto . inet_service : ipv4_addr . inet_service; … }    all of the node's
//!     set pods4 { type ipv4_addr . ipv4_addr; … }    each pod with such a port, twice; own6, any6 and pods6
//!     chain ports {
//!         meta nfproto ipv4 dnat ip to ip daddr . meta l4proto . th dport map @own4
//!         meta nfproto ipv4 dnat ip to meta l4proto . th dport map @any4      ip6 likewise
//!     }
//!     chain prerouting { type nat hook prerouting priority dstnat + 10; fib daddr type local goto ports }
//!     chain output { type nat hook output priority dstnat + 10; fib daddr type local goto ports }
//!     chain postrouting {
//!         type nat hook postrouting priority srcnat + 5;
//!         meta mark & 0x0000e000 != 0x00000000 return
//!         oifname "fr*" ct status dnat ip saddr 127.0.0.0/8 masquerade
//!         oifname "fr*" ct status dnat ip saddr . ip daddr @pods4 masquerade  ip6 and pods6 likewise
//!     }
//! }
//! ```
//!
//! Behind kube-proxy's rules, whose NodePorts come first. The source stays, with two exceptions, to which the
//! pod could not reply: the loopback address of the node, and the pod's own address.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use super::{
    super::{netlink::NetlinkError, veth},
    expression::{
        EQUAL, FAMILY, Verdict, begins_with, compare, header_at, is_destination_translated, is_in,
        is_to_node, leaves_by, look_up, masquerade, meta, protocol_and_port_at, return_if_marked,
        translate_destination, verdict,
    },
    nfnetlink,
    numbers::{AT_OUTPUT, AT_POSTROUTING, AT_PREROUTING, IPV4, IPV6},
    sets::{self, Element, Kind, PROTOCOL, SERVICE, Set},
    table::{self, Content, Rule, explained, hooked, named},
};
use crate::registry::{Mapping, Place, Transport};

/// The names and offsets of a family.
struct Family {
    number: u8,
    is_ipv4: bool,
    /// The map of the ports of single addresses.
    own: &'static str,
    /// The map of the ports of all addresses.
    any: &'static str,
    /// The set of pods with ports, for their packets to themselves.
    pods: &'static str,
    /// Offsets of source and destination in the header, and their length.
    source: u32,
    destination: u32,
    length: u32,
    /// The beginning of loopback addresses that leave the node; Linux routes none of IPv6.
    loopback: Option<&'static [u8]>,
}

pub const NAME: &str = "ferrule-ports";
const PORTS: &str = "ports";
const PREROUTING: &str = "prerouting";
const OUTPUT: &str = "output";
const POSTROUTING: &str = "postrouting";
/// After kube-proxy's at `NF_IP_PRI_NAT_DST` (-100, `dstnat`).
const PRIORITY: i32 = -90;
/// After kube-proxy's at `NF_IP_PRI_NAT_SRC` (100, `srcnat`), before those of the table `inet ferrule`.
const SOURCE_PRIORITY: i32 = 105;
const FAMILIES: [Family; 2] = [
    Family {
        number: IPV4,
        is_ipv4: true,
        own: "own4",
        any: "any4",
        pods: "pods4",
        source: 12,
        destination: 16,
        length: 4,
        loopback: Some(&[127]),
    },
    Family {
        number: IPV6,
        is_ipv4: false,
        own: "own6",
        any: "any6",
        pods: "pods6",
        source: 8,
        destination: 24,
        length: 16,
        loopback: None,
    },
];

/// Writes the table, in the place of an earlier one.
///
/// # Errors
/// If the kernel refuses; the earlier table stays.
pub fn write(mappings: &[Mapping]) -> Result<(), NetlinkError> {
    content(mappings).write()
}

/// Adds to the kernel's table.
///
/// # Errors
/// If the kernel refuses, also without a table; nothing is changed.
pub fn add(mappings: &[Mapping]) -> Result<(), NetlinkError> {
    let changes: Vec<_> = sets(mappings).iter().flat_map(|it| it.additions(NAME)).collect();
    nfnetlink::commit(&changes).map_err(explained)
}

/// Removes from the kernel's table, which must have all of them.
///
/// # Errors
/// If the kernel refuses; nothing is changed.
pub fn remove(mappings: &[Mapping]) -> Result<(), NetlinkError> {
    let changes: Vec<_> = sets(mappings).iter().flat_map(|it| it.removals(NAME)).collect();
    nfnetlink::commit(&changes)
}

/// Deletes the table, if it exists.
///
/// # Errors
/// If the kernel refuses.
pub fn delete() -> Result<bool, NetlinkError> {
    table::remove(NAME)
}

/// Whether the kernel has the table.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn exists() -> io::Result<bool> {
    table::exists(NAME)
}

/// The first difference from the kernel's table.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn difference(mappings: &[Mapping]) -> io::Result<Option<String>> {
    content(mappings).difference()
}

/// What the kernel's table has.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn read() -> io::Result<Vec<Mapping>> {
    let mut mappings = Vec::new();
    for family in FAMILIES {
        for map in [family.own, family.any] {
            mappings.extend(sets::read(NAME, map)?.iter().filter_map(|it| family.decode(it)));
        }
    }
    Ok(mappings)
}

// === impl Family ===

impl Family {
    fn sets(&self, mappings: &[Mapping]) -> [Set; 3] {
        let address = Kind::address(self.is_ipv4);
        let to = Kind::of_several(&[address, SERVICE]);
        let mappings = || mappings.iter().filter(|it| it.from.address.is_ipv4() == self.is_ipv4);
        let pairs = |is_any: bool| {
            let of_map = mappings().filter(move |it| it.from.address.is_unspecified() == is_any);
            of_map.map(|it| (key(&it.from), [octets(it.to.ip()), padded(it.to.port())].concat()))
        };
        let own = (Kind::of_several(&[address, PROTOCOL, SERVICE]), to);
        let any = (Kind::of_several(&[PROTOCOL, SERVICE]), to);
        let pods: BTreeSet<_> = mappings().map(|it| octets(it.to.ip()).repeat(2)).collect();
        [
            Set::of_pairs(self.own, own, pairs(false)),
            Set::of_pairs(self.any, any, pairs(true)),
            Set::of_keys(self.pods, Kind::of_several(&[address, address]), pods),
        ]
    }

    fn is_family(&self) -> Rule {
        vec![meta(FAMILY), compare(EQUAL, &[self.number])]
    }

    fn to_pod(&self) -> [Rule; 2] {
        let translated = |map| [look_up(map), translate_destination(self.number, self.length)];
        let own = [self.is_family(), vec![header_at(0, self.destination, self.length)]];
        let own = own.into_iter().flatten().chain(protocol_and_port_at(self.length / 4));
        let any = self.is_family().into_iter().chain(protocol_and_port_at(0));
        [own.chain(translated(self.own)).collect(), any.chain(translated(self.any)).collect()]
    }

    fn to_be_masqueraded(&self) -> Vec<Rule> {
        let begin = || {
            let translated = leaves_by(veth::PREFIX).into_iter().chain(is_destination_translated());
            translated.chain(self.is_family())
        };
        let both = [
            header_at(0, self.source, self.length),
            header_at(self.length / 4, self.destination, self.length),
            is_in(self.pods),
        ];
        let from_loopback =
            |prefix| begin().chain(begins_with(self.source, prefix)).chain([masquerade(false)]);
        let from_itself = begin().chain(both).chain([masquerade(false)]).collect();
        self.loopback.map(from_loopback).into_iter().map(Iterator::collect).chain([from_itself]).collect()
    }

    fn decode(&self, element: &Element) -> Option<Mapping> {
        let length = self.length as usize;
        let (address, rest) = match element.key.len().checked_sub(8)? {
            0 => (self.unspecified(), element.key.as_slice()),
            _ => (self.address(element.key.get(..length)?)?, element.key.get(length..)?),
        };
        let [protocol, _, _, _, p0, p1, ..] = *rest else { return None };
        let protocol = Transport::of_number(protocol)?;
        let data = element.data.as_deref()?;
        let port = |high, low| u16::from_be_bytes([high, low]);
        let [t0, t1, ..] = *data.get(length..)? else { return None };
        let to = SocketAddr::new(self.address(data.get(..length)?)?, port(t0, t1));
        Some(Mapping { from: Place { address, protocol, port: port(p0, p1) }, to })
    }

    fn unspecified(&self) -> IpAddr {
        if self.is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
    }

    fn address(&self, octets: &[u8]) -> Option<IpAddr> {
        if self.is_ipv4 {
            Some(<[u8; 4]>::try_from(octets).ok()?.into())
        } else {
            Some(<[u8; 16]>::try_from(octets).ok()?.into())
        }
    }
}

fn content(mappings: &[Mapping]) -> Content {
    let chains = vec![
        named(NAME, PORTS),
        hooked(NAME, PREROUTING, "nat", (AT_PREROUTING, PRIORITY)),
        hooked(NAME, OUTPUT, "nat", (AT_OUTPUT, PRIORITY)),
        hooked(NAME, POSTROUTING, "nat", (AT_POSTROUTING, SOURCE_PRIORITY)),
    ];
    let to_node = || vec![is_to_node().into_iter().chain([verdict(Verdict::Goto(PORTS))]).collect()];
    let masqueraded = FAMILIES.iter().flat_map(Family::to_be_masqueraded);
    let rules = vec![
        (PORTS, FAMILIES.iter().flat_map(Family::to_pod).collect()),
        (PREROUTING, to_node()),
        (OUTPUT, to_node()),
        (POSTROUTING, [return_if_marked()].into_iter().chain(masqueraded).collect()),
    ];
    Content { name: NAME, sets: sets(mappings), chains, rules }
}

fn sets(mappings: &[Mapping]) -> Vec<Set> {
    FAMILIES.iter().flat_map(|it| it.sets(mappings)).collect()
}

fn key(from: &Place) -> Vec<u8> {
    let address = if from.address.is_unspecified() { Vec::new() } else { octets(from.address) };
    [&address[..], &[from.protocol.number(), 0, 0, 0], &padded(from.port)].concat()
}

/// In network byte order, in a register of 4 bytes.
fn padded(port: u16) -> Vec<u8> {
    [&port.to_be_bytes()[..], &[0, 0]].concat()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(protocol: Transport, from: &str, to: &str) -> Mapping {
        let from: SocketAddr = from.parse().unwrap();
        Mapping { from: Place { address: from.ip(), protocol, port: from.port() }, to: to.parse().unwrap() }
    }

    #[test]
    fn elements_are_decoded_as_they_are_encoded() {
        let all = [
            mapping(Transport::Tcp, "127.0.0.1:8080", "10.0.0.2:80"),
            mapping(Transport::Udp, "0.0.0.0:53", "10.0.0.2:5353"),
            mapping(Transport::Sctp, "[2001:db8::1]:9", "[fd00::2]:9"),
            mapping(Transport::Tcp, "[::]:65535", "[fd00::2]:1"),
        ];
        for mapping in all {
            let data = [octets(mapping.to.ip()), padded(mapping.to.port())].concat();
            let pair = [(key(&mapping.from), data)];
            let kinds = (Kind::address(true), Kind::address(true));
            let set = Set::of_pairs("some", kinds, pair);
            let family = FAMILIES.iter().find(|it| it.is_ipv4 == mapping.to.is_ipv4()).unwrap();
            let decoded: Vec<_> = set.elements().iter().filter_map(|it| family.decode(it)).collect();
            assert_eq!(decoded, [mapping]);
        }
    }

    #[test]
    fn damaged_elements_are_no_mappings() {
        let [v4, v6] = FAMILIES;
        for length in 0..40 {
            let kinds = (Kind::address(true), Kind::address(true));
            let set = Set::of_pairs("some", kinds, [(vec![1; length], vec![2; 4])]);
            assert!(set.elements().iter().all(|it| v4.decode(it).is_none() && v6.decode(it).is_none()));
        }
    }
}
