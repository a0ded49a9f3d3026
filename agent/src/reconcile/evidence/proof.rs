//! One claim with its observation.

/// A claim, and what was observed about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    pub holds: bool,
    /// One line.
    pub observed: String,
}

// === impl Proof ===

impl Proof {
    pub(in crate::reconcile) fn yes(observed: impl Into<String>) -> Self {
        Self { holds: true, observed: observed.into() }
    }

    pub(in crate::reconcile) fn no(observed: impl Into<String>) -> Self {
        Self { holds: false, observed: observed.into() }
    }
}
