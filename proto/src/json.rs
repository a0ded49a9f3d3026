//! JSON of the messages of [`crate::agent`] where it differs from the fields of the message: see `build.rs`.

use serde::{Serialize as _, Serializer};

use crate::agent::{
    Drop, attachment, component, node_range, pod_address, pod_check, pod_verdict, policy_state,
};

/// Serializes an [`attachment::State`] as its name.
pub(crate) fn attachment_state<S: Serializer>(state: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    attachment::State::try_from(*state).unwrap_or_default().name().serialize(serializer)
}

/// Serializes a [`component::State`] as its name.
pub(crate) fn component_state<S: Serializer>(state: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    component::State::try_from(*state).unwrap_or_default().name().serialize(serializer)
}

/// Serializes a [`node_range::Way`] as its name.
pub(crate) fn node_range_way<S: Serializer>(way: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    node_range::Way::try_from(*way).unwrap_or_default().name().serialize(serializer)
}

/// Serializes a [`policy_state::Kind`] as its name.
pub(crate) fn policy_state<S: Serializer>(kind: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    policy_state::Kind::try_from(*kind).unwrap_or_default().name().serialize(serializer)
}

/// Serializes a [`pod_address::State`] as its name.
pub(crate) fn address_state<S: Serializer>(state: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    pod_address::State::try_from(*state).unwrap_or_default().name().serialize(serializer)
}

/// Serializes a [`pod_check::Outcome`] as its name.
pub(crate) fn check_outcome<S: Serializer>(outcome: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    pod_check::Outcome::try_from(*outcome).unwrap_or_default().name().serialize(serializer)
}

/// Serializes a [`pod_verdict::Kind`] as its name.
pub(crate) fn verdict_kind<S: Serializer>(kind: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    pod_verdict::Kind::try_from(*kind).unwrap_or_default().name().serialize(serializer)
}

/// Serializes drop counters as a map from reason to packets.
pub(crate) fn drops<S: Serializer>(drops: &[Drop], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(drops.iter().map(|drop| (&drop.reason, drop.packets)))
}

impl attachment::State {
    /// The name that `ferrulectl` shows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "?",
            Self::Reserved => "reserved",
            Self::Plugged => "plugged",
            Self::Attached => "attached",
            Self::Unplugging => "unplugging",
        }
    }
}

impl component::State {
    /// The name that `ferrulectl` shows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "?",
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
        }
    }
}

impl node_range::Way {
    /// The name that `ferrulectl -o json` shows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "?",
            Self::Own => "own",
            Self::Direct => "direct",
            Self::Vxlan => "vxlan",
            Self::None => "none",
        }
    }
}

impl policy_state::Kind {
    /// The name that `ferrulectl` shows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "?",
            Self::Gathering => "gathering",
            Self::Open => "open",
            Self::Enforcing => "enforcing",
            Self::Refused => "refused",
        }
    }
}

impl pod_address::State {
    /// The name that `ferrulectl` shows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "?",
            Self::Used => "used",
            Self::Promised => "promised",
            Self::Left => "left",
            Self::Resting => "resting",
        }
    }
}

impl pod_check::Outcome {
    /// The name that `ferrulectl` shows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "?",
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

impl pod_verdict::Kind {
    /// The name that `ferrulectl` shows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "?",
            Self::Carried => "carried",
            Self::Impaired => "impaired",
            Self::NotCarried => "not carried",
            Self::NodeNetwork => "on its node's network",
        }
    }
}
