//! `FLOW_SAMPLING`: of how many flows the programs count and record one.

use aya::maps::{Array, Map, MapData, MapError};

use super::MapFailure;

/// Whether flows are counted and recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flows {
    /// The verifier removes the code from the programs.
    Never,
    /// Not now; `ferrulectl flows --sampling` switches while packets flow.
    #[default]
    Off,
    /// All flows, from the start.
    On,
}

/// The number, and the map by which the programs see its changes.
pub(super) struct Sampling {
    map: Array<MapData, u32>,
    one_in: u32,
    is_possible: bool,
}

/// The sampling of flows cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum SamplingError {
    #[error("cannot record flows: the agent runs with --flows never; start the agent with --flows off or on")]
    Never,
    #[error(transparent)]
    Map(#[from] MapFailure),
}

pub(super) const FLOW_SAMPLING: &str = "FLOW_SAMPLING";

// === impl Sampling ===

impl Sampling {
    /// Takes the map of the programs, which may have the number of an earlier agent.
    pub(super) fn take(map: Map, flows: Flows) -> Result<Self, MapFailure> {
        let map = Array::try_from(map).map_err(failure("open"))?;
        let mut sampling = Self { map, one_in: 0, is_possible: flows != Flows::Never };
        sampling.write(u32::from(flows == Flows::On))?;
        Ok(sampling)
    }

    pub(super) fn one_in(&self) -> u32 {
        self.one_in
    }

    pub(super) fn set(&mut self, one_in: u32) -> Result<(), SamplingError> {
        if !self.is_possible && one_in != 0 {
            return Err(SamplingError::Never);
        }
        Ok(self.write(one_in)?)
    }

    fn write(&mut self, one_in: u32) -> Result<(), MapFailure> {
        self.map.set(0, &one_in, 0).map_err(failure("write to"))?;
        self.one_in = one_in;
        Ok(())
    }
}

fn failure(action: &'static str) -> impl FnOnce(MapError) -> MapFailure {
    move |source| MapFailure::Access { action, map: FLOW_SAMPLING, source: Box::new(source) }
}
