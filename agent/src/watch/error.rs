//! Errors of a watch.

use std::time::Duration;

use crate::api::ApiError;

/// A list or a stream that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum WatchError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("the stream of {what} broke: {why}")]
    Broken { what: String, why: String },
    /// The connection may be half open.
    #[error("no event and no bookmark on the stream of {what} for {} s", after.as_secs())]
    Idle { what: String, after: Duration },
    /// A list with an object or an event that cannot be identified does not prove that any object is gone.
    #[error("the list of {what} has an object without a usable name or UID")]
    Garbled { what: String },
    #[error("the initial list of {what} was not complete within {} s", after.as_secs())]
    ListTimeout { what: String, after: Duration },
    #[error("the stream of {what} ended after {} s, {}", after.as_secs(), if *had_events { "with few events" } else { "without any event" })]
    Short { what: String, after: Duration, had_events: bool },
    /// A list showed changes that the stream had not delivered.
    #[error("the stream of {what} does not deliver changes; lists stand in for it")]
    Deaf { what: String },
}

// === impl WatchError ===

impl WatchError {
    /// Whether the position has expired, so that only a relist helps.
    pub(super) fn is_expired(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_expired())
    }

    /// Whether the cluster does not have the resource.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_not_found())
    }

    /// Whether the server cannot be asked at all.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_unreachable())
    }

    /// Whether the server rejects the parameters of a streamed list.
    pub(super) fn is_unsupported(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_unsupported())
    }

    /// Whether the server does not have the position yet.
    pub(super) fn is_version_too_large(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_version_too_large())
    }

    /// Whether the list is too large for one response.
    pub(super) fn is_too_large(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_too_large())
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        if let Self::Api(error) = self { error.retry_after() } else { None }
    }

    pub(super) fn remedy(&self) -> &'static str {
        if let Self::Api(error) = self { error.remedy() } else { "" }
    }

    /// The value of the metrics' `reason` label.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Api(error) => error.reason(),
            Self::Broken { .. } => "broken",
            Self::Idle { .. } => "idle",
            Self::Garbled { .. } => "garbled",
            Self::ListTimeout { .. } => "slow",
            Self::Short { .. } => "short",
            Self::Deaf { .. } => "deaf",
        }
    }
}
