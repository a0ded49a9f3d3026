//! Sets and maps of the agent's tables.

use std::{collections::BTreeSet, io, net::IpAddr};

use ipnet::IpNet;

use super::{
    super::message::{Attribute, attributes_of, find},
    nfnetlink::{self, Change, dump},
    numbers::{
        DATA_VALUE, DELETE_ELEMENTS, ELEMENT_DATA, ELEMENT_FLAGS, ELEMENT_KEY, ELEMENT_USER_DATA,
        ELEMENTS_LIST, ELEMENTS_SET, GET_ELEMENTS, INET, INTERVAL, INTERVAL_END, LIST_ITEM, MAP,
        NEW_ELEMENTS, NEW_SET, OF_TABLE, SET_DATA_LENGTH, SET_DATA_TYPE, SET_FLAGS, SET_KEY_LENGTH,
        SET_KEY_TYPE, SET_NAME, SET_NUMBER, SET_USER_DATA,
    },
};

/// A set or a map, and what is in it.
pub(super) struct Set {
    pub name: &'static str,
    key: Kind,
    /// Of a map.
    data: Option<Kind>,
    has_intervals: bool,
    elements: Vec<Element>,
}

/// nft's number of a type, by which nft shows values, and the length in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub number: u32,
    length: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Element {
    pub key: Vec<u8>,
    /// Of a map.
    pub data: Option<Vec<u8>>,
    /// Whether the key ends an interval.
    pub is_end: bool,
}

/// Elements of one message: the length of an attribute has 16 bits, and an element at most 76 bytes.
const ELEMENTS: usize = 800;
/// nft's types `ipv4_addr`, `ipv6_addr`, `inet_proto` and `inet_service`.
pub(super) const IPV4_ADDRESS: Kind = Kind { number: 7, length: 4 };
pub(super) const IPV6_ADDRESS: Kind = Kind { number: 8, length: 16 };
pub(super) const PROTOCOL: Kind = Kind { number: 12, length: 1 };
pub(super) const SERVICE: Kind = Kind { number: 13, length: 2 };
/// nft's notes "the keys have network byte order", "the data have it" and "the interval has no end": nft
/// shows the sets accordingly.
const NETWORK_ORDER: [u8; 6] = [0, 4, 2, 0, 0, 0];
const DATA_NETWORK_ORDER: [u8; 6] = [1, 4, 2, 0, 0, 0];
const OPEN: [u8; 6] = [1, 4, 1, 0, 0, 0];

// === impl Set ===

impl Set {
    /// The networks of a family.
    pub fn of_networks(name: &'static str, is_ipv4: bool, networks: &[IpNet]) -> Self {
        let elements = edges(&intervals(networks, is_ipv4), is_ipv4);
        Self { name, key: Kind::address(is_ipv4), data: None, has_intervals: true, elements }
    }

    /// The addresses of a family, which the kernel finds faster than intervals.
    pub fn of_addresses(name: &'static str, is_ipv4: bool, addresses: &[IpAddr]) -> Self {
        let of_family = addresses.iter().filter(|it| it.is_ipv4() == is_ipv4);
        let unique: BTreeSet<_> = of_family.map(|it| key(bits(*it), is_ipv4)).collect();
        Self::of_keys(name, Kind::address(is_ipv4), unique)
    }

    /// Single keys.
    pub fn of_keys(name: &'static str, key: Kind, keys: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let elements = keys.into_iter().map(|key| Element { key, data: None, is_end: false }).collect();
        Self { name, key, data: None, has_intervals: false, elements }
    }

    /// A map from single keys to data.
    pub fn of_pairs(
        name: &'static str,
        (key, data): (Kind, Kind),
        pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Self {
        let pairs = pairs.into_iter();
        let elements = pairs.map(|(key, data)| Element { key, data: Some(data), is_end: false }).collect();
        Self { name, key, data: Some(data), has_intervals: false, elements }
    }

    pub fn attributes(&self, table: &str) -> Vec<Attribute> {
        let mut attributes = vec![
            Attribute::text(OF_TABLE, table),
            Attribute::text(SET_NAME, self.name),
            Attribute::number(SET_KEY_TYPE, self.key.number),
            Attribute::number(SET_KEY_LENGTH, self.key.length),
        ];
        if let Some(data) = self.data {
            attributes.push(Attribute::number(SET_FLAGS, MAP));
            attributes.push(Attribute::number(SET_DATA_TYPE, data.number));
            attributes.push(Attribute::number(SET_DATA_LENGTH, data.length));
        }
        // The kernel shows no flags of a set without any.
        attributes.extend(self.has_intervals.then(|| Attribute::number(SET_FLAGS, INTERVAL)));
        attributes
    }

    /// Adds the set and its elements. `number`: unique in the transaction.
    pub fn changes(&self, table: &str, number: u32) -> Vec<Change> {
        let mut attributes = self.attributes(table);
        attributes.push(Attribute::number(SET_NUMBER, number));
        let data_order = self.data.map_or([].as_slice(), |_| &DATA_NETWORK_ORDER);
        attributes.push(Attribute::Value(SET_USER_DATA, [&NETWORK_ORDER, data_order].concat()));
        let mut changes = vec![Change::create(format!("add the set {}", self.name), NEW_SET, attributes)];
        changes.extend(self.additions(table));
        changes
    }

    #[cfg(test)]
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// Adds the elements.
    pub fn additions(&self, table: &str) -> Vec<Change> {
        let mut changes = Vec::new();
        for (part, chunk) in self.elements.chunks(ELEMENTS).enumerate() {
            let is_open = self.has_intervals && (part + 1) * ELEMENTS >= self.elements.len();
            let attributes = vec![
                Attribute::text(OF_TABLE, table),
                Attribute::text(ELEMENTS_SET, self.name),
                Attribute::Nest(ELEMENTS_LIST, list(chunk, is_open)),
            ];
            changes.push(Change::create(format!("add elements of {}", self.name), NEW_ELEMENTS, attributes));
        }
        changes
    }

    /// Removes the elements, which the kernel's set must have.
    pub fn removals(&self, table: &str) -> Vec<Change> {
        let removal = |it: Change| Change {
            what: format!("remove elements of {}", self.name),
            kind: DELETE_ELEMENTS,
            flags: 0,
            ..it
        };
        self.additions(table).into_iter().map(removal).collect()
    }

    /// Whether the kernel's set has the same elements.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn is_same(&self, table: &str) -> io::Result<bool> {
        let found: BTreeSet<_> = read(table, self.name)?.into_iter().collect();
        Ok(found == self.elements.iter().cloned().collect())
    }
}

// === impl Kind ===

impl Kind {
    pub fn address(is_ipv4: bool) -> Self {
        if is_ipv4 { IPV4_ADDRESS } else { IPV6_ADDRESS }
    }

    /// Several values, each in registers of 4 bytes.
    pub fn of_several(kinds: &[Self]) -> Self {
        // `TYPE_BITS` in `include/datatype.h` of nftables.
        let number = kinds.iter().fold(0, |all, it| all << 6 | it.number);
        Self { number, length: kinds.iter().map(|it| it.length.next_multiple_of(4)).sum() }
    }
}

/// The elements of a set or map. Nothing without it.
///
/// # Errors
/// If the kernel refuses the dump.
pub(super) fn read(table: &str, name: &str) -> io::Result<Vec<Element>> {
    let of_set = [Attribute::text(OF_TABLE, table), Attribute::text(ELEMENTS_SET, name)];
    let found = dump(GET_ELEMENTS, INET, &of_set)?;
    Ok(found.iter().flat_map(|it| elements(&it.1)).collect())
}

/// Without overlaps, in order; first and last address of each.
fn intervals(networks: &[IpNet], is_ipv4: bool) -> Vec<(u128, u128)> {
    let networks = networks.iter().filter(|net| net.addr().is_ipv4() == is_ipv4);
    let mut sorted: Vec<_> = networks.map(|net| (bits(net.network()), bits(net.broadcast()))).collect();
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

/// The edges of intervals as nftables stores them: an end is the first address behind the interval, and an
/// edge before the first interval says that what precedes is outside.
fn edges(intervals: &[(u128, u128)], is_ipv4: bool) -> Vec<Element> {
    let largest = if is_ipv4 { u128::from(u32::MAX) } else { u128::MAX };
    let key = |value| key(value, is_ipv4);
    let mut edges = Vec::new();
    let edge = |value, is_end| Element { key: key(value), data: None, is_end };
    edges.extend(intervals.first().filter(|(first, _)| *first > 0).map(|_| edge(0, true)));
    for (first, last) in intervals {
        edges.push(edge(*first, false));
        edges.extend((*last < largest).then(|| edge(last.saturating_add(1), true)));
    }
    edges
}

/// `is_open`: whether the last element, if it begins an interval, has no end.
fn list(elements: &[Element], is_open: bool) -> Vec<Attribute> {
    let item = |(number, Element { key, data, is_end }): (usize, &Element)| {
        let mut item = Vec::new();
        item.extend(is_end.then(|| Attribute::number(ELEMENT_FLAGS, INTERVAL_END)));
        item.push(Attribute::Nest(ELEMENT_KEY, vec![Attribute::Value(DATA_VALUE, key.clone())]));
        let data = data.clone().map(|data| vec![Attribute::Value(DATA_VALUE, data)]);
        item.extend(data.map(|data| Attribute::Nest(ELEMENT_DATA, data)));
        let is_open = is_open && !is_end && number + 1 == elements.len();
        item.extend(is_open.then(|| Attribute::Value(ELEMENT_USER_DATA, OPEN.to_vec())));
        Attribute::Nest(LIST_ITEM, item)
    };
    elements.iter().enumerate().map(item).collect()
}

/// Those of a message about elements.
fn elements(message: &[u8]) -> Vec<Element> {
    let list = find(message, &[ELEMENTS_LIST]).unwrap_or_default();
    let items = attributes_of(list);
    let element = |item: &[u8]| {
        let flags = find(item, &[ELEMENT_FLAGS]).and_then(nfnetlink::number).unwrap_or_default();
        let key = find(item, &[ELEMENT_KEY, DATA_VALUE])?.to_vec();
        let data = find(item, &[ELEMENT_DATA, DATA_VALUE]).map(<[u8]>::to_vec);
        Some(Element { key, data, is_end: flags & INTERVAL_END != 0 })
    };
    items.filter_map(|item| element(item.value())).collect()
}

/// The bytes of an address.
fn key(bits: u128, is_ipv4: bool) -> Vec<u8> {
    bits.to_be_bytes().into_iter().skip(if is_ipv4 { 12 } else { 0 }).collect()
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::message::encode_all, *};

    fn set(is_ipv4: bool, networks: &[&str]) -> Set {
        let networks: Vec<_> = networks.iter().map(|it| it.parse().unwrap()).collect();
        Set::of_networks("some", is_ipv4, &networks)
    }

    fn shown(set: &Set) -> Vec<(String, bool)> {
        let text = |key: &[u8]| match <[u8; 4]>::try_from(key) {
            Ok(v4) => IpAddr::from(v4).to_string(),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(key).unwrap()).to_string(),
        };
        set.elements.iter().map(|it| (text(&it.key), it.is_end)).collect()
    }

    fn edge(key: &str, is_end: bool) -> (String, bool) {
        (key.to_owned(), is_end)
    }

    #[test]
    fn overlapping_and_adjacent_networks_are_one_interval() {
        let sources = ["10.0.1.0/24", "fd00::/64"];
        let of_v4 = [edge("0.0.0.0", true), edge("10.0.1.0", false), edge("10.0.2.0", true)];
        assert_eq!(shown(&set(true, &sources)), of_v4);
        let of_v6 = [edge("::", true), edge("fd00::", false), edge("fd00:0:0:1::", true)];
        assert_eq!(shown(&set(false, &sources)), of_v6);
        let many =
            ["10.0.2.0/24", "10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8", "224.0.0.0/3", "0.0.0.0/8", "::/0"];
        let of_v4 = [
            edge("0.0.0.0", false),
            edge("1.0.0.0", true),
            edge("10.0.0.0", false),
            edge("12.0.0.0", true),
            edge("224.0.0.0", false),
        ];
        assert_eq!(shown(&set(true, &many)), of_v4, "the last interval has no end");
        assert_eq!(shown(&set(false, &many)), [edge("::", false)]);
        assert_eq!(shown(&set(true, &[])), []);
    }

    #[test]
    fn addresses_have_no_edges_and_are_there_once() {
        let addresses = ["192.0.2.2", "192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|it| it.parse().unwrap());
        let v4 = Set::of_addresses("some", true, &addresses);
        assert_eq!(shown(&v4), [edge("192.0.2.1", false), edge("192.0.2.2", false)]);
        assert_eq!(shown(&Set::of_addresses("some", false, &addresses)), [edge("2001:db8::1", false)]);
        assert!(!format!("{:?}", v4.changes("some", 1)).contains("[1, 4, 1, 0, 0, 0]"), "none is open");
    }

    #[test]
    fn elements_are_read_as_they_are_sent() {
        let pairs = [(vec![1, 2, 3, 4], vec![5, 6]), (vec![7, 8, 9, 0], vec![1])];
        let map = Set::of_pairs("some", (IPV4_ADDRESS, SERVICE), pairs).elements;
        for expected in [edges(&[(5, 9), (20, u128::from(u32::MAX))], true), map] {
            let sent = encode_all(&[Attribute::Nest(ELEMENTS_LIST, list(&expected, true))]);
            assert_eq!(elements(&sent), expected);
        }
        assert_eq!(elements(&[]), []);
    }

    #[test]
    fn several_values_are_one_type_of_nft() {
        let kind = Kind::of_several(&[IPV4_ADDRESS, PROTOCOL, SERVICE]);
        assert_eq!((kind.number, kind.length), (7 << 12 | 12 << 6 | 13, 12));
    }

    #[test]
    fn a_long_list_is_divided_and_only_its_end_is_open() {
        let hosts: Vec<_> = (0..1500_u32).map(|n| format!("10.{}.{}.0/31", n / 250, n % 250)).collect();
        let mut networks: Vec<_> = hosts.iter().map(String::as_str).collect();
        networks.push("224.0.0.0/3");
        let changes = set(true, &networks).changes("some", 1);
        let parts: Vec<_> = changes.iter().filter(|it| it.kind == NEW_ELEMENTS).collect();
        let opens =
            |change: &Change| format!("{:?}", change.attributes).matches("[1, 4, 1, 0, 0, 0]").count();
        assert_eq!(parts.iter().map(|it| opens(it)).collect::<Vec<_>>(), [0, 0, 0, 1]);
        for part in parts {
            assert!(encode_all(&part.attributes).len() < usize::from(u16::MAX));
        }
    }
}
