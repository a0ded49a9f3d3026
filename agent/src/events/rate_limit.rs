//! How many Events a node may write: a bucket of tokens.

use std::time::Duration;

use tokio::time::Instant;

/// Tokens, one for each request.
#[derive(Debug)]
pub(super) struct Ration {
    tokens: f64,
    since: Instant,
}

/// A rack of pods that start together, each with one thing to say. As client-go has it for one object.
const BURST: f64 = 25.0;
/// 360 an hour for the whole node. client-go gives 12 to each object: thirty pods that fail all day would have as many, and
/// of a hundred the rest is counted. A thousand nodes that all fail write a hundred Events a second.
const REFILL: Duration = Duration::from_secs(10);
/// What series leave for what is new, so that a hundred pods that fail all day do not hide the one that begins to.
const KEPT: f64 = 10.0;

// === impl Ration ===

impl Default for Ration {
    fn default() -> Self {
        Self { tokens: BURST, since: Instant::now() }
    }
}

impl Ration {
    /// For something that was not told before.
    pub fn take_for_new(&mut self) -> bool {
        self.take(1.0)
    }

    /// For more of the same.
    pub fn take_for_more(&mut self) -> bool {
        self.take(1.0 + KEPT)
    }

    /// When [`Self::take_for_more`] gets a token, if nobody else takes one until then.
    pub fn again_at(&mut self) -> Instant {
        self.refill();
        // A millisecond more than is missing, so that no rounding makes it too early.
        let missing = (1.0 + KEPT - self.tokens).max(0.0);
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
    async fn a_burst_is_allowed_and_then_one_each_ten_seconds() {
        let mut ration = Ration::default();
        assert_eq!(taken(|| ration.take_for_new()), 25);
        advance(Duration::from_secs(61)).await;
        assert_eq!(taken(|| ration.take_for_new()), 6);
        advance(Duration::from_secs(86_400)).await;
        assert_eq!(taken(|| ration.take_for_new()), 25, "and no more is saved up");
    }

    #[tokio::test(start_paused = true)]
    async fn more_of_the_same_leaves_some_for_what_is_new() {
        let mut ration = Ration::default();
        assert_eq!(taken(|| ration.take_for_more()), 15);
        assert_eq!(taken(|| ration.take_for_new()), 10);
        sleep_until(ration.again_at()).await;
        assert_eq!(taken(|| ration.take_for_more()), 1);
    }
}
