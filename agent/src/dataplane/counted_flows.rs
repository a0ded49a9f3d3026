//! `FLOW_STATS`: the flows that the programs count.

use agent_common::{FlowKey, MAX_FLOW_STATS, event::FlowStats};
use aya::maps::{HashMap, Map, MapData, MapError};

use super::MapFailure;

/// The map of the programs.
pub(super) struct CountedFlows {
    map: HashMap<MapData, FlowKey, FlowStats>,
}

pub(super) const FLOW_STATS: &str = "FLOW_STATS";
/// Bounds a walk: a walk whose present flow disappears begins again.
const MOST: usize = 2 * MAX_FLOW_STATS;

// === impl CountedFlows ===

impl CountedFlows {
    /// Takes the map of the programs, without the flows of an earlier agent.
    pub(super) fn take(map: Map) -> Result<Self, MapFailure> {
        let mut flows = Self { map: HashMap::try_from(map).map_err(failure("open"))? };
        let earlier: Result<Vec<_>, _> = flows.map.keys().take(MOST).collect();
        earlier.map_err(failure("read"))?.iter().try_for_each(|flow| flows.remove(flow))?;
        Ok(flows)
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
    move |source| MapFailure::Access { action, map: FLOW_STATS, source: Box::new(source) }
}
