//! The pace of garbage collection.

use std::time::Duration;

/// The pace of garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// From one round to the next; jitter is added.
    pub period: Duration,
    /// The minimal time between the two observations that a removal needs.
    pub spacing: Duration,
}

/// The default period (Kuryr's `watch_reconcile_period`).
pub const PERIOD: Duration = Duration::from_secs(120);
/// Longer than a runtime takes from the creation of a namespace to its ADD, or from the unmount to its DEL.
const SPACING: Duration = Duration::from_secs(30);

// === impl Settings ===

impl Settings {
    /// One round per period.
    pub fn every(period: Duration) -> Self {
        Self { period, spacing: SPACING.min(period) }
    }
}
