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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_are_thirty_seconds_apart_or_one_shorter_period() {
        let spacing = |period| Settings::every(Duration::from_secs(period)).spacing.as_secs();
        assert_eq!((PERIOD.as_secs(), spacing(120), spacing(30), spacing(5)), (120, 30, 30, 5));
        assert_eq!(Settings::every(Duration::from_secs(5)).period.as_secs(), 5);
    }
}
