//! How the ranges of other nodes are reached: the administrator's choice.

use clap::ValueEnum;
use serde::Deserialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub mode: Mode,
    /// UDP port of all nodes' tunnels.
    pub port: u16,
    /// Whether packets between pods of two nodes bypass the stack.
    pub fast_path: bool,
}

// === impl Settings ===

impl Settings {
    /// The UDP port of the tunnel; `None` if the mode has no tunnel.
    pub fn tunnel_port(self) -> Option<u16> {
        matches!(self.mode, Mode::Auto | Mode::Vxlan).then_some(self.port)
    }
}

/// Who routes packets to other nodes' pods, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Directly to nodes on the same network, by VXLAN to all others.
    #[default]
    Auto,
    /// Directly to nodes on the same network, and by the way to the node's address to all others: the
    /// network between the nodes routes the ranges.
    Direct,
    /// By VXLAN to all nodes.
    Vxlan,
    /// Others: the network, a cloud's controller or a routing daemon.
    Off,
}
