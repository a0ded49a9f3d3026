//! The settings `--policy` and `--policy-unlisted`.

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

/// What becomes of new pods while the cluster's policies have never been listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unlisted {
    #[default]
    Wait,
    /// They may send and receive everything until the first list.
    Open,
}
