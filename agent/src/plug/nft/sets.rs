//! Sets of addresses of the table `inet ferrule`.

use std::{collections::BTreeSet, io, net::IpAddr};

use ipnet::IpNet;
use rtnetlink::packet_core::NlasIterator;

use super::{
    nfnetlink::{self, Attribute, Change, dump, find},
    numbers::{
        DATA_VALUE, ELEMENT_FLAGS, ELEMENT_KEY, ELEMENT_USER_DATA, ELEMENTS_LIST, ELEMENTS_SET, GET_ELEMENTS,
        INET, INTERVAL, INTERVAL_END, LIST_ITEM, NEW_ELEMENTS, NEW_SET, OF_TABLE, SET_FLAGS, SET_KEY_LENGTH,
        SET_KEY_TYPE, SET_NAME, SET_NUMBER, SET_USER_DATA,
    },
};

/// A set of one family, and what is in it.
pub(super) struct Set {
    pub name: &'static str,
    is_ipv4: bool,
    has_intervals: bool,
    elements: Vec<Element>,
}

/// A key, and whether it ends an interval.
type Element = (Vec<u8>, bool);

/// Elements of one message: the length of an attribute has 16 bits, and an element at most 48 bytes.
const ELEMENTS: usize = 1000;
/// nft's numbers of the types `ipv4_addr` and `ipv6_addr`, and its notes "the keys have network byte order"
/// and "the interval has no end": nft shows the sets accordingly.
const KEY_TYPES: (u32, u32) = (7, 8);
const NETWORK_ORDER: [u8; 6] = [0, 4, 2, 0, 0, 0];
const OPEN: [u8; 6] = [1, 4, 1, 0, 0, 0];

// === impl Set ===

impl Set {
    /// The networks of a family.
    pub fn of_networks(name: &'static str, is_ipv4: bool, networks: &[IpNet]) -> Self {
        let elements = edges(&intervals(networks, is_ipv4), is_ipv4);
        Self { name, is_ipv4, has_intervals: true, elements }
    }

    /// The addresses of a family, which the kernel finds faster than intervals.
    pub fn of_addresses(name: &'static str, is_ipv4: bool, addresses: &[IpAddr]) -> Self {
        let of_family = addresses.iter().filter(|it| it.is_ipv4() == is_ipv4);
        let unique: BTreeSet<_> = of_family.map(|it| key(bits(*it), is_ipv4)).collect();
        let elements = unique.into_iter().map(|key| (key, false)).collect();
        Self { name, is_ipv4, has_intervals: false, elements }
    }

    pub fn attributes(&self, table: &str) -> Vec<Attribute> {
        let (kind, length) = if self.is_ipv4 { (KEY_TYPES.0, 4) } else { (KEY_TYPES.1, 16) };
        let mut attributes = vec![
            Attribute::text(OF_TABLE, table),
            Attribute::text(SET_NAME, self.name),
            Attribute::number(SET_KEY_TYPE, kind),
            Attribute::number(SET_KEY_LENGTH, length),
        ];
        // The kernel shows no flags of a set without any.
        attributes.extend(self.has_intervals.then(|| Attribute::number(SET_FLAGS, INTERVAL)));
        attributes
    }

    /// Adds the set and its elements. `number`: unique in the transaction.
    pub fn changes(&self, table: &str, number: u32) -> Vec<Change> {
        let mut attributes = self.attributes(table);
        attributes.push(Attribute::number(SET_NUMBER, number));
        attributes.push(Attribute::Value(SET_USER_DATA, NETWORK_ORDER.to_vec()));
        let mut changes = vec![Change::create(format!("add the set {}", self.name), NEW_SET, attributes)];
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

    /// Whether the kernel's set has the same elements.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn is_same(&self, table: &str) -> io::Result<bool> {
        let of_set = [Attribute::text(OF_TABLE, table), Attribute::text(ELEMENTS_SET, self.name)];
        let found = dump(GET_ELEMENTS, INET, &of_set)?;
        let found: BTreeSet<_> = found.iter().flat_map(|it| elements(&it.1)).collect();
        Ok(found == self.elements.iter().cloned().collect())
    }
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
    edges.extend(intervals.first().filter(|(first, _)| *first > 0).map(|_| (key(0), true)));
    for (first, last) in intervals {
        edges.push((key(*first), false));
        edges.extend((*last < largest).then(|| (key(last.saturating_add(1)), true)));
    }
    edges
}

/// `is_open`: whether the last element, if it begins an interval, has no end.
fn list(elements: &[Element], is_open: bool) -> Vec<Attribute> {
    let item = |(number, (key, is_end)): (usize, &Element)| {
        let mut item = Vec::new();
        item.extend(is_end.then(|| Attribute::number(ELEMENT_FLAGS, INTERVAL_END)));
        item.push(Attribute::Nest(ELEMENT_KEY, vec![Attribute::Value(DATA_VALUE, key.clone())]));
        let is_open = is_open && !is_end && number + 1 == elements.len();
        item.extend(is_open.then(|| Attribute::Value(ELEMENT_USER_DATA, OPEN.to_vec())));
        Attribute::Nest(LIST_ITEM, item)
    };
    elements.iter().enumerate().map(item).collect()
}

/// Those of a message about elements.
fn elements(message: &[u8]) -> Vec<Element> {
    let list = find(message, &[ELEMENTS_LIST]).unwrap_or_default();
    let items = NlasIterator::new(&list[..]).flatten();
    let element = |item: &[u8]| {
        let flags = find(item, &[ELEMENT_FLAGS]).and_then(|it| nfnetlink::number(&it)).unwrap_or_default();
        Some((find(item, &[ELEMENT_KEY, DATA_VALUE])?, flags & INTERVAL_END != 0))
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
    use super::*;

    fn set(is_ipv4: bool, networks: &[&str]) -> Set {
        let networks: Vec<_> = networks.iter().map(|it| it.parse().unwrap()).collect();
        Set::of_networks("some", is_ipv4, &networks)
    }

    fn shown(set: &Set) -> Vec<(String, bool)> {
        let text = |key: &[u8]| match <[u8; 4]>::try_from(key) {
            Ok(v4) => IpAddr::from(v4).to_string(),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(key).unwrap()).to_string(),
        };
        set.elements.iter().map(|(key, is_end)| (text(key), *is_end)).collect()
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
        let edges = edges(&[(5, 9), (20, u128::from(u32::MAX))], true);
        let mut sent = Vec::new();
        let change = Attribute::Nest(ELEMENTS_LIST, list(&edges, true));
        change.encode(&mut sent);
        assert_eq!(elements(&sent), edges);
        assert_eq!(elements(&[]), []);
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
            let mut bytes = Vec::new();
            part.attributes.iter().for_each(|it| it.encode(&mut bytes));
            assert!(bytes.len() < usize::from(u16::MAX));
        }
    }
}
