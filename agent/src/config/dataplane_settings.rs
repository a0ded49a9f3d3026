//! The settings of programs and maps.

use std::ops::RangeInclusive;

use super::{ConfigError, Settings};
use crate::dataplane::{self, Capacities};

// === impl Settings ===

impl Settings {
    pub(super) fn dataplane(&self) -> Result<dataplane::Settings, ConfigError> {
        let default = Capacities::default();
        let capacities = Capacities {
            vifs: capacity("--max-vifs", self.max_vifs, default.vifs, Capacities::VIFS)?,
            endpoints: capacity(
                "--max-endpoints",
                self.max_endpoints,
                default.endpoints,
                Capacities::ENDPOINTS,
            )?,
            stack_flows: capacity(
                "--max-stack-flows",
                self.max_stack_flows,
                default.stack_flows,
                Capacities::STACK_FLOWS,
            )?,
            node_entries: capacity(
                "--max-node-entries",
                self.max_node_entries,
                default.node_entries,
                Capacities::NODE_ENTRIES,
            )?,
            policy_peers: capacity(
                "--max-policy-peers",
                self.max_policy_peers,
                default.policy_peers,
                Capacities::POLICY_PEERS,
            )?,
            policy_rules: capacity(
                "--max-policy-rules",
                self.max_policy_rules,
                default.policy_rules,
                Capacities::POLICY_RULES,
            )?,
            policy_flows: capacity(
                "--max-policy-flows",
                self.max_policy_flows,
                default.policy_flows,
                Capacities::POLICY_FLOWS,
            )?,
        };
        let (log, dhcp_servers) =
            (self.ebpf_log.unwrap_or_default(), self.allow_dhcp_servers.unwrap_or_default());
        let flows = self.flows.unwrap_or_default();
        let nodes = self.nodes()?;
        let (tunnel_port, has_tunnel) = (nodes.port, nodes.tunnel_port().is_some());
        Ok(dataplane::Settings {
            log,
            capacities,
            dhcp_servers,
            flows,
            tunnel_port,
            has_tunnel,
            ..dataplane::Settings::default()
        })
    }
}

fn capacity(
    setting: &'static str,
    given: Option<u32>,
    default: u32,
    allowed: RangeInclusive<u32>,
) -> Result<u32, ConfigError> {
    let given = given.unwrap_or(default);
    if allowed.contains(&given) {
        return Ok(given);
    }
    Err(ConfigError::Capacity { setting, least: *allowed.start(), most: *allowed.end(), given })
}
