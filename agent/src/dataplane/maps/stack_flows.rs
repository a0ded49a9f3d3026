//! `STACK_FLOWS`: flows between pods of this node that the host's stack translates; and `FLOW_RINGS`: the
//! flows of each client pod.
//!
//! The programs write these maps; no row of them follows from an attachment. Their entries are neither
//! counted nor exported, because a walk over them is expensive. The agent removes the flows of a pod that is
//! gone.

use std::path::Path;

use agent_common::{Flow, FlowKey, RingKey, flows_per_pod};
use aya::maps::{HashMap, MapData};

use super::table::{BPF_NOEXIST, MapFailure, MapSpec, count_entries, max_entries, walk_limit};
use crate::crash::{self, Step};

pub const FLOWS: MapSpec = MapSpec {
    name: "STACK_FLOWS",
    setting: "--max-stack-flows",
    capacity: |capacities| capacities.stack_flows,
    count: count_entries::<FlowKey, Flow>,
};

pub const RINGS: MapSpec = MapSpec {
    name: "FLOW_RINGS",
    setting: "--max-stack-flows",
    // A key for the lock of each ring.
    capacity: |capacities| capacities.stack_flows.saturating_add(capacities.vifs),
    count: count_entries::<RingKey, FlowKey>,
};

/// The open maps.
pub struct StackFlows {
    flows: HashMap<MapData, FlowKey, Flow>,
    rings: HashMap<MapData, RingKey, FlowKey>,
    pub capacity: u32,
}

/// A flow of a replaced map, and its place in the client's ring if that is known.
pub struct OldFlow {
    pub key: FlowKey,
    pub flow: Flow,
    pub place: Option<RingKey>,
}

/// Places that a copied flow tries.
const TRIES: u32 = 64;

// === impl StackFlows ===

impl StackFlows {
    pub fn open(pins: &Path) -> Result<Self, MapFailure> {
        let map = FLOWS.open_pin(pins)?;
        let capacity = max_entries(&map).map_err(FLOWS.failure("read"))?;
        Ok(Self {
            flows: map.try_into().map_err(FLOWS.failure("open"))?,
            rings: RINGS.open_pin(pins)?.try_into().map_err(RINGS.failure("open"))?,
            capacity,
        })
    }

    /// Removes the first flows of a pod's ring.
    pub fn remove(&mut self, ifindex: u32, begun: u32) {
        for place in 0..begun.min(flows_per_pod(self.capacity)) {
            self.clear(RingKey { ifindex, place });
        }
    }

    /// Removes the flows of pods that are not wanted, and places that no ring has: earlier programs had a
    /// lock there.
    pub fn retain(&mut self, is_wanted: impl Fn(u32) -> bool) {
        let all = self.rings.keys().take(walk_limit(self.capacity)).flatten();
        let places = flows_per_pod(self.capacity).max(1);
        let is_stray = |key: &RingKey| !is_wanted(key.ifindex) || key.place >= places;
        let strays: Vec<RingKey> = all.filter(is_stray).collect();
        strays.into_iter().for_each(|key| self.clear(key));
    }

    /// Adds a flow to a client's ring, unless it is recorded already. Without a free place near the wanted
    /// one, the flow is not taken over.
    pub fn add(&mut self, key: FlowKey, flow: Flow, wanted: RingKey) -> Result<(), MapFailure> {
        if self.flows.get(&key, 0).is_ok() {
            return Ok(());
        }
        let quota = flows_per_pod(self.capacity).max(1);
        for attempt in 0..TRIES.min(quota) {
            let place = wanted.place.wrapping_add(attempt) % quota;
            if self.rings.insert(&RingKey { place, ..wanted }, &key, BPF_NOEXIST).is_ok() {
                crash::point(Step::MapWritten);
                let added = self.flows.insert(&key, &flow, 0);
                crash::point(Step::MapWritten);
                return added.map_err(FLOWS.failure("write to"));
            }
        }
        Ok(())
    }

    /// Failures leave an entry, which costs memory only.
    fn clear(&mut self, place: RingKey) {
        let Ok(flow) = self.rings.get(&place, 0) else { return };
        let _ = self.flows.remove(&flow);
        crash::point(Step::MapRemoved);
        let _ = self.rings.remove(&place);
        crash::point(Step::MapRemoved);
    }
}

/// The flows that are pinned in another directory.
pub fn old_flows(from: &Path) -> Result<Vec<OldFlow>, MapFailure> {
    let flows = FLOWS.open_pin(from)?;
    let limit = walk_limit(max_entries(&flows).map_err(FLOWS.failure("read"))?);
    if !RINGS.path(from).exists() {
        // Version 1: the value is the server's host interface.
        let flows: HashMap<MapData, FlowKey, u32> = flows.try_into().map_err(FLOWS.failure("open"))?;
        let old = |(key, ifindex)| OldFlow { key, flow: Flow { ifindex, used: 0 }, place: None };
        return Ok(flows.iter().take(limit).flatten().map(old).collect());
    }
    let flows: HashMap<MapData, FlowKey, Flow> = flows.try_into().map_err(FLOWS.failure("open"))?;
    let rings: HashMap<MapData, RingKey, FlowKey> =
        RINGS.open_pin(from)?.try_into().map_err(RINGS.failure("open"))?;
    let places = rings.iter().take(limit).flatten();
    let old = places
        .filter_map(|(place, key)| Some(OldFlow { key, flow: flows.get(&key, 0).ok()?, place: Some(place) }));
    Ok(old.collect())
}
