//! The pinned maps: one file per map, and the operations that concern several of them.

mod endpoints;
mod entries;
mod stack_flows;
mod table;
mod vif_counters;
mod vifs;

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    path::Path,
};

use agent_common::{Counters, EndpointKey, VifEntry, VifKey};
use ferrule_vif::Addresses;

pub use entries::Entries;
pub(super) use stack_flows::copy as copy_flows;
pub use table::{Entry, MapFailure, MapSpec};

use crate::{metrics::MapMetrics, registry::Attachment};
use endpoints::Endpoints;
use table::{HashTable, Table as _};
use vif_counters::{UNKNOWN, VifCounters};
use vifs::Vifs;

pub(super) const VIFS: MapSpec = Vifs::SPEC;
pub(super) const ENDPOINTS: MapSpec = Endpoints::SPEC;
pub(super) const VIF_COUNTERS: MapSpec = VifCounters::SPEC;
pub(super) const STACK_FLOWS: MapSpec = stack_flows::SPEC;
/// The maps that outlive the agent.
pub(super) const PINNED: [MapSpec; 4] = [VIFS, ENDPOINTS, VIF_COUNTERS, STACK_FLOWS];

/// The maps whose rows follow from attachments, open.
pub(super) struct Maps {
    vifs: HashTable<Vifs>,
    endpoints: HashTable<Endpoints>,
    counters: VifCounters,
}

/// The rows of a host interface, as an earlier agent wrote them.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub vif: VifEntry,
    /// The interface's addresses, and the index of the interface that each of them is delivered to.
    pub owners: Vec<(IpAddr, u32)>,
}

// === impl Maps ===

impl Maps {
    /// Opens the pinned maps.
    pub(super) fn open(pins: &Path, metrics: &MapMetrics) -> Result<Self, MapFailure> {
        metrics.capacity(stack_flows::SPEC.name).set(stack_flows::capacity(pins)?.into());
        Ok(Self {
            vifs: HashTable::open(pins, metrics)?,
            endpoints: HashTable::open(pins, metrics)?,
            counters: VifCounters::open(pins, metrics)?,
        })
    }

    /// Adds the entry that counts packets of interfaces without an attachment, if it is missing.
    pub(super) fn count_unknown(&mut self) -> Result<(), MapFailure> {
        self.counters.start(UNKNOWN)
    }

    /// Writes the rows of an attachment that are missing or wrong. The last rows to be written let packets
    /// in.
    pub(super) fn ensure(&mut self, ifindex: u32, attachment: &Attachment) -> Result<(), MapFailure> {
        self.counters.start(VifKey { ifindex })?;
        self.vifs.ensure(ifindex, attachment)?;
        self.endpoints.ensure(ifindex, attachment)
    }

    /// Removes all rows of an attachment; those that let packets in go first.
    pub(super) fn remove(&mut self, ifindex: u32, addresses: Addresses) -> Result<(), MapFailure> {
        for key in endpoints::keys(addresses) {
            // The address may belong to another interface by now.
            if self.endpoints.get(key).ok().flatten().is_some_and(|endpoint| endpoint.ifindex == ifindex) {
                self.endpoints.remove(key)?;
            }
        }
        self.vifs.remove(VifKey { ifindex })?;
        self.counters.remove(VifKey { ifindex })
    }

    /// The sum over all CPUs; `None` if the interface has no entry.
    pub(super) fn counters(&self, ifindex: u32) -> Result<Option<Counters>, MapFailure> {
        self.counters.get(VifKey { ifindex })
    }

    /// The rows of an interface; `None` if `VIFS` has none.
    pub(super) fn recorded(&self, ifindex: u32) -> Result<Option<Recorded>, MapFailure> {
        let Some(vif) = self.vifs.get(VifKey { ifindex })? else { return Ok(None) };
        let owners = vifs::addresses(&vif).iter().map(|address| {
            let endpoint = self.endpoints.get(endpoints::key(address))?;
            Ok((address, endpoint.map_or(ifindex, |endpoint| endpoint.ifindex)))
        });
        Ok(Some(Recorded { vif, owners: owners.collect::<Result<_, MapFailure>>()? }))
    }

    /// All rows.
    pub(super) fn entries(&self) -> Entries {
        Entries { vifs: self.vifs.rows(), endpoints: self.endpoints.rows(), counters: self.counters.rows() }
    }

    /// The rows of an interface and of some addresses.
    pub(super) fn entries_of(&self, ifindex: u32, addresses: Addresses) -> Entries {
        let key = VifKey { ifindex };
        let endpoint = |key: EndpointKey| Some((key, self.endpoints.get(key).ok()??));
        Entries {
            vifs: self.vifs.get(key).ok().flatten().map(|row| (key, row)).into_iter().collect(),
            endpoints: endpoints::keys(addresses).filter_map(endpoint).collect(),
            counters: self.counters.get(key).ok().flatten().map(|_| (key, ())).into_iter().collect(),
        }
    }

    /// Removes the rows of interfaces and addresses that are not live.
    pub(super) fn retain(&mut self, live: &HashMap<u32, Addresses>) -> Result<(), MapFailure> {
        let addresses: HashSet<_> = live.values().flat_map(|addresses| endpoints::keys(*addresses)).collect();
        self.endpoints.retain(|key| addresses.contains(key))?;
        self.vifs.retain(|key| live.contains_key(&key.ifindex))?;
        self.counters.retain(|key| *key == UNKNOWN || live.contains_key(&key.ifindex))
    }

    /// Removes a stray entry, unless its row has changed since the snapshot.
    pub(super) fn remove_stray(&mut self, entry: Entry, snapshot: &Entries) -> Result<(), MapFailure> {
        match entry {
            Entry::Vif(ifindex) => {
                let key = VifKey { ifindex };
                if self.vifs.get(key).ok().flatten().as_ref() == snapshot.vifs.get(&key) {
                    self.vifs.remove(key)?;
                }
            }
            Entry::Endpoint(address) => {
                let key = endpoints::key(address);
                if self.endpoints.get(key).ok().flatten().as_ref() == snapshot.endpoints.get(&key) {
                    self.endpoints.remove(key)?;
                }
            }
            Entry::Counters(ifindex) => self.counters.remove(VifKey { ifindex })?,
        }
        Ok(())
    }

    /// Adds the rows of `VIFS` that are pinned in another directory and missing here.
    pub(super) fn copy_vifs(&mut self, from: &Path) -> Result<(), MapFailure> {
        self.vifs.copy_from(from)
    }

    /// Adds the rows of `ENDPOINTS` that are pinned in another directory and missing here.
    pub(super) fn copy_endpoints(&mut self, from: &Path) -> Result<(), MapFailure> {
        self.endpoints.copy_from(from)
    }

    /// Copies counts into the entries that are still zero.
    pub(super) fn copy_counters(&mut self, from: &Path) -> Result<(), MapFailure> {
        self.counters.copy_from(from)
    }
}
