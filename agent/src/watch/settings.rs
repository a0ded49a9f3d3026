//! How long a watch waits.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long a watch may fail before it is unhealthy. It retries in any case.
    pub retry_timeout: Duration,
    /// How long a stream may be silent. API servers send a bookmark each minute.
    pub read_timeout: Duration,
    /// The longest wait between two attempts.
    pub max_backoff: Duration,
}
