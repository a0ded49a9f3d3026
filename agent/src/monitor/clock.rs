//! Converts the programs' time, which counts from boot, to the time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::registry::since_boot;

/// The time of day at boot, by the clock as it is set now.
#[derive(Debug, Default)]
pub(super) struct WallClock {
    boot: Duration,
}

/// Smaller differences are the time between two readings; following them would reorder records.
const TOLERANCE: Duration = Duration::from_millis(1);

// === impl WallClock ===

impl WallClock {
    /// The time since the Unix epoch of a time since boot, in nanoseconds.
    pub fn at(&mut self, since_boot_ns: u64) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.follow(now.saturating_sub(since_boot()));
        let at = self.boot.saturating_add(Duration::from_nanos(since_boot_ns));
        u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
    }

    fn follow(&mut self, boot: Duration) {
        if boot.abs_diff(self.boot) > TOLERANCE {
            self.boot = boot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_day_is_that_of_the_record_and_not_of_its_reading() {
        let mut clock = WallClock::default();
        let (now, boot) = (SystemTime::now().duration_since(UNIX_EPOCH).unwrap(), since_boot());
        let ago = Duration::from_secs(7);
        let at = Duration::from_nanos(clock.at(u64::try_from((boot - ago).as_nanos()).unwrap()));
        assert!(at.abs_diff(now - ago) < Duration::from_millis(100), "{at:?} {now:?}");
    }

    #[test]
    fn records_keep_their_order_until_the_clock_is_set() {
        let mut clock = WallClock::default();
        clock.follow(Duration::from_secs(1000));
        clock.follow(Duration::from_micros(1_000_000_900));
        assert_eq!(clock.boot, Duration::from_secs(1000));
        clock.follow(Duration::from_secs(900));
        assert_eq!(clock.boot, Duration::from_secs(900), "the clock was set back");
    }
}
