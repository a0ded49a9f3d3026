//! The setting `--policy`.

use clap::ValueEnum;
use serde::Deserialize;

/// Whether the cluster's policies are enforced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Enforce,
    /// Pods may send and receive everything.
    Off,
}
