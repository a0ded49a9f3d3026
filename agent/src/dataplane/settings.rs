//! What the operator sets of programs and maps.

use super::{capacity::Capacities, log::LogLevel, sampling::Flows};

/// Settings of the dataplane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub log: LogLevel,
    pub capacities: Capacities,
    /// Whether pods may serve DHCP.
    pub dhcp_servers: bool,
    pub flows: Flows,
    /// The UDP port of the tunnel between nodes.
    pub tunnel_port: u16,
    /// Whether this node may have that tunnel.
    pub has_tunnel: bool,
    /// First and last of the UDP ports from which the kernel sends packets of the tunnel.
    pub tunnel_source_ports: [u16; 2],
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            log: LogLevel::default(),
            capacities: Capacities::default(),
            dhcp_servers: false,
            flows: Flows::default(),
            tunnel_port: agent_common::TUNNEL_PORT,
            has_tunnel: true,
            tunnel_source_ports: agent_common::TUNNEL_SOURCE_PORTS,
        }
    }
}
