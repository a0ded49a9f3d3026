//! How long to wait after a failure.

use std::time::Duration;

use tokio::time::Instant;

/// Waits double with each failure, up to a most, and are spread by chance, so that the agents of a thousand nodes do not
/// come back together. A while without failures starts anew; a single success does not.
#[derive(Debug)]
pub struct Backoff {
    most: Duration,
    failures: u32,
    last: Option<Instant>,
}

/// The first wait, before it is spread (client-go's reflector).
const FIRST: Duration = Duration::from_millis(800);
/// How long it must have gone well before the next failure counts as the first (client-go's reflector).
const STABLE: Duration = Duration::from_secs(120);
/// No server is obeyed for longer than this.
const MOST_ASKED: Duration = Duration::from_secs(300);

// === impl Backoff ===

impl Backoff {
    /// `most` is the longest wait, before it is spread.
    pub fn new(most: Duration) -> Self {
        Self { most, failures: 0, last: None }
    }

    /// The wait after a failure; at least what the server asked for.
    pub fn next(&mut self, asked: Option<Duration>) -> Duration {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) >= STABLE) {
            self.failures = 0;
        }
        self.last = Some(now);
        // A power beyond this is longer than any wait, and must not overflow.
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16)).min(self.most);
        self.failures = self.failures.saturating_add(1);
        match asked {
            // Others were asked the same: spread a little, and never sooner.
            Some(asked) => asked.min(MOST_ASKED).mul_f64(1.0 + 0.1 * fastrand::f64()),
            None => doubled.mul_f64(1.0 + fastrand::f64()).min(self.most),
        }
    }

    /// How many failures there were since it last went well for a while.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn waits_double_up_to_the_most_and_are_spread() {
        let mut backoff = Backoff::new(MOST);
        for least in [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000] {
            let least = Duration::from_millis(least);
            let wait = backoff.next(None);
            assert!(wait >= least && wait <= (least * 2).min(MOST), "{wait:?} for {least:?}");
            tokio::time::sleep(wait).await;
        }
        for _ in 0..100 {
            assert!(backoff.next(None) <= MOST, "whatever the number of failures");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn fix_one_success_does_not_start_anew_but_a_stable_while_does() {
        let mut backoff = Backoff::new(MOST);
        for _ in 0..6 {
            backoff.next(None);
        }
        tokio::time::sleep(STABLE / 2).await;
        assert!(backoff.next(None) >= MOST, "an event came in between: that is not stable");
        tokio::time::sleep(STABLE).await;
        assert!(backoff.next(None) <= FIRST * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn fix_what_the_server_asks_for_is_obeyed_within_reason() {
        let mut backoff = Backoff::new(MOST);
        let asked = Duration::from_secs(45);
        let wait = backoff.next(Some(asked));
        assert!(wait >= asked && wait <= asked.mul_f64(1.1), "{wait:?}");
        assert!(backoff.next(Some(Duration::from_secs(86_400))) <= MOST_ASKED.mul_f64(1.1));
    }
}
