//! Retries of a failing watch: when, and how its health is reported meanwhile. Pure.

use std::time::Duration;

use tokio::time::Instant;

use super::error::WatchError;
use crate::backoff::{Backoff, Policy};

#[derive(Debug)]
pub(super) struct Failures {
    since: Option<Instant>,
    /// How long a watch may fail before it is unhealthy.
    retry_timeout: Duration,
    retries: Backoff,
    expirations: Backoff,
}

/// The reaction to a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Retry {
    pub wait: Duration,
    /// `None` leaves the health as it is.
    pub health: Option<Report>,
    /// The time within the wait at which the watch becomes unhealthy.
    pub unhealthy_at: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Report {
    Healthy(String),
    Starting(String),
    Unhealthy(String),
}

/// The wait before the next attempt at a resource that the cluster does not have.
const NOT_FOUND: Duration = Duration::from_secs(60);
/// As client-go's reflector has it; likewise the healthy spell.
const FIRST: Duration = Duration::from_millis(800);
const HEALTHY_SPELL: Duration = Duration::from_secs(120);

// === impl Failures ===

impl Failures {
    pub(super) fn new(retry_timeout: Duration, max_backoff: Duration) -> Self {
        let policy = Policy::new(FIRST, max_backoff).with_jitter().reset_after(HEALTHY_SPELL);
        Self { since: None, retry_timeout, retries: Backoff::new(policy), expirations: Backoff::new(policy) }
    }

    pub(super) fn is_failing(&self) -> bool {
        self.since.is_some()
    }

    pub(super) fn recovered(&mut self) {
        self.since = None;
    }

    /// Notes that the watch has been failing for a while before anything showed it.
    pub(super) fn failing_since(&mut self, since: Option<Instant>) {
        self.since = self.since.or(since);
    }

    /// After an expired position. One expiration in a while is normal, and is followed by a relist at once. A
    /// server that expires each new position gets slower and slower requests; failures of other kinds do not
    /// count, because a server that comes back after them often has no history.
    pub(super) fn expired(&mut self, error: &WatchError, now: Instant) -> Retry {
        let wait = self.expirations.next(now);
        if self.expirations.failures() == 1 {
            return Retry { wait: Duration::ZERO, health: None, unhealthy_at: None };
        }
        self.retry(wait, error.to_string(), now)
    }

    /// After a 404. A resource that never existed is no failure, unlike one that disappears.
    pub(super) fn not_found(&mut self, has_existed: bool, is_optional: bool, now: Instant) -> Retry {
        let why = format!("the cluster has no such resource; retrying every {} s", NOT_FOUND.as_secs());
        let health = if has_existed {
            self.report(why, now)
        } else if is_optional {
            self.recovered();
            Report::Healthy(why)
        } else {
            self.failing_since(Some(now));
            Report::Starting(why)
        };
        Retry { wait: NOT_FOUND, health: Some(health), unhealthy_at: None }
    }

    /// After any other failure. `at_most` bounds the wait, unless the server requests one.
    pub(super) fn failed(
        &mut self,
        why: String,
        requested: Option<Duration>,
        at_most: Option<Duration>,
        now: Instant,
    ) -> Retry {
        let wait = self.retries.next_requested(requested, now);
        let at_most = at_most.filter(|_| requested.is_none()).unwrap_or(Duration::MAX);
        self.retry(wait.min(at_most), why, now)
    }

    fn retry(&mut self, wait: Duration, why: String, now: Instant) -> Retry {
        let health = Some(self.report(why, now));
        let unhealthy_at = self.since.map(|since| since + self.retry_timeout);
        Retry { wait, health, unhealthy_at: unhealthy_at.filter(|at| *at > now && *at < now + wait) }
    }

    fn report(&mut self, why: String, now: Instant) -> Report {
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= self.retry_timeout {
            Report::Unhealthy(why)
        } else {
            Report::Starting(why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ApiError, Status};

    const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
    const MAX_BACKOFF: Duration = Duration::from_secs(30);

    fn failures() -> Failures {
        Failures::new(RETRY_TIMEOUT, MAX_BACKOFF)
    }

    const WHY: &str = "the server is busy";

    fn expired() -> WatchError {
        ApiError::refused("list pods", Status { code: 410, ..Status::default() }, None).into()
    }

    #[test]
    fn a_failing_watch_is_unhealthy_after_the_retry_timeout_also_within_a_wait() {
        let (mut failures, start) = (failures(), Instant::now());
        let retry = failures.failed(WHY.to_owned(), None, None, start);
        assert!(matches!(retry.health, Some(Report::Starting(_))) && retry.unhealthy_at.is_none());
        let wait = Duration::from_secs(45);
        let retry = failures.failed(WHY.to_owned(), Some(wait), None, start + Duration::from_secs(30));
        assert!(retry.wait >= wait);
        assert_eq!(retry.unhealthy_at, Some(start + RETRY_TIMEOUT));
        let retry = failures.failed(WHY.to_owned(), None, None, start + RETRY_TIMEOUT);
        assert!(matches!(retry.health, Some(Report::Unhealthy(_))) && retry.unhealthy_at.is_none());
        failures.recovered();
        let retry = failures.failed(WHY.to_owned(), None, None, start + 2 * RETRY_TIMEOUT);
        assert!(matches!(retry.health, Some(Report::Starting(_))));
    }

    #[test]
    fn the_first_expiration_is_no_failure_and_further_ones_are_retried_with_backoff() {
        let (mut failures, now) = (failures(), Instant::now());
        let none = Retry { wait: Duration::ZERO, health: None, unhealthy_at: None };
        assert_eq!(failures.expired(&expired(), now), none);
        assert!(!failures.is_failing());
        let retry = failures.expired(&expired(), now);
        assert!(retry.wait >= FIRST && retry.health.is_some());
        let almost = now + Duration::from_secs(119);
        assert_ne!(failures.expired(&expired(), almost), none);
        assert_eq!(failures.expired(&expired(), almost + Duration::from_secs(120)), none);
    }

    #[test]
    fn waits_grow_from_800_milliseconds_and_start_again_after_two_healthy_minutes() {
        for _ in 0..100 {
            let (mut failures, now) = (failures(), Instant::now());
            let mut wait = |at: u64| {
                let retry = failures.failed(WHY.to_owned(), None, None, now + Duration::from_secs(at));
                retry.wait.as_millis()
            };
            assert!((800..=1600).contains(&wait(0)));
            assert!((1600..=3200).contains(&wait(119)));
            assert!((800..=1600).contains(&wait(239)));
        }
    }

    #[test]
    fn a_resource_that_never_existed_stays_starting_and_one_that_disappears_becomes_unhealthy() {
        for (has_existed, is_unhealthy) in [(false, false), (true, true)] {
            let (mut failures, now) = (failures(), Instant::now());
            failures.not_found(has_existed, false, now);
            let retry = failures.not_found(has_existed, false, now + RETRY_TIMEOUT);
            assert_eq!(matches!(retry.health, Some(Report::Unhealthy(_))), is_unhealthy);
            assert_eq!(retry.wait, NOT_FOUND);
        }
    }

    #[test]
    fn a_cluster_without_an_optional_resource_is_healthy_unless_the_resource_disappears() {
        let (mut failures, now) = (failures(), Instant::now());
        let retry = failures.not_found(false, true, now);
        assert!(matches!(retry.health, Some(Report::Healthy(_))) && !failures.is_failing());
        failures.not_found(true, true, now);
        let retry = failures.not_found(true, true, now + RETRY_TIMEOUT);
        assert!(matches!(retry.health, Some(Report::Unhealthy(_))) && failures.is_failing());
    }
}
