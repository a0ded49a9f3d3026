//! A snapshot of the maps, and what of it is not as an attachment needs it.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use agent_common::{Endpoint, EndpointKey, VifEntry};

use super::encode::{UNKNOWN, addresses, endpoint, endpoint_keys, ip, vif_entry};
use crate::registry::Attachment;
use ferrule_vif::Addresses;

/// What the maps have.
#[derive(Clone, Default)]
pub struct Entries {
    pub(super) vifs: HashMap<u32, VifEntry>,
    pub(super) endpoints: HashMap<EndpointKey, Endpoint>,
    pub(super) counters: HashSet<u32>,
}

/// An entry, by its map and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    Vif(u32),
    Endpoint(IpAddr),
    Counters(u32),
}

// === impl Entries ===

impl Entries {
    /// Those that an attachment needs and that are missing or say something else.
    pub fn wrong(&self, ifindex: u32, attachment: &Attachment) -> Vec<Entry> {
        let mut wrong = Vec::new();
        if self.vifs.get(&ifindex) != Some(&vif_entry(attachment)) {
            wrong.push(Entry::Vif(ifindex));
        }
        let right = endpoint(ifindex, attachment);
        let keys = endpoint_keys(attachment.vif.addresses);
        wrong.extend(
            keys.filter(|key| self.endpoints.get(key) != Some(&right)).map(|key| Entry::Endpoint(ip(key))),
        );
        if !self.counters.contains(&ifindex) {
            wrong.push(Entry::Counters(ifindex));
        }
        wrong
    }

    /// The one by which packets of nobody are counted, if it is missing. It belongs to no attachment.
    pub fn missing_of_nobody(&self) -> Option<Entry> {
        let is_there = self.counters.contains(&UNKNOWN.ifindex);
        (!is_there).then_some(Entry::Counters(UNKNOWN.ifindex))
    }

    /// All of them, but for where packets of nobody are counted.
    pub fn iter(&self) -> impl Iterator<Item = Entry> {
        let vifs = self.vifs.keys().map(|ifindex| Entry::Vif(*ifindex));
        let endpoints = self.endpoints.keys().map(|key| Entry::Endpoint(ip(*key)));
        let counters = self.counters.iter().filter(|it| **it != UNKNOWN.ifindex);
        vifs.chain(endpoints).chain(counters.map(|ifindex| Entry::Counters(*ifindex)))
    }

    /// The addresses that an entry of `VIFS` lets an interface use.
    pub fn addresses(&self, ifindex: u32) -> Addresses {
        self.vifs.get(&ifindex).map(addresses).unwrap_or_default()
    }

    /// The snapshot of an agent without attachments.
    #[cfg(test)]
    pub fn of_none() -> Self {
        Self { counters: [UNKNOWN.ifindex].into(), ..Self::default() }
    }

    /// The snapshot of an agent that wrote an attachment's entries.
    #[cfg(test)]
    pub fn of(ifindex: u32, attachment: &Attachment) -> Self {
        let endpoints =
            endpoint_keys(attachment.vif.addresses).map(|key| (key, endpoint(ifindex, attachment)));
        Self {
            vifs: [(ifindex, vif_entry(attachment))].into(),
            endpoints: endpoints.collect(),
            counters: [UNKNOWN.ifindex, ifindex].into(),
        }
    }

    /// Those of another one as well.
    #[cfg(test)]
    pub fn extend(&mut self, more: Self) {
        self.vifs.extend(more.vifs);
        self.endpoints.extend(more.endpoints);
        self.counters.extend(more.counters);
    }

    /// The same without an entry.
    #[cfg(test)]
    pub fn without(mut self, entry: Entry) -> Self {
        match entry {
            Entry::Vif(ifindex) => drop(self.vifs.remove(&ifindex)),
            Entry::Endpoint(address) => self.endpoints.retain(|key, _| ip(*key) != address),
            Entry::Counters(ifindex) => drop(self.counters.remove(&ifindex)),
        }
        self
    }
}
