//! What was asked of the server.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::faults::lock;

/// The oldest requests are forgotten beyond this.
const LIMIT: usize = 10_000;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// `GET`, ...
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The query, as it was sent.
    pub query: String,
    /// The `User-Agent`.
    pub user_agent: String,
    /// The HTTP status of the answer.
    pub status: u16,
    /// Bytes of the answer's body so far.
    pub bytes: u64,
    /// When it came, since the server's start.
    pub at: Duration,
}

/// The newest requests.
#[derive(Debug)]
pub(super) struct Log {
    start: Instant,
    total_bytes: AtomicU64,
    requests: Mutex<VecDeque<(Request, Arc<AtomicU64>)>>,
}

// === impl Log ===

impl Log {
    pub fn new() -> Self {
        Self { start: Instant::now(), total_bytes: AtomicU64::new(0), requests: Mutex::default() }
    }

    /// The time on the log's clock.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Notes a request that is answered. Its bytes are counted on.
    pub fn note(&self, request: Request) -> Arc<AtomicU64> {
        let bytes = Arc::new(AtomicU64::new(0));
        let mut requests = lock(&self.requests);
        if requests.len() == LIMIT {
            requests.pop_front();
        }
        requests.push_back((request, Arc::clone(&bytes)));
        bytes
    }

    pub fn count(&self, bytes: u64) {
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn total_bytes(&self) -> u64 {
        self.total_bytes.load(Ordering::Relaxed)
    }

    pub fn requests(&self) -> Vec<Request> {
        let requests = lock(&self.requests);
        let counted = |(request, bytes): &(Request, Arc<AtomicU64>)| Request {
            bytes: bytes.load(Ordering::Relaxed),
            ..request.clone()
        };
        requests.iter().map(counted).collect()
    }

    pub fn clear(&self) {
        lock(&self.requests).clear();
    }
}
