//! What was not understood.

use std::fmt;

use serde::Serialize;

use crate::PolicyId;

/// An object that cannot be decoded at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{policy}: {field}: {reason}")]
pub struct DecodeError {
    /// The policy.
    pub policy: PolicyId,
    /// The path of the field, for instance `spec`.
    pub field: String,
    /// What was found and what was expected.
    pub reason: String,
}

/// A part of a policy that was not understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The path of the field, for instance `spec.ingress[0].from[1]`.
    pub field: String,
    /// What was found and what was expected.
    pub reason: String,
    /// What follows.
    pub effect: Effect,
}

/// What follows from a [`Problem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// The policy isolates its subjects and allows nothing.
    Isolates,
    /// The rule, which accepts, matches nothing.
    MatchesNothing,
    /// The rule denies all traffic of the subjects in its direction.
    DeniesAll,
    /// Only the rules that deny or pass apply, they deny, and they come first and apply to all pods where the
    /// policy does not say otherwise.
    DeniesOnly,
}

// === impl Problem ===

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effect = match self.effect {
            Effect::Isolates => "the policy isolates its pods and allows nothing",
            Effect::MatchesNothing => "the rule matches nothing",
            Effect::DeniesAll => "the rule denies everything",
            Effect::DeniesOnly => "the policy only denies",
        };
        write!(f, "{}: {}; {effect}", self.field, self.reason)
    }
}
