//! `FLOW_STATS`: the flows that the programs count.

use agent_common::{FlowKey, MAX_FLOW_STATS, event::FlowStats};
use aya::{
    Ebpf,
    maps::{HashMap, MapData, MapError},
};

use super::MapFailure;

/// The map of newly loaded programs.
pub(super) struct CountedFlows {
    map: HashMap<MapData, FlowKey, FlowStats>,
}

const MAP: &str = "FLOW_STATS";
/// Bounds a walk: a walk whose present flow disappears begins again.
const MOST: usize = 2 * MAX_FLOW_STATS;

// === impl CountedFlows ===

impl CountedFlows {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, MapFailure> {
        let map = ebpf.take_map(MAP).ok_or(MapError::InvalidName { name: MAP.to_owned() });
        Ok(Self { map: map.and_then(HashMap::try_from).map_err(failure("open"))? })
    }

    /// All flows; some twice while the programs displace others. Two system calls for each flow.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn all(&self) -> Result<Vec<(FlowKey, FlowStats)>, MapFailure> {
        self.map.iter().take(MOST).collect::<Result<_, _>>().map_err(failure("read"))
    }

    /// Removes a flow: its next packet begins another one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&mut self, flow: &FlowKey) -> Result<(), MapFailure> {
        match self.map.remove(flow) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(error) => Err(failure("change")(error)),
        }
    }
}

fn failure(action: &'static str) -> impl FnOnce(MapError) -> MapFailure {
    move |source| MapFailure::Access { action, map: MAP, source: Box::new(source) }
}
