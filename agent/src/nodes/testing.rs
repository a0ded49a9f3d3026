//! Node objects for tests, and an oracle of what each node may have.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::json;

use crate::cluster;

/// A Node object in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Short {
    pub name: String,
    pub uid: String,
    /// Seconds of a minute.
    pub created: u8,
    pub ranges: Vec<String>,
    pub addresses: Vec<String>,
    pub is_unreachable: bool,
}

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The accepted ranges and addresses of a node, in their order.
pub(super) type Accepted = (Vec<String>, Vec<String>);

pub(super) fn short(name: &str, created: u8, ranges: &[&str], addresses: &[&str]) -> Short {
    let owned = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect();
    let (ranges, addresses) = (owned(ranges), owned(addresses));
    let (name, uid) = (name.to_owned(), format!("uid-{name}"));
    Short { name, uid, created, ranges, addresses, is_unreachable: false }
}

// === impl Short ===

impl Short {
    pub fn object(&self) -> Arc<cluster::Node> {
        let addresses: Vec<_> =
            self.addresses.iter().map(|it| json!({ "type": "InternalIP", "address": it })).collect();
        let object = json!({
            "metadata": {
                "name": self.name, "uid": self.uid,
                "creationTimestamp": format!("2026-01-02T03:04:{:02}Z", self.created),
            },
            "spec": {
                "podCIDRs": self.ranges,
                "taints": if self.is_unreachable { json!([{ "key": UNREACHABLE }]) } else { json!([]) },
            },
            "status": { "addresses": addresses },
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }
}

/// First and last number of a range, IPv4 above all of IPv6; `None` if the text is no CIDR.
fn span(text: &str) -> Option<(bool, u32, u128, u128)> {
    let (address, length) = text.split_once('/')?;
    let length: u32 = length.parse().ok()?;
    let (is_v4, bits, number) = match address.parse::<std::net::IpAddr>().ok()? {
        std::net::IpAddr::V4(it) => (true, 32, u128::from(u32::from(it))),
        std::net::IpAddr::V6(it) => (false, 128, u128::from(it)),
    };
    let mask = 1_u128.checked_shl(bits - length).map_or(u128::MAX, |size| size - 1);
    (number & mask == 0).then_some((is_v4, length, number, number | mask))
}

fn meet(one: &str, other: &str) -> bool {
    let (Some((v4, _, first, last)), Some((other_v4, _, other_first, other_last))) = (span(one), span(other))
    else {
        return false;
    };
    v4 == other_v4 && first <= other_last && other_first <= last
}

fn host(address: &str) -> String {
    format!("{address}/{}", if address.contains(':') { 128 } else { 32 })
}

const UNUSABLE: [&str; 8] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "::/96",
    "::ffff:0:0/96",
    "fe80::/10",
    "ff00::/8",
];

/// What each node may have, by its UID: as the rules say, one node after the other, without any index.
pub(super) fn oracle(all: &[Short], own: &str, services: &[&str]) -> BTreeMap<String, Accepted> {
    let mut order: Vec<&Short> = all.iter().collect();
    order.sort_by_key(|it| (it.name != own, it.created, it.uid.clone()));
    let mut placed: Vec<(&Short, Accepted)> = Vec::new();
    for node in order {
        let is_own = node.name == own;
        let is_ranged = |net: &str| placed.iter().any(|(_, of)| of.0.iter().any(|it| meet(it, net)));
        let mut addresses = Vec::new();
        for address in node.addresses.iter().take(8) {
            let is_unicast = !UNUSABLE.iter().any(|it| meet(it, &host(address)));
            if is_unicast && !is_ranged(&host(address)) && !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        let has_address = |range: &str| {
            let older = placed.iter().flat_map(|(_, of)| &of.1);
            older.chain(&addresses).any(|it| meet(range, &host(it)))
        };
        let mut ranges: Vec<String> = Vec::new();
        for range in node.ranges.iter().take(8) {
            let Some((is_v4, length, ..)) = span(range) else { continue };
            let is_refused = length < if is_v4 { 8 } else { 16 }
                || UNUSABLE.iter().any(|it| meet(it, range))
                || services.iter().any(|it| meet(it, range))
                || has_address(range)
                || is_ranged(range)
                || ranges.iter().any(|it| meet(it, range));
            if is_own || !is_refused {
                ranges.push(range.clone());
            }
        }
        placed.push((node, (ranges, addresses)));
    }
    let age = |it: &Short| (it.name != own, it.is_unreachable, it.created, it.uid.clone());
    let held = |node: &Short, (ranges, addresses): &Accepted| {
        let is_taken = |address: &String| {
            placed.iter().any(|(other, of)| age(other) < age(node) && of.1.contains(address))
        };
        (ranges.clone(), addresses.iter().filter(|it| !is_taken(it)).cloned().collect())
    };
    placed.iter().map(|(node, of)| (node.uid.clone(), held(node, of))).collect()
}
