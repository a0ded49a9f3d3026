//! The nftables table `inet ferrule`: pods' packets to the world get an address of the node, and flows of pods
//! that the host translates get client ports that no flow past the host's stack has.
//!
//! ```text
//! table inet ferrule {
//!     set pods4 { type ipv4_addr; flags interval; … }         what is masqueraded, and to where not;
//!     set kept4 { type ipv4_addr; flags interval; … }         pods6 and kept6 likewise
//!     chain to_world {
//!         meta l4proto tcp masquerade to :32768-65535 fully-random        udp and sctp likewise
//!         masquerade fully-random
//!     }
//!     chain to_backend {
//!         tcp sport >= 1024 snat ip to ip saddr:1024-32767 fully-random       udp and sctp likewise,
//!         tcp sport >= 1024 snat ip6 to ip6 saddr:1024-32767 fully-random     in both families
//!     }
//!     chain postrouting {
//!         type nat hook postrouting priority srcnat + 10; policy accept;
//!         meta mark & 0x0000e000 != 0x00000000 return
//!         ip saddr @pods4 ip daddr != @kept4 goto to_world
//!         ip6 saddr @pods6 ip6 daddr != @kept6 goto to_world
//!         iifname "fr*" ct status dnat goto to_backend
//!     }
//!     set nodes4 { type ipv4_addr; … }        with a tunnel: where it ends; nodes6 likewise
//!     chain tunnel_in {
//!         type filter hook prerouting priority raw; policy accept;
//!         udp dport 4789 ip daddr @nodes4 notrack
//!         udp dport 4789 ip6 daddr @nodes6 notrack
//!     }
//!     chain tunnel_out { type filter hook output priority raw; … }        the same rules
//! }
//! ```
//!
//! Conntrack need not know the tunnel's packets: it would look at every packet twice, and would have an entry
//! for each flow inside of the tunnel.
//!
//! A change replaces the whole table in one transaction: packets see the old rules or the new ones, and
//! established flows keep their translation, which conntrack holds.

use std::{collections::BTreeSet, io, net::IpAddr};

use agent_common::TRANSLATED_PORTS;
use ipnet::IpNet;
use nix::errno::Errno;
use rtnetlink::packet_core::{NlaBuffer, NlasIterator};

use super::{
    netlink::NetlinkError,
    nfnetlink::{self, Attribute, Change, Object, dump, find},
    nft_expression::{
        AT_LEAST, EQUAL, Expression, FAMILY, MARK, NOT_EQUAL, PROTOCOL, Verdict, came_by, compare,
        destination_port, header, is_destination_translated, is_in, is_not_in, masked, masquerade, meta,
        notrack, port, source_port, translate_source, verdict,
    },
    veth,
};

/// What is masqueraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Sources: addresses of this node's pods.
    pub sources: Vec<IpNet>,
    /// Destinations that see the pods' own addresses.
    pub kept: Vec<IpNet>,
    /// The first and the last port of the node's address, for protocols with ports.
    pub ports: (u16, u16),
    /// `None` if no packet takes the tunnel between nodes.
    pub tunnel: Option<Untracked>,
}

/// UDP that conntrack does not see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untracked {
    /// Of the destination.
    pub port: u16,
    /// The destinations: addresses of all nodes, this one included.
    pub nodes: Vec<IpNet>,
}

type Rule = Vec<Expression>;

/// A set of addresses, and what the rules need of its family.
struct Set {
    name: &'static str,
    /// Unique in a transaction.
    number: u32,
    content: Content,
    is_ipv4: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Sources,
    Kept,
    Nodes,
}

pub const NAME: &str = "ferrule";
const POSTROUTING: &str = "postrouting";
const TO_WORLD: &str = "to_world";
const TO_BACKEND: &str = "to_backend";
const TUNNEL_IN: &str = "tunnel_in";
const TUNNEL_OUT: &str = "tunnel_out";
/// kube-proxy's marks (masquerade 0x4000, drop 0x8000) and that of `portmap` (0x2000): their owners' rules
/// decide about these packets.
const FOREIGN_MARKS: u32 = 0xe000;
/// After all others at `NF_IP_PRI_NAT_SRC` (100, `srcnat`): the first translation counts.
const PRIORITY: i32 = 110;
/// `NF_IP_PRI_RAW` in `linux/netfilter_ipv4.h`: before conntrack.
const RAW: i32 = -300;
const SETS: [Set; 6] = [
    Set { name: "pods4", number: 1, content: Content::Sources, is_ipv4: true },
    Set { name: "kept4", number: 2, content: Content::Kept, is_ipv4: true },
    Set { name: "pods6", number: 3, content: Content::Sources, is_ipv4: false },
    Set { name: "kept6", number: 4, content: Content::Kept, is_ipv4: false },
    Set { name: "nodes4", number: 5, content: Content::Nodes, is_ipv4: true },
    Set { name: "nodes6", number: 6, content: Content::Nodes, is_ipv4: false },
];
/// Elements of one message: the length of an attribute has 16 bits, and an element at most 48 bytes.
const ELEMENTS: usize = 1000;

// What follows is of `linux/netfilter/nf_tables.h`, unless it names another file.

/// `NFPROTO_INET` in `linux/netfilter.h`.
pub(super) const INET: u8 = 1;
/// `NFT_MSG_…`.
const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const GET_CHAIN: u16 = 4;
const NEW_RULE: u16 = 6;
const GET_RULE: u16 = 7;
const NEW_SET: u16 = 9;
const GET_SET: u16 = 10;
const NEW_ELEMENTS: u16 = 12;
const GET_ELEMENTS: u16 = 13;
/// `NLM_F_CREATE` and `NLM_F_APPEND` in `linux/netlink.h`.
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
/// The name of the table in messages about tables, chains, rules, sets and elements.
pub(super) const OF_TABLE: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
/// `NF_INET_PRE_ROUTING`, `NF_INET_LOCAL_OUT`, `NF_INET_POST_ROUTING` and `NF_ACCEPT` in `linux/netfilter.h`.
const AT_PREROUTING: u32 = 0;
const AT_OUTPUT: u32 = 3;
const AT_POSTROUTING: u32 = 4;
const ACCEPT: u32 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LENGTH: u16 = 5;
const SET_NUMBER: u16 = 10;
const SET_USER_DATA: u16 = 13;
const INTERVAL: u32 = 4;
/// nft's numbers of the types `ipv4_addr` and `ipv6_addr`, and its notes "the keys have network byte order"
/// and "the interval has no end": nft shows the sets accordingly.
const KEY_TYPES: (u32, u32) = (7, 8);
const NETWORK_ORDER: [u8; 6] = [0, 4, 2, 0, 0, 0];
const OPEN: [u8; 6] = [1, 4, 1, 0, 0, 0];
const ELEMENTS_SET: u16 = 2;
const ELEMENTS_LIST: u16 = 3;
const LIST_ITEM: u16 = 1;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_FLAGS: u16 = 3;
const ELEMENT_USER_DATA: u16 = 6;
const INTERVAL_END: u32 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const DATA_VALUE: u16 = 1;
/// `NFPROTO_IPV4` and `NFPROTO_IPV6` in `linux/netfilter.h`.
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;
/// Protocols with ports: TCP, UDP, SCTP.
const WITH_PORTS: [u8; 3] = [6, UDP, 132];
const UDP: u8 = 17;

// === impl Table ===

impl Table {
    /// Writes the table, in the place of an earlier one.
    ///
    /// # Errors
    /// If the kernel refuses; the earlier table stays.
    pub fn write(&self) -> Result<(), NetlinkError> {
        let mut changes = vec![table("add the table", NEW_TABLE), table("replace the table", DELETE_TABLE)];
        changes.extend(self.changes());
        nfnetlink::commit(&changes).map_err(explained)
    }

    /// The first difference from the kernel's table.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn difference(&self) -> io::Result<Option<String>> {
        let of_table = [Attribute::text(OF_TABLE, NAME)];
        let is_ours = |it: &Object| of_table.iter().all(|name| name.is_in(&it.1));
        let read = |kind| -> io::Result<Vec<Vec<u8>>> {
            Ok(dump(kind, INET, &of_table)?.into_iter().filter(is_ours).map(|it| it.1).collect())
        };
        let (chains, sets, rules) = (read(GET_CHAIN)?, read(GET_SET)?, read(GET_RULE)?);
        // Not filtered by its name: the kernel would answer the request with one object, and no end.
        let tables = dump(GET_TABLE, INET, &[])?;
        let Some((_, found)) = tables.iter().find(|it| is_ours(it)) else {
            return Ok(Some("is missing".to_owned()));
        };
        if !Attribute::number(TABLE_FLAGS, 0).is_in(found) {
            return Ok(Some("is dormant, or has an owner".to_owned()));
        }
        let has =
            |all: &[Vec<u8>], it: &[Attribute]| all.iter().any(|found| it.iter().all(|it| it.is_in(found)));
        let wrong_chain = self.chains().into_iter().find(|(_, it)| !has(&chains, it));
        if let Some((name, _)) = wrong_chain {
            return Ok(Some(format!("has no chain {name}, or a changed one")));
        }
        for (name, expected) in self.rules() {
            let of_chain = Attribute::text(RULE_CHAIN, name);
            let found: Vec<_> = rules.iter().filter(|it| of_chain.is_in(it)).collect();
            if !is_same_rules(&expected, &found) {
                return Ok(Some(format!("has changed rules in the chain {name}")));
            }
        }
        if chains.len() > self.chains().len() || sets.len() > self.sets().count() {
            return Ok(Some("has a foreign chain or set".to_owned()));
        }
        for set in self.sets() {
            if !has(&sets, &set.attributes()) {
                return Ok(Some(format!("has no set {}, or a changed one", set.name)));
            }
            let of_set = [Attribute::text(OF_TABLE, NAME), Attribute::text(ELEMENTS_SET, set.name)];
            let found = dump(GET_ELEMENTS, INET, &of_set)?;
            let found: BTreeSet<_> = found.iter().flat_map(|it| elements(&it.1)).collect();
            if found != self.elements(&set).into_iter().collect() {
                return Ok(Some(format!("has changed elements in the set {}", set.name)));
            }
        }
        Ok(None)
    }

    fn changes(&self) -> Vec<Change> {
        let change = |what: String, kind, attributes: Vec<Attribute>| {
            let flags = if kind == NEW_RULE { CREATE | APPEND } else { CREATE };
            Change { what, kind, flags, family: INET, attributes }
        };
        let mut changes = vec![table("add the table", NEW_TABLE)];
        for set in self.sets() {
            let mut attributes = set.attributes();
            attributes.push(Attribute::number(SET_NUMBER, set.number));
            attributes.push(Attribute::Value(SET_USER_DATA, NETWORK_ORDER.to_vec()));
            changes.push(change(format!("add the set {}", set.name), NEW_SET, attributes));
            let elements = self.elements(&set);
            for (part, chunk) in elements.chunks(ELEMENTS).enumerate() {
                let is_last = set.has_intervals() && (part + 1) * ELEMENTS >= elements.len();
                let attributes = vec![
                    Attribute::text(OF_TABLE, NAME),
                    Attribute::text(ELEMENTS_SET, set.name),
                    Attribute::Nest(ELEMENTS_LIST, list(chunk, is_last)),
                ];
                changes.push(change(format!("add elements of {}", set.name), NEW_ELEMENTS, attributes));
            }
        }
        for (name, attributes) in self.chains() {
            changes.push(change(format!("add the chain {name}"), NEW_CHAIN, attributes));
        }
        for (name, rules) in self.rules() {
            for expressions in rules {
                let items = expressions.into_iter().map(|it| Attribute::Nest(LIST_ITEM, it)).collect();
                let attributes = vec![
                    Attribute::text(OF_TABLE, NAME),
                    Attribute::text(RULE_CHAIN, name),
                    Attribute::Nest(RULE_EXPRESSIONS, items),
                ];
                changes.push(change(format!("add a rule of the chain {name}"), NEW_RULE, attributes));
            }
        }
        changes
    }

    fn sets(&self) -> impl Iterator<Item = Set> {
        let has_tunnel = self.tunnel.is_some();
        SETS.into_iter().filter(move |set| has_tunnel || set.content != Content::Nodes)
    }

    fn chains(&self) -> Vec<(&'static str, Vec<Attribute>)> {
        let named = |name| vec![Attribute::text(OF_TABLE, NAME), Attribute::text(CHAIN_NAME, name)];
        let base = |name, kind, hook, priority: i32| {
            let hook = vec![
                Attribute::number(HOOK_NUMBER, hook),
                Attribute::number(HOOK_PRIORITY, priority.cast_unsigned()),
            ];
            let mut base = named(name);
            base.extend([
                Attribute::text(CHAIN_TYPE, kind),
                Attribute::number(CHAIN_POLICY, ACCEPT),
                Attribute::Nest(CHAIN_HOOK, hook),
            ]);
            (name, base)
        };
        let mut chains = vec![
            (TO_WORLD, named(TO_WORLD)),
            (TO_BACKEND, named(TO_BACKEND)),
            base(POSTROUTING, "nat", AT_POSTROUTING, PRIORITY),
        ];
        if self.tunnel.is_some() {
            chains.push(base(TUNNEL_IN, "filter", AT_PREROUTING, RAW));
            chains.push(base(TUNNEL_OUT, "filter", AT_OUTPUT, RAW));
        }
        chains
    }

    fn rules(&self) -> Vec<(&'static str, Vec<Rule>)> {
        let (first, last) = self.ports;
        let with_ports = |protocol: u8| {
            let is_protocol = [meta(PROTOCOL), compare(EQUAL, &[protocol])];
            is_protocol.into_iter().chain([port(1, first), port(2, last), masquerade(true)]).collect()
        };
        let mut to_world: Vec<Rule> = WITH_PORTS.into_iter().map(with_ports).collect();
        to_world.push(vec![masquerade(false)]);
        let is_marked = [meta(MARK), masked(FOREIGN_MARKS), compare(NOT_EQUAL, &0_u32.to_ne_bytes())];
        let marked = is_marked.into_iter().chain([verdict(Verdict::Return)]).collect();
        // Offsets of source and destination in the header, and their length.
        let v4 = of_family(NFPROTO_IPV4, ("pods4", 12), ("kept4", 16), 4);
        let v6 = of_family(NFPROTO_IPV6, ("pods6", 8), ("kept6", 24), 16);
        let is_translated = came_by(veth::PREFIX).into_iter().chain(is_destination_translated());
        let translated = is_translated.chain([verdict(Verdict::Goto(TO_BACKEND))]).collect();
        let to_backend = [(NFPROTO_IPV4, 12, 4), (NFPROTO_IPV6, 8, 16)]
            .into_iter()
            .flat_map(|family| WITH_PORTS.map(|protocol| with_other_port(protocol, family)));
        let mut rules = vec![
            (TO_WORLD, to_world),
            (TO_BACKEND, to_backend.collect()),
            (POSTROUTING, vec![marked, v4, v6, translated]),
        ];
        if let Some(Untracked { port, .. }) = self.tunnel {
            let of = |family, set, offset, length| untracked(port, family, set, (offset, length));
            let both = || vec![of(NFPROTO_IPV4, "nodes4", 16, 4), of(NFPROTO_IPV6, "nodes6", 24, 16)];
            rules.extend([(TUNNEL_IN, both()), (TUNNEL_OUT, both())]);
        }
        rules
    }

    /// Keys, and whether each is the end of an interval.
    fn elements(&self, set: &Set) -> Vec<(Vec<u8>, bool)> {
        if set.has_intervals() {
            return edges(&self.intervals(set), set.is_ipv4);
        }
        let nodes = self.tunnel.iter().flat_map(|it| &it.nodes).map(IpNet::addr);
        nodes.filter(|it| it.is_ipv4() == set.is_ipv4).map(|it| (key(bits(it), set.is_ipv4), false)).collect()
    }

    /// Without overlaps, in order; first and last address of each.
    fn intervals(&self, set: &Set) -> Vec<(u128, u128)> {
        let nets = match set.content {
            Content::Sources => self.sources.as_slice(),
            Content::Kept => &self.kept,
            Content::Nodes => &[],
        };
        let nets = nets.iter().filter(|net| net.addr().is_ipv4() == set.is_ipv4);
        let mut sorted: Vec<_> = nets.map(|net| (bits(net.network()), bits(net.broadcast()))).collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u128, u128)> = Vec::new();
        for (first, last) in sorted {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        merged
    }
}

/// Deletes the table, if it exists. Returns whether it did.
///
/// # Errors
/// If the kernel refuses.
pub fn remove() -> Result<bool, NetlinkError> {
    let failed = |source| NetlinkError::new("list the tables of nftables", source);
    let ours = Attribute::text(OF_TABLE, NAME);
    if !dump(GET_TABLE, INET, &[]).map_err(failed)?.iter().any(|(_, found)| ours.is_in(found)) {
        return Ok(false);
    }
    match nfnetlink::commit(&[table("delete the table", DELETE_TABLE)]) {
        Err(error) if error.is(Errno::ENOENT) => Ok(false),
        result => result.map(|()| true),
    }
}

// === impl Set ===

impl Set {
    /// Packets of the tunnel are looked up twice, and single addresses are found faster.
    fn has_intervals(&self) -> bool {
        self.content != Content::Nodes
    }

    fn attributes(&self) -> Vec<Attribute> {
        let (kind, length) = if self.is_ipv4 { (KEY_TYPES.0, 4) } else { (KEY_TYPES.1, 16) };
        vec![
            Attribute::text(OF_TABLE, NAME),
            Attribute::text(SET_NAME, self.name),
            Attribute::number(SET_FLAGS, if self.has_intervals() { INTERVAL } else { 0 }),
            Attribute::number(SET_KEY_TYPE, kind),
            Attribute::number(SET_KEY_LENGTH, length),
        ]
    }
}

fn table(what: &str, kind: u16) -> Change {
    let mut attributes = vec![Attribute::text(OF_TABLE, NAME)];
    if kind == NEW_TABLE {
        attributes.push(Attribute::number(TABLE_FLAGS, 0));
    }
    let flags = if kind == NEW_TABLE { CREATE } else { 0 };
    Change { what: format!("{what} inet {NAME} of nftables"), kind, flags, family: INET, attributes }
}

/// The kernel names neither the missing module nor the expression.
fn explained(error: NetlinkError) -> NetlinkError {
    let is_missing = [Errno::ENOENT, Errno::EOPNOTSUPP, Errno::EPROTONOSUPPORT, Errno::EINVAL]
        .iter()
        .any(|it| error.is(*it));
    if is_missing {
        let modules = "load the kernel's modules nf_tables, nft_chain_nat, nft_ct, nft_masq and nft_nat";
        return error.with_hint(modules.to_owned());
    }
    error
}

/// The edges of intervals as nftables stores them: an end is the first address behind the interval, and an
/// edge before the first interval says that what precedes is outside.
fn edges(intervals: &[(u128, u128)], is_ipv4: bool) -> Vec<(Vec<u8>, bool)> {
    let largest = if is_ipv4 { u128::from(u32::MAX) } else { u128::MAX };
    let key = |value| key(value, is_ipv4);
    let mut edges = Vec::new();
    edges.extend(intervals.first().filter(|(first, _)| *first > 0).map(|_| (key(0), true)));
    for (first, last) in intervals {
        edges.push((key(*first), false));
        edges.extend((*last < largest).then(|| (key(last.saturating_add(1)), true)));
    }
    edges
}

/// The bytes of an address.
fn key(bits: u128, is_ipv4: bool) -> Vec<u8> {
    bits.to_be_bytes().into_iter().skip(if is_ipv4 { 12 } else { 0 }).collect()
}

/// `is_last`: whether the list ends with the last edge of the set.
fn list(edges: &[(Vec<u8>, bool)], is_last: bool) -> Vec<Attribute> {
    let item = |(number, (key, is_end)): (usize, &(Vec<u8>, bool))| {
        let mut item = Vec::new();
        item.extend(is_end.then(|| Attribute::number(ELEMENT_FLAGS, INTERVAL_END)));
        item.push(Attribute::Nest(ELEMENT_KEY, vec![Attribute::Value(DATA_VALUE, key.clone())]));
        let is_open = is_last && !is_end && number + 1 == edges.len();
        item.extend(is_open.then(|| Attribute::Value(ELEMENT_USER_DATA, OPEN.to_vec())));
        Attribute::Nest(LIST_ITEM, item)
    };
    edges.iter().enumerate().map(item).collect()
}

/// The edges in a message about elements.
fn elements(message: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let list = find(message, &[ELEMENTS_LIST]).unwrap_or_default();
    let items = NlasIterator::new(&list[..]).flatten();
    let edge = |item: &[u8]| {
        let flags = find(item, &[ELEMENT_FLAGS]).and_then(|it| nfnetlink::number(&it)).unwrap_or_default();
        Some((find(item, &[ELEMENT_KEY, DATA_VALUE])?, flags & INTERVAL_END != 0))
    };
    items.filter_map(|item| edge(item.value())).collect()
}

fn is_same_rules(expected: &[Rule], found: &[&Vec<u8>]) -> bool {
    let is_same = |(expected, found): (&Rule, &&Vec<u8>)| {
        let list = find(found, &[RULE_EXPRESSIONS]).unwrap_or_default();
        let found: Vec<_> = NlasIterator::new(&list[..]).flatten().collect();
        let is_in = |(all, found): (&Expression, &_)| {
            let found: &NlaBuffer<&[u8]> = found;
            all.iter().all(|it| it.is_in(found.value()))
        };
        expected.len() == found.len() && expected.iter().zip(&found).all(is_in)
    };
    expected.len() == found.len() && expected.iter().zip(found).all(is_same)
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

/// A packet of a family to a port of UDP, and to a destination in a set, stays unknown to conntrack.
fn untracked(port: u16, family: u8, set: &str, (offset, length): (u32, u32)) -> Rule {
    vec![
        meta(PROTOCOL),
        compare(EQUAL, &[UDP]),
        destination_port(),
        compare(EQUAL, &port.to_be_bytes()),
        meta(FAMILY),
        compare(EQUAL, &[family]),
        header(offset, length),
        is_in(set),
        notrack(),
    ]
}

/// A flow of a protocol gets another client port, unless its own is privileged. `offset` and `length` are
/// those of the source in a family's header.
fn with_other_port(protocol: u8, (family, offset, length): (u8, u32, u32)) -> Rule {
    let (first, last) = TRANSLATED_PORTS;
    vec![
        meta(PROTOCOL),
        compare(EQUAL, &[protocol]),
        source_port(),
        compare(AT_LEAST, &first.to_be_bytes()),
        meta(FAMILY),
        compare(EQUAL, &[family]),
        header(offset, length),
        port(2, first),
        port(3, last),
        translate_source(family),
    ]
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests;
