//! How a watch fails: what it says of itself, what it counts, and how long it waits.

use std::{ops::ControlFlow, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    Change, Sink,
    object::Object,
    source::{Source, Stop},
};
use crate::{
    api::ApiError,
    health::State,
    metrics::{FailureLabels, SourceLabels, count},
};

/// How long a resource that the server does not know is left alone.
const ABSENT: Duration = Duration::from_secs(60);

impl<T: Object, S: Sink<T>> Source<T, S> {
    /// Something came, and nothing was wrong with it.
    pub(super) fn recovered(&mut self) {
        if self.state.failing_since.is_some() || self.health.state() != Some(State::Healthy) {
            self.recovered_and("following the changes");
        }
    }

    /// The same, and how it is now.
    pub(super) fn recovered_and(&mut self, how: &str) {
        self.state.failing_since = None;
        self.health.healthy(how);
    }

    /// Notes a failure, and says how long to wait.
    pub(super) fn failed(&mut self, error: &ApiError) -> Duration {
        let name = self.scope.name;
        self.metrics.failures.get_or_create(&self.failure(error.reason())).inc();
        // Token, client certificate or the server's may have been exchanged for newer ones.
        if error.is_unauthorized() {
            self.api.renew();
        } else if matches!(error, ApiError::Connect { .. }) {
            self.api.doubt();
        }
        // A list that did not come to its end says nothing of what is gone.
        self.state.listed = None;
        if error.is_gone() {
            tracing::info!(source = name, %error, "the position has expired: listing");
            (self.state.position, self.state.expired) = (None, true);
            // The first time in a while is in the nature of things. More of it: a server that sends us in circles.
            // Failures of other kinds do not count: a server that comes back often has no history.
            let wait = self.state.expirations.next(None);
            if self.state.expirations.failures() == 1 {
                return Duration::ZERO;
            }
            self.failing(error.to_string(), true);
            return wait;
        }
        if error.is_absent() {
            let seconds = ABSENT.as_secs();
            // One that was never there need not be.
            let was_there = self.state.synced;
            let why = format!("the cluster has no such resource; looking again every {seconds} s");
            self.failing(why, was_there);
            if !was_there {
                // There is none, so that all of them have been told.
                self.sink.apply(Change::Synced);
            }
            return ABSENT;
        }
        let wait = self.state.backoff.next(error.retry_after());
        let why = format!("{error}{}", error.advice());
        tracing::warn!(
            source = name,
            error = why,
            wait_ms = wait.as_millis(),
            "the watch failed: trying again"
        );
        self.failing(why, true);
        wait
    }

    /// Says what is wrong; and, after a while, if it has to be right, that it is unhealthy.
    fn failing(&mut self, why: String, has_to_be: bool) {
        let since = *self.state.failing_since.get_or_insert_with(Instant::now);
        if has_to_be && since.elapsed() >= self.settings.retry_timeout {
            self.health.unhealthy(why);
        } else {
            self.health.starting(why);
        }
    }

    /// Waits; when the time for it comes in between, the component is unhealthy.
    pub(super) async fn pause(&mut self, wait: Duration, stop: &mut Stop) -> ControlFlow<()> {
        self.save().await;
        let end = Instant::now() + wait;
        if let Some(since) = self.state.failing_since.filter(|_| wait != ABSENT) {
            let unhealthy_at = since + self.settings.retry_timeout;
            if unhealthy_at > Instant::now() && unhealthy_at < end {
                if timeout_at(unhealthy_at, &mut *stop).await.is_ok() {
                    return ControlFlow::Break(());
                }
                let seconds = self.settings.retry_timeout.as_secs();
                self.health.unhealthy(format!("the API server has not been followed for {seconds} s"));
            }
        }
        match timeout_at(end, stop).await {
            Ok(_) => ControlFlow::Break(()),
            Err(_) => ControlFlow::Continue(()),
        }
    }

    pub(super) fn labels(&self) -> SourceLabels {
        SourceLabels { source: self.scope.name }
    }

    pub(super) fn failure(&self, reason: &'static str) -> FailureLabels {
        FailureLabels { source: self.scope.name, reason }
    }

    pub(super) fn count_bytes(&self, bytes: usize) {
        self.metrics.bytes.get_or_create(&self.labels()).inc_by(bytes as u64);
    }

    pub(super) fn count_objects(&self) {
        self.metrics.objects.get_or_create(&self.labels()).set(count(self.state.known.len()));
    }
}
