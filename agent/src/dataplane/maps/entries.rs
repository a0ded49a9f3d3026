//! A snapshot of the maps, compared with the rows that an attachment needs.

use std::fmt;

use ferrule_vif::Addresses;

use super::{
    endpoints::Endpoints,
    table::{Entry, Rows, Table, wrong},
    vif_counters::{UNKNOWN, VifCounters},
    vifs::{self, Vifs},
};
use crate::registry::Attachment;

/// The rows of all maps that follow from attachments.
#[derive(Clone, Default)]
pub struct Entries {
    pub(super) vifs: Rows<Vifs>,
    pub(super) endpoints: Rows<Endpoints>,
    pub(super) counters: Rows<VifCounters>,
}

// === impl Entries ===

impl Entries {
    /// The entries of an attachment that are missing or wrong.
    pub fn wrong(&self, ifindex: u32, attachment: &Attachment) -> Vec<Entry> {
        wrong::<Vifs>(&self.vifs, ifindex, attachment)
            .chain(wrong::<Endpoints>(&self.endpoints, ifindex, attachment))
            .chain(wrong::<VifCounters>(&self.counters, ifindex, attachment))
            .collect()
    }

    /// The entry that counts packets of interfaces without an attachment, if it is missing.
    pub fn missing_unknown_counters(&self) -> Option<Entry> {
        (!self.counters.contains_key(&UNKNOWN)).then(|| VifCounters::entry(UNKNOWN))
    }

    /// All entries that belong to attachments, or should.
    pub fn iter(&self) -> impl Iterator<Item = Entry> {
        let vifs = self.vifs.keys().map(|key| Vifs::entry(*key));
        let endpoints = self.endpoints.keys().map(|key| Endpoints::entry(*key));
        let counters = self.counters.keys().filter(|key| **key != UNKNOWN);
        vifs.chain(endpoints).chain(counters.map(|key| VifCounters::entry(*key)))
    }

    /// The addresses that the entry of `VIFS` lets an interface use.
    pub fn addresses(&self, ifindex: u32) -> Addresses {
        self.vifs.get(&agent_common::VifKey { ifindex }).map(vifs::addresses).unwrap_or_default()
    }

    /// The snapshot of an agent without attachments.
    #[cfg(test)]
    pub fn of_none() -> Self {
        Self { counters: [(UNKNOWN, ())].into(), ..Self::default() }
    }

    /// The snapshot of an agent with one attachment.
    #[cfg(test)]
    pub fn of(ifindex: u32, attachment: &Attachment) -> Self {
        let mut entries = Self::of_none();
        entries.vifs.extend(Vifs::desired(ifindex, attachment));
        entries.endpoints.extend(Endpoints::desired(ifindex, attachment));
        entries.counters.extend(VifCounters::desired(ifindex, attachment));
        entries
    }

    /// Adds the entries of another snapshot.
    #[cfg(test)]
    pub fn extend(&mut self, more: Self) {
        self.vifs.extend(more.vifs);
        self.endpoints.extend(more.endpoints);
        self.counters.extend(more.counters);
    }

    /// The snapshot without an entry.
    #[cfg(test)]
    pub fn without(mut self, entry: Entry) -> Self {
        self.vifs.retain(|key, _| Vifs::entry(*key) != entry);
        self.endpoints.retain(|key, _| Endpoints::entry(*key) != entry);
        self.counters.retain(|key, ()| VifCounters::entry(*key) != entry);
        self
    }
}

// === impl Entry ===

impl Entry {
    /// The name of the entry's map.
    pub fn map(&self) -> &'static str {
        match self {
            Self::Vif(_) => Vifs::SPEC.name,
            Self::Endpoint(_) => Endpoints::SPEC.name,
            Self::Counters(_) => VifCounters::SPEC.name,
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vif(index) | Self::Counters(index) => write!(f, "{} {index}", self.map()),
            Self::Endpoint(address) => write!(f, "{} {address}", self.map()),
        }
    }
}
