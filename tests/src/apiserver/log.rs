//! A log of requests, for assertions.

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

/// Bound of the log; the oldest requests are dropped.
const LIMIT: usize = 10_000;

/// An answered request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub method: String,
    /// Without the query.
    pub path: String,
    /// As sent, undecoded.
    pub query: String,
    pub user_agent: String,
    /// HTTP status of the response.
    pub status: u16,
    /// Bytes of the response body sent so far.
    pub bytes: u64,
    /// Time of arrival since the server's start.
    pub at: Duration,
}

/// The most recent requests.
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

    /// Time since the server's start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Appends an answered request. The returned counter counts the bytes of its response body.
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
