//! The configured capacities of the maps.

use std::ops::RangeInclusive;

use agent_common::{MAX_ENDPOINTS, MAX_FLOWS, MAX_NODE_ENTRIES, MAX_VIFS};

/// The most entries that each map can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacities {
    /// Of `VIFS` and `VIF_COUNTERS`.
    pub vifs: u32,
    pub endpoints: u32,
    pub stack_flows: u32,
    /// Of `NODES`: ranges and addresses of all nodes.
    pub node_entries: u32,
}

// === impl Capacities ===

impl Capacities {
    pub const VIFS: RangeInclusive<u32> = 1..=1 << 20;
    pub const ENDPOINTS: RangeInclusive<u32> = 1..=1 << 20;
    /// A pod has a 16th of it.
    pub const STACK_FLOWS: RangeInclusive<u32> = 4096..=1 << 22;
    pub const NODE_ENTRIES: RangeInclusive<u32> = 64..=1 << 20;
}

impl Default for Capacities {
    fn default() -> Self {
        Self {
            vifs: MAX_VIFS as u32,
            endpoints: MAX_ENDPOINTS as u32,
            stack_flows: MAX_FLOWS as u32,
            node_entries: MAX_NODE_ENTRIES as u32,
        }
    }
}
