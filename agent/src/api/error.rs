//! What can go wrong between us and the API server, and what that means for a watch.

use std::{sync::Arc, time::Duration};

use serde::Deserialize;

use super::exec_plugin::PluginError;
use crate::chain::chain;

/// A request or a stream that failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// There was no answer.
    #[error("cannot {what}: {}", chain(source.as_ref()))]
    Connect { what: String, source: Box<kube::Error> },
    /// The API server answered with an error, as the answer or in the stream.
    #[error("the API server refused to {what}: {status}")]
    Refused { what: String, status: Status, retry_after: Option<Duration> },
    /// A stream broke, in the middle of an object or between two.
    #[error("the stream of {what} broke: {why}")]
    Broken { what: String, why: String },
    /// Neither an event nor a bookmark for too long: the connection may be half open.
    #[error("nothing came from the stream of {what} for {} s, not even a bookmark", after.as_secs())]
    Idle { what: String, after: Duration },
    /// The request took too long.
    #[error("there was no answer within {} s to the attempt to {what}", after.as_secs())]
    Slow { what: String, after: Duration },
    /// An answer that is not what the API promises.
    #[error("the API server's answer to the attempt to {what} is not understood: {why}")]
    Answer { what: String, why: String },
    /// A stream ended before anything came, or at once.
    #[error("the stream of {what} ended after {} s, and {} had come", after.as_secs(), if *heard { "little" } else { "nothing" })]
    Short { what: String, after: Duration, heard: bool },
    /// Streams are accepted, and do not say what changes.
    #[error("the stream of {what} does not tell what changes: a list every few minutes has to do")]
    Deaf { what: String },
    /// There is no way to the API server in the configuration.
    #[error("cannot find out how to reach the API server: {why}")]
    Config { why: String },
    /// The configuration's plugin does not say who we are.
    #[error("cannot find out who to be for the API server: {}", chain(source.as_ref()))]
    Credential { source: Arc<PluginError> },
}

/// `metav1.Status`, as far as it is of use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Status {
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub details: Option<Details>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Details {
    pub retry_after_seconds: Option<u64>,
}

// === impl ApiError ===

impl ApiError {
    /// An error that the server told of; `header` is its `Retry-After`.
    pub fn refused(what: &str, status: Status, header: Option<Duration>) -> Self {
        let details = status.details.as_ref().and_then(|details| details.retry_after_seconds);
        let retry_after = header.max(details.filter(|seconds| *seconds > 0).map(Duration::from_secs));
        Self::Refused { what: what.to_owned(), status, retry_after }
    }

    /// Whether our position is too old for the server: only a list helps.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code == 410 || status.reason == "Expired")
    }

    /// Whether the server knows no such resource.
    pub fn is_absent(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether it is about who we are: the token may have been exchanged for a newer one.
    pub fn is_unauthorized(&self) -> bool {
        self.code() == Some(401)
    }

    /// Whether the server does not know what it was asked for, so that it has to be asked in another way.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.code(), Some(400 | 422))
    }

    /// Whether that may be so, though the server does not say it.
    pub fn may_be_unsupported(&self) -> bool {
        self.code().is_some_and(|code| code >= 500)
            || matches!(self, Self::Short { .. } | Self::Slow { .. } | Self::Idle { .. })
    }

    /// How long the server asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        if let Self::Refused { retry_after, .. } = self { *retry_after } else { None }
    }

    /// What to do, where something can be done.
    pub fn advice(&self) -> &'static str {
        match (self, self.code()) {
            (_, Some(401)) => "; the token may have expired: it is read again with each attempt",
            (_, Some(403)) => "; give the agent's service account the role in deploy/",
            (Self::Credential { .. }, _) => "; it has to work for the agent's user, without a terminal",
            (Self::Config { .. }, _) => "; give --kubeconfig, or run in a pod with a service account",
            _ => "",
        }
    }

    /// For a metric's label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connect",
            Self::Broken { .. } => "broken",
            Self::Idle { .. } => "idle",
            Self::Slow { .. } => "slow",
            Self::Answer { .. } => "answer",
            Self::Short { .. } => "short",
            Self::Deaf { .. } => "deaf",
            Self::Config { .. } => "config",
            Self::Credential { .. } => "credential",
            Self::Refused { status, .. } => match status.code {
                401 => "unauthorized",
                403 => "forbidden",
                404 => "absent",
                410 => "gone",
                429 => "too_many_requests",
                500..=599 => "server",
                _ => "refused",
            },
        }
    }

    fn code(&self) -> Option<u16> {
        if let Self::Refused { status, .. } = self { Some(status.code) } else { None }
    }
}

// === impl Status ===

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.code, self.reason)?;
        // The server's text may be of any length, and of several lines.
        let message: String =
            self.message.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect();
        if message.is_empty() { Ok(()) } else { write!(f, ": {message}") }
    }
}
