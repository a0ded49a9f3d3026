//! The configured capacities of the maps.

use std::ops::RangeInclusive;

use agent_common::{
    MAX_ENDPOINTS, MAX_FLOWS, MAX_NODE_ENTRIES, MAX_POLICY_FLOWS, MAX_POLICY_PEERS, MAX_POLICY_RULES,
    MAX_VIFS, rulesets,
};

/// The most entries that each map can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacities {
    /// Of `VIFS`, `VIF_TRAFFIC` and `VIF_COUNTERS`.
    pub vifs: u32,
    pub endpoints: u32,
    pub stack_flows: u32,
    /// Of `NODES`: ranges and addresses of all nodes.
    pub node_entries: u32,
    /// Of `PEERS`. A restart needs each row twice.
    pub policy_peers: u32,
    /// Of `RULES`; `NAMED` has half of it, `BLOCKS` a quarter, `PORTS` an eighth, `RULESETS` a 32nd. A
    /// restart needs each row twice.
    pub policy_rules: u32,
    /// Of `POLICY_FLOWS`; `POLICY_PENDING` has a quarter of it.
    pub policy_flows: u32,
}

// === impl Capacities ===

impl Capacities {
    pub const VIFS: RangeInclusive<u32> = 1..=1 << 20;
    pub const ENDPOINTS: RangeInclusive<u32> = 1..=1 << 20;
    /// A pod has a 16th of it.
    pub const STACK_FLOWS: RangeInclusive<u32> = 4096..=1 << 22;
    pub const NODE_ENTRIES: RangeInclusive<u32> = 64..=1 << 20;
    pub const POLICY_PEERS: RangeInclusive<u32> = 1024..=1 << 24;
    pub const POLICY_RULES: RangeInclusive<u32> = 4096..=1 << 24;
    pub const POLICY_FLOWS: RangeInclusive<u32> = 4096..=1 << 24;

    /// The rows of one table that the policy maps take: half of them, because a restart writes a second one.
    pub fn of_policy(&self) -> ferrule_policy::Capacities {
        let half = |entries: u32| (entries / 2) as usize;
        ferrule_policy::Capacities {
            peers: half(self.policy_peers),
            blocks: half(self.policy_rules / 4),
            rulesets: half(rulesets(self.policy_rules)),
            rules: half(self.policy_rules),
            named: half(self.policy_rules / 2),
            ports: half(self.policy_rules / 8),
            endpoints: self.vifs as usize,
            matches: ferrule_policy::Capacities::MATCHES,
        }
    }
}

impl Default for Capacities {
    fn default() -> Self {
        Self {
            vifs: MAX_VIFS as u32,
            endpoints: MAX_ENDPOINTS as u32,
            stack_flows: MAX_FLOWS as u32,
            node_entries: MAX_NODE_ENTRIES as u32,
            policy_peers: MAX_POLICY_PEERS as u32,
            policy_rules: MAX_POLICY_RULES as u32,
            policy_flows: MAX_POLICY_FLOWS as u32,
        }
    }
}
