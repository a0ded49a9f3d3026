//! The rate limit of a node's Events: a token bucket.

use std::time::Duration;

use tokio::time::Instant;

/// One token per request.
#[derive(Debug)]
pub(super) struct RateLimit {
    tokens: f64,
    since: Instant,
}

/// Pods that start together, with one Event each. client-go allows the same for one object.
const BURST: f64 = 25.0;
/// 360 requests per hour and node; a thousand failing nodes write a hundred Events per second. client-go
/// allows 12 per hour and object: thirty failing pods reach the same rate.
const REFILL: Duration = Duration::from_secs(10);
/// Tokens that counts leave for first Events, so that a hundred pods that fail all day do not hide a newly
/// failing one.
const RESERVED: f64 = 10.0;

// === impl RateLimit ===

impl Default for RateLimit {
    fn default() -> Self {
        Self { tokens: BURST, since: Instant::now() }
    }
}

impl RateLimit {
    /// Takes a token for the first Event of a series.
    pub fn take_for_first(&mut self) -> bool {
        self.take(1.0)
    }

    /// Takes a token for the count of a series.
    pub fn take_for_count(&mut self) -> bool {
        self.take(1.0 + RESERVED)
    }

    /// When [`Self::take_for_count`] succeeds next, if no token is taken until then.
    pub fn next_count_at(&mut self) -> Instant {
        self.refill();
        // One millisecond more, against rounding.
        let missing = (1.0 + RESERVED - self.tokens).max(0.0);
        self.since + REFILL.mul_f64(missing) + Duration::from_millis(1)
    }

    fn take(&mut self, least: f64) -> bool {
        self.refill();
        let is_there = self.tokens >= least;
        if is_there {
            self.tokens -= 1.0;
        }
        is_there
    }

    fn refill(&mut self) {
        let now = Instant::now();
        let more = now.duration_since(self.since).as_secs_f64() / REFILL.as_secs_f64();
        (self.tokens, self.since) = ((self.tokens + more).min(BURST), now);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep_until};

    use super::*;

    fn taken(take: impl FnMut() -> bool) -> usize {
        std::iter::repeat_with(take).take(100).filter(|taken| *taken).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_allowed_and_then_one_request_per_ten_seconds() {
        let mut limit = RateLimit::default();
        assert_eq!(taken(|| limit.take_for_first()), 25);
        advance(Duration::from_secs(61)).await;
        assert_eq!(taken(|| limit.take_for_first()), 6);
        advance(Duration::from_secs(86_400)).await;
        assert_eq!(taken(|| limit.take_for_first()), 25, "the burst is capped");
    }

    #[tokio::test(start_paused = true)]
    async fn counts_leave_tokens_for_first_events() {
        let mut limit = RateLimit::default();
        assert_eq!(taken(|| limit.take_for_count()), 15);
        assert_eq!(taken(|| limit.take_for_first()), 10);
        sleep_until(limit.next_count_at()).await;
        assert_eq!(taken(|| limit.take_for_count()), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_count_is_possible_when_eleven_tokens_are_there() {
        let mut limit = RateLimit::default();
        let start = Instant::now();
        // 25 tokens: a count is possible at once.
        assert_eq!(limit.next_count_at(), start + Duration::from_millis(1));
        assert_eq!(taken(|| limit.take_for_first()), 25);
        assert_eq!(limit.next_count_at(), start + Duration::from_millis(110_001));
        advance(Duration::from_secs(30)).await;
        let rest = limit.next_count_at() - start;
        assert!(rest.abs_diff(Duration::from_millis(110_001)) < Duration::from_millis(1), "{rest:?}");
    }
}
