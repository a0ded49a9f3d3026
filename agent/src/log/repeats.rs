//! A bound on the lines that one place of the code logs: a loop of failures must not fill the node's disk.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use tracing::{Level, Metadata, callsite::Identifier};

/// The lines of each place, as token buckets. Bounded by the number of places in the program.
#[derive(Debug, Default)]
pub(super) struct Repeats(Mutex<HashMap<Identifier, Bucket>>);

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
    suppressed: u64,
}

/// What happens to a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The line is logged; so many similar lines before were not.
    Log {
        suppressed: u64,
    },
    Suppress,
}

/// More than a node logs when all its pods start at once.
const BURST: f64 = 1000.0;
/// Lines in a second after a burst.
const RATE: f64 = 1.0;

// === impl Repeats ===

impl Repeats {
    /// Judges a line. Lines of the levels debug and trace, which an operator has asked for, are unbounded.
    pub(super) fn judge(&self, metadata: &Metadata<'_>, now: Instant) -> Verdict {
        if *metadata.level() > Level::INFO {
            return Verdict::Log { suppressed: 0 };
        }
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let full = Bucket { tokens: BURST, filled: now, suppressed: 0 };
        buckets.entry(metadata.callsite()).or_insert(full).take(now)
    }
}

// === impl Bucket ===

impl Bucket {
    fn take(&mut self, now: Instant) -> Verdict {
        let waited = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + waited * RATE).min(BURST);
        self.filled = now;
        if self.tokens < 1.0 {
            self.suppressed += 1;
            return Verdict::Suppress;
        }
        self.tokens -= 1.0;
        Verdict::Log { suppressed: std::mem::take(&mut self.suppressed) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_place_logs_a_burst_and_then_one_line_a_second_with_the_number_of_those_between() {
        let start = Instant::now();
        let mut bucket = Bucket { tokens: BURST, filled: start, suppressed: 0 };
        let logged = (0..1500).filter(|_| bucket.take(start) != Verdict::Suppress).count();
        assert_eq!(logged, 1000);
        let after = start + Duration::from_secs(1);
        assert_eq!(bucket.take(after), Verdict::Log { suppressed: 500 });
        assert_eq!(bucket.take(after), Verdict::Suppress);
        assert_eq!(bucket.take(after + Duration::from_secs(3)), Verdict::Log { suppressed: 1 });
    }

    #[test]
    fn a_quiet_place_gets_its_burst_again() {
        let start = Instant::now();
        let mut bucket = Bucket { tokens: 0.0, filled: start, suppressed: 0 };
        let later = start + Duration::from_hours(24);
        assert_eq!((0..1001).filter(|_| bucket.take(later) != Verdict::Suppress).count(), 1000);
    }
}
