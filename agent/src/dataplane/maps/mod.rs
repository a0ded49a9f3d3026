//! The pinned maps: one file per map, and the operations that concern several of them.

mod endpoints;
mod entries;
mod events;
mod link_counters;
mod node_index;
mod nodes;
mod old_counters;
mod policy;
mod shown;
mod stack_flows;
mod subjects;
mod table;
mod underlay;
mod vif_counters;
mod vif_traffic;
mod vifs;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    path::Path,
    sync::Arc,
};

use agent_common::{
    Counters, Dropped, EndpointKey, NodeEntry, NodeKey, Passed, RingKey, Traffic, UnderlayEntry, UnderlayKey,
    VifEntry, VifKey,
};
use aya::maps::{MapError, PerCpuValues};
use ferrule_vif::Addresses;

pub use entries::Entries;
pub use policy::Audit;
pub(super) use policy::{ALL as POLICY, PolicyMaps, RULESETS, flows as policy_flows, old_subjects, runs};
pub use shown::{SUBJECT, ShownRow, shown_subject, shown_text};
pub(super) use subjects::Subjects;
pub use table::{Entry, MapFailure, MapSpec};

use crate::{chain::chain, metrics::MapMetrics, registry::Attachment};
use endpoints::Endpoints;
use link_counters::LinkCounters;
use nodes::Nodes;
use old_counters::OldCounters;
use stack_flows::{OldFlow, StackFlows};
use table::{HashTable, Table as _};
use underlay::Underlay;
use vif_counters::{UNKNOWN, VifCounters};
use vif_traffic::VifTraffic;
use vifs::Vifs;

pub(super) const EVENTS: MapSpec = events::SPEC;
pub(super) const VIFS: MapSpec = Vifs::SPEC;
pub(super) const ENDPOINTS: MapSpec = Endpoints::SPEC;
pub(super) const VIF_COUNTERS: MapSpec = VifCounters::SPEC;
pub(super) const STACK_FLOWS: MapSpec = stack_flows::FLOWS;
pub(super) const FLOW_RINGS: MapSpec = stack_flows::RINGS;
pub(super) const NODES: MapSpec = nodes::SPEC;
pub(super) const LINK_COUNTERS: MapSpec = link_counters::SPEC;
/// The maps that outlive the agent.
pub(super) const PINNED: [MapSpec; 23] = [
    VIFS,
    ENDPOINTS,
    vif_traffic::SPEC,
    VIF_COUNTERS,
    STACK_FLOWS,
    FLOW_RINGS,
    NODES,
    node_index::PREFIXES,
    node_index::LENGTHS,
    underlay::SPEC,
    LINK_COUNTERS,
    EVENTS,
    policy::PEERS,
    policy::BLOCKS,
    RULESETS,
    policy::RULES,
    policy::NAMED,
    policy::PORTS,
    policy_flows::FLOWS,
    policy_flows::PENDING,
    policy_flows::PLACES,
    policy_flows::FRAGMENTS,
    policy_flows::FRAGMENT_PLACES,
];

/// The open maps.
pub(super) struct Maps {
    vifs: HashTable<Vifs>,
    subjects: Arc<Subjects>,
    endpoints: HashTable<Endpoints>,
    traffic: VifTraffic,
    counters: VifCounters,
    flows: StackFlows,
    nodes: Nodes,
    underlay: Underlay,
    links: LinkCounters,
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
    pub(super) fn open(
        pins: &Path,
        subjects: Arc<Subjects>,
        metrics: &MapMetrics,
    ) -> Result<Self, MapFailure> {
        let flows = StackFlows::open(pins)?;
        metrics.capacity(STACK_FLOWS.name).set(flows.capacity.into());
        let vifs: HashTable<Vifs> = HashTable::open(pins, metrics)?;
        let traffic = VifTraffic::open(pins, vifs.rows().into_values().map(|row| row.slot))?;
        Ok(Self {
            flows,
            vifs,
            subjects,
            traffic,
            endpoints: HashTable::open(pins, metrics)?,
            counters: VifCounters::open(pins, metrics)?,
            nodes: Nodes::open(pins, metrics)?,
            underlay: Underlay::open(pins, metrics)?,
            links: LinkCounters::open(pins, metrics)?,
        })
    }

    /// Adds the entry that counts packets of interfaces without an attachment, if it is missing.
    pub(super) fn count_unknown(&mut self) -> Result<(), MapFailure> {
        self.counters.start(UNKNOWN)
    }

    /// Takes over what an earlier agent has left, but for its rows of `UNDERLAY`, which may be of any age:
    /// until there are others, the tunnel device follows the kernel's routes. Failures are logged: strays may
    /// fill a map until the start removes them, and healing retries.
    pub(super) fn take_over(&mut self) {
        if let Err(error) = self.count_unknown() {
            tracing::error!(
                error = chain(&error),
                "cannot count the packets of interfaces without an attachment"
            );
        }
        if let Err(error) = self.underlay.set(&BTreeMap::new()) {
            tracing::error!(error = chain(&error), "cannot remove an earlier agent's ways to other nodes");
        }
        if let Err(error) = self.nodes.index() {
            tracing::error!(error = chain(&error), "cannot index an earlier agent's addresses of nodes");
        }
    }

    /// Writes the rows of an attachment that are missing or wrong. The last rows to be written let packets
    /// in.
    pub(super) fn ensure(&mut self, ifindex: u32, attachment: &Attachment) -> Result<(), MapFailure> {
        self.counters.start(VifKey { ifindex })?;
        self.ensure_vif(ifindex, attachment)?;
        self.endpoints.ensure(ifindex, attachment)
    }

    /// Writes the row of `VIFS`, if it is missing or wrong, with a slot and with what judges the pod.
    fn ensure_vif(&mut self, ifindex: u32, attachment: &Attachment) -> Result<(), MapFailure> {
        let known = self.subjects.known();
        for (key, row) in Vifs::desired(ifindex, attachment) {
            let actual = self.vifs.get(key).ok().flatten();
            let mut row = actual.as_ref().map_or(row, |actual| Vifs::keeping(row, actual));
            let taken = if row.slot == 0 { self.traffic.take()? } else { 0 };
            row.slot |= taken;
            if actual == Some(row) {
                continue;
            }
            row.subject = known.get(&ifindex).copied().unwrap_or_default();
            self.vifs.write(key, row).inspect_err(|_| self.traffic.give_back(taken))?;
        }
        Ok(())
    }

    /// Removes all rows of an attachment; those that let packets in go first.
    pub(super) fn remove(&mut self, ifindex: u32, addresses: Addresses) -> Result<(), MapFailure> {
        for key in endpoints::keys(addresses) {
            // The address may belong to another interface by now.
            if self.endpoints.get(key).ok().flatten().is_some_and(|endpoint| endpoint.ifindex == ifindex) {
                self.endpoints.remove(key)?;
            }
        }
        let key = VifKey { ifindex };
        let (begun, slot) = self.vifs.get(key).ok().flatten().map_or((0, 0), |it| (it.stack_flows, it.slot));
        self.vifs.remove(key)?;
        self.traffic.give_back(slot);
        // Without the entry above, the programs record none.
        self.flows.remove(ifindex, begun);
        self.counters.remove(key)
    }

    /// The sum over all CPUs; `None` if the interface has no entry.
    pub(super) fn counters(&self, ifindex: u32) -> Result<Option<Counters>, MapFailure> {
        let key = VifKey { ifindex };
        let Some(dropped) = self.counters.get(key)? else { return Ok(None) };
        let passed = self.traffic.get(self.slot(key))?;
        Ok(Some(sum(&passed, &dropped)))
    }

    fn slot(&self, key: VifKey) -> u32 {
        self.vifs.get(key).ok().flatten().map_or(0, |vif| vif.slot)
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

    /// Removes the rows of interfaces and addresses that are not live. Of `lost` interfaces, the rows of
    /// `VIFS` stay: they say what judges the interfaces that replace these.
    pub(super) fn retain(
        &mut self,
        live: &HashMap<u32, Addresses>,
        lost: &HashSet<u32>,
    ) -> Result<(), MapFailure> {
        let addresses: HashSet<_> = live.values().flat_map(|addresses| endpoints::keys(*addresses)).collect();
        self.endpoints.retain(|key| addresses.contains(key))?;
        let stays = |key: &VifKey| live.contains_key(&key.ifindex) || lost.contains(&key.ifindex);
        for (key, row) in self.vifs.rows().into_iter().filter(|(key, _)| !stays(key)) {
            self.vifs.remove(key)?;
            self.traffic.give_back(row.slot);
        }
        self.flows.retain(|ifindex| live.contains_key(&ifindex));
        self.counters.retain(|key| *key == UNKNOWN || live.contains_key(&key.ifindex))
    }

    /// Removes a stray entry, unless its row has changed since the snapshot.
    pub(super) fn remove_stray(&mut self, entry: Entry, snapshot: &Entries) -> Result<(), MapFailure> {
        match entry {
            Entry::Vif(ifindex) => {
                let key = VifKey { ifindex };
                let row = self.vifs.get(key).ok().flatten();
                if row.as_ref() == snapshot.vifs.get(&key) {
                    self.vifs.remove(key)?;
                    self.traffic.give_back(row.map_or(0, |row| row.slot));
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
        let known = self.subjects.known();
        for (key, row) in self.vifs.rows_of(from)? {
            if self.vifs.get(key)?.is_none() {
                let slot = self.traffic.take()?;
                let written = self.vifs.write(key, VifEntry { slot, ..row });
                written.inspect_err(|_| self.traffic.give_back(slot))?;
            }
        }
        drop(known);
        self.subjects.learn()
    }

    /// Adds the rows of `ENDPOINTS` that are pinned in another directory and missing here.
    pub(super) fn copy_endpoints(&mut self, from: &Path) -> Result<(), MapFailure> {
        self.endpoints.copy_from(from)
    }

    /// Adds the rows of `NODES` that are pinned in another directory and missing here.
    pub(super) fn copy_nodes(&mut self, from: &Path) -> Result<(), MapFailure> {
        self.nodes.copy_from(from)
    }

    /// Adds the counts of links that are pinned in another directory and missing here.
    pub(super) fn copy_links(&mut self, from: &Path) -> Result<(), MapFailure> {
        self.links.copy_from(from)
    }

    /// The rows of `NODES`.
    pub(super) fn nodes(&self) -> Result<BTreeMap<NodeKey, NodeEntry>, MapFailure> {
        self.nodes.rows()
    }

    /// Whether the index of `NODES` is that of these rows.
    pub(super) fn are_indexed(&self, nodes: &BTreeMap<NodeKey, NodeEntry>) -> Result<bool, MapFailure> {
        self.nodes.are_indexed(nodes)
    }

    /// Makes the rows of `NODES` these; returns the rows before.
    pub(super) fn set_nodes(
        &mut self,
        wanted: &BTreeMap<NodeKey, NodeEntry>,
    ) -> Result<BTreeMap<NodeKey, NodeEntry>, MapFailure> {
        self.nodes.set(wanted)
    }

    /// The rows of `UNDERLAY`.
    pub(super) fn underlay(&self) -> Result<BTreeMap<UnderlayKey, UnderlayEntry>, MapFailure> {
        self.underlay.rows()
    }

    /// Makes the rows of `UNDERLAY` these.
    pub(super) fn set_underlay(
        &mut self,
        wanted: &BTreeMap<UnderlayKey, UnderlayEntry>,
    ) -> Result<(), MapFailure> {
        self.underlay.set(wanted)
    }

    /// The counts of links, by interface index.
    pub(super) fn links(&self) -> Result<BTreeMap<u32, Traffic>, MapFailure> {
        self.links.rows()
    }

    /// Counts the packets of these links only.
    pub(super) fn count_links(&mut self, wanted: &BTreeSet<u32>) -> Result<(), MapFailure> {
        self.links.count(wanted)
    }

    /// Adds the flows that are pinned in another directory, unless both ends are gone.
    pub(super) fn copy_flows(&mut self, from: &Path) -> Result<(), MapFailure> {
        /// In the place of the interface's index: the end is a pod of another node.
        const REMOTE: u32 = 0;
        for (number, OldFlow { key, flow, place }) in stack_flows::old_flows(from)?.into_iter().enumerate() {
            let ends = [key.low, key.high].map(|end| self.endpoints.get(end).ok().flatten());
            let [low, high] = ends.map(|end| end.map_or(REMOTE, |end| end.ifindex));
            let client = match (low, high) {
                (REMOTE, REMOTE) => continue,
                (REMOTE, local) | (local, REMOTE) => local,
                _ if low == flow.ifindex => high,
                _ => low,
            };
            let place = place.unwrap_or(RingKey { ifindex: client, place: number as u32 });
            for (ifindex, peer) in [(low, high), (high, low)] {
                self.mark(ifindex, peer)?;
            }
            self.flows.add(key, flow, place)?;
        }
        Ok(())
    }

    /// Notes that a pod has had a translated flow with another one.
    fn mark(&mut self, ifindex: u32, peer: u32) -> Result<(), MapFailure> {
        let key = VifKey { ifindex };
        let _known = self.subjects.known();
        let Some(mut vif) = self.vifs.get(key)? else { return Ok(()) };
        let Some(mark) = vif.stack_peers.get_mut(VifEntry::peer(peer)).filter(|mark| **mark == 0) else {
            return Ok(());
        };
        *mark = 1;
        // The whole quota is looked through when the pod goes.
        vif.stack_flows = vif.stack_flows.max(u32::MAX / 2);
        self.vifs.write(key, vif)
    }

    /// Copies the counts in another directory into the entries that are still zero. Entries with counts were
    /// copied before, by an agent that did not complete its start.
    pub(super) fn copy_counters(&mut self, from: &Path) -> Result<(), MapFailure> {
        let from = OldCounters::open(from)?;
        for key in self.counters.rows().into_keys() {
            let Some(old) = from.get(key)? else { continue };
            let Some(dropped) = self.counters.get(key)? else { continue };
            let slot = self.slot(key);
            let (old_passed, old_dropped): (Vec<Passed>, Vec<Dropped>) = old.into_iter().unzip();
            // Apart: an agent may have died between the two.
            if slot != 0 && self.traffic.get(slot)?.iter().all(|cpu| *cpu == Passed::default()) {
                self.traffic.set(slot, per_cpu(old_passed)?)?;
            }
            if dropped.iter().all(|cpu| *cpu == Dropped::default()) {
                self.counters.set(key, per_cpu(old_dropped)?)?;
            }
        }
        Ok(())
    }
}

fn sum(passed: &PerCpuValues<Passed>, dropped: &PerCpuValues<Dropped>) -> Counters {
    let mut sum = Counters::default();
    passed.iter().for_each(|cpu| sum += cpu);
    dropped.iter().for_each(|cpu| sum += cpu);
    sum
}

fn per_cpu<T: aya::Pod>(values: Vec<T>) -> Result<PerCpuValues<T>, MapFailure> {
    PerCpuValues::try_from(values).map_err(MapError::from).map_err(VIF_COUNTERS.failure("write to"))
}
