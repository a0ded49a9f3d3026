//! Errors of requests to the API server.

use std::{fmt, sync::Arc, time::Duration};

use serde::Deserialize;

use super::exec_plugin::PluginError;
use crate::chain::chain;

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("cannot {what}: {}", chain(source.as_ref()))]
    Connect { what: String, source: Box<kube::Error> },
    /// The server sent a `Status`, as the response or within a watch.
    #[error("the API server refused to {what}: {status}")]
    Refused { what: String, status: Status, retry_after: Option<Duration> },
    #[error("cannot {what}: no complete response within {} s", after.as_secs())]
    Timeout { what: String, after: Duration, has_begun: bool },
    #[error("cannot {what}: the connection broke: {why}")]
    Broken { what: String, why: String },
    #[error("cannot {what}: the response has more than {limit} bytes")]
    TooLarge { what: String, limit: usize },
    #[error("cannot {what}: invalid response: {why}")]
    Invalid { what: String, why: String },
    /// Neither a usable kubeconfig nor a service account.
    #[error("cannot configure the client of the API server: {why}")]
    Config { why: String },
    /// The kubeconfig's exec plugin returned no credential.
    #[error("cannot get credentials for the API server: {}", chain(source.as_ref()))]
    Credential { source: Arc<PluginError> },
}

/// The fields of a `metav1.Status` that the agent uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Status {
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub details: Option<Box<Details>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Details {
    pub retry_after_seconds: Option<u64>,
    pub causes: Vec<Cause>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Cause {
    pub reason: String,
}

/// Characters of a server's message that are shown.
const MAX_MESSAGE: usize = 300;

// === impl ApiError ===

impl ApiError {
    /// A [`Self::Refused`] that honors the longer of the status's `retryAfterSeconds` and the `Retry-After`
    /// header.
    pub fn refused(what: &str, status: Status, header: Option<Duration>) -> Self {
        let details = status.details.as_ref().and_then(|details| details.retry_after_seconds);
        let retry_after = header.max(details.filter(|seconds| *seconds > 0).map(Duration::from_secs));
        Self::Refused { what: what.to_owned(), status, retry_after }
    }

    /// 410: the requested resourceVersion is too old.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code == 410 || status.reason == "Expired")
    }

    /// 504: the server does not have the requested resourceVersion yet. Servers before 1.18.6 say so in the
    /// message only.
    pub fn is_version_too_large(&self) -> bool {
        let Self::Refused { status, .. } = self else { return false };
        let mut causes = status.details.iter().flat_map(|details| &details.causes);
        status.code == 504
            && (causes.any(|cause| cause.reason == "ResourceVersionTooLarge")
                || status.message.contains("Too large resource version"))
    }

    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    pub fn is_unauthorized(&self) -> bool {
        self.code() == Some(401)
    }

    /// Whether the server rejects a parameter of the request.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.code(), Some(400 | 422))
    }

    /// Whether the server cannot be asked at all.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Config { .. } | Self::Credential { .. })
    }

    /// Whether the whole response is more than the agent takes at once, or more than comes in time.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::Timeout { has_begun: true, .. })
    }

    /// The delay that the server requests before the next attempt.
    pub fn retry_after(&self) -> Option<Duration> {
        if let Self::Refused { retry_after, .. } = self { *retry_after } else { None }
    }

    /// A remedy, to be appended to the message; empty where none is known.
    pub fn remedy(&self) -> &'static str {
        match (self, self.code()) {
            (_, Some(401)) => "; the token may have expired: each attempt reads it again",
            (_, Some(403)) => "; give the agent's service account the role in deploy/",
            (Self::Credential { .. }, _) => "; run the plugin as the agent's user and without a terminal",
            (Self::Config { .. }, _) => "; set --kubeconfig, or run in a pod with a service account",
            _ => "",
        }
    }

    /// The value of the metrics' `reason` label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connect",
            Self::Timeout { .. } => "slow",
            Self::Broken { .. } => "broken",
            Self::TooLarge { .. } | Self::Invalid { .. } => "answer",
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

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.reason)?;
        let message = self.message.chars().take(MAX_MESSAGE);
        let message: String = message.map(|c| if c.is_control() { ' ' } else { c }).collect();
        if message.is_empty() { Ok(()) } else { write!(f, ": {message}") }
    }
}
