//! Exponential backoff, for everything in the agent that retries.

use std::time::Duration;

use tokio::time::Instant;

/// How delays grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    first: Duration,
    cap: Duration,
    jitter: bool,
    reset_after: Duration,
}

/// The failures of one retried operation.
#[derive(Debug, Clone)]
pub struct Backoff {
    policy: Policy,
    failures: u32,
    last: Option<Instant>,
}

/// The longest delay that a server may request.
const MAX_REQUESTED: Duration = Duration::from_secs(300);

// === impl Policy ===

impl Policy {
    /// Delays of `first`, twice that, and so on up to `cap`, without jitter and without an end of the series.
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap, jitter: false, reset_after: Duration::MAX }
    }

    /// Stretches each delay by a random factor between 1 and 2, still up to the cap, so that the agents of a
    /// thousand nodes do not retry together.
    pub const fn with_jitter(self) -> Self {
        Self { jitter: true, ..self }
    }

    /// Restarts the series after a healthy spell: this long without a failure. A single success does not.
    pub const fn reset_after(self, reset_after: Duration) -> Self {
        Self { reset_after, ..self }
    }

    /// The delay after a number of consecutive failures, of which there is at least one.
    pub fn delay(&self, failures: u32) -> Duration {
        // Greater powers exceed any cap, and would overflow.
        let exponent = failures.saturating_sub(1).min(16);
        let delay = self.first.saturating_mul(1 << exponent).min(self.cap);
        if self.jitter { delay.mul_f64(1.0 + fastrand::f64()).min(self.cap) } else { delay }
    }
}

// === impl Backoff ===

impl Backoff {
    pub const fn new(policy: Policy) -> Self {
        Self { policy, failures: 0, last: None }
    }

    /// Counts a failure, and returns the delay before the next attempt.
    pub fn next(&mut self, now: Instant) -> Duration {
        self.count(now);
        self.policy.delay(self.failures)
    }

    /// Like [`Self::next`], or as long as the server requests, up to five minutes, if that is longer. Up to a
    /// tenth is added to the request, because the server requests the same of other nodes.
    pub fn next_requested(&mut self, requested: Option<Duration>, now: Instant) -> Duration {
        let requested = requested.unwrap_or_default().min(MAX_REQUESTED);
        self.next(now).max(requested.mul_f64(1.0 + 0.1 * fastrand::f64()))
    }

    /// Failures since the last healthy spell.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    fn count(&mut self, now: Instant) {
        let is_new_series =
            self.last.is_some_and(|last| now.saturating_duration_since(last) >= self.policy.reset_after);
        self.failures = if is_new_series { 1 } else { self.failures.saturating_add(1) };
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: Duration = Duration::from_secs(30);
    const HEALTHY: Duration = Duration::from_secs(120);
    const FIRST: Duration = Duration::from_millis(800);
    const POLICY: Policy = Policy::new(FIRST, CAP).reset_after(HEALTHY);

    #[test]
    fn delays_double_up_to_the_cap() {
        let (mut backoff, now) = (Backoff::new(POLICY), Instant::now());
        for expected in [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000] {
            assert_eq!(backoff.next(now), Duration::from_millis(expected));
        }
        assert_eq!(POLICY.delay(u32::MAX), CAP);
    }

    #[test]
    fn jitter_at_most_doubles_a_delay_and_respects_the_cap() {
        let policy = POLICY.with_jitter();
        for failures in (1..40).cycle().take(400) {
            let (delay, least) = (policy.delay(failures), POLICY.delay(failures));
            assert!(delay >= least && delay <= (least * 2).min(CAP), "{delay:?} after {failures} failures");
        }
    }

    #[test]
    fn a_healthy_spell_resets_the_series_and_a_shorter_one_does_not() {
        let (mut backoff, now) = (Backoff::new(POLICY), Instant::now());
        for _ in 0..6 {
            backoff.next(now);
        }
        assert_eq!(backoff.next(now + HEALTHY / 2), CAP);
        assert_eq!(backoff.next(now + HEALTHY / 2 + HEALTHY), FIRST);
        assert_eq!(backoff.failures(), 1);
    }

    #[test]
    fn a_delay_that_the_server_requests_is_respected_up_to_a_limit() {
        let (mut backoff, now) = (Backoff::new(POLICY), Instant::now());
        let requested = Duration::from_secs(45);
        let delay = backoff.next_requested(Some(requested), now);
        assert!(delay >= requested && delay <= requested.mul_f64(1.1), "{delay:?}");
        let delay = backoff.next_requested(Some(Duration::MAX), now);
        assert!(delay >= Duration::from_secs(300) && delay <= Duration::from_secs(330), "{delay:?}");
        assert_eq!(backoff.next_requested(None, now), FIRST * 4, "requested delays count as failures");
    }

    #[test]
    fn a_server_that_always_requests_a_second_is_asked_ever_less() {
        let (mut backoff, now) = (Backoff::new(POLICY), Instant::now());
        let second = Duration::from_secs(1);
        let first = backoff.next_requested(Some(second), now);
        assert!(first >= second && first <= second.mul_f64(1.1), "{first:?}");
        for expected in [1600, 3200, 6400, 12_800, 25_600, 30_000] {
            assert_eq!(backoff.next_requested(Some(second), now), Duration::from_millis(expected));
        }
    }
}
