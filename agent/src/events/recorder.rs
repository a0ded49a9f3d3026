//! Writes Events to the API server (`events.k8s.io/v1`).
//!
//! Each Event is a write to etcd, and all nodes have Events just when a cluster is in trouble. Repetitions
//! are therefore counted in a *series*, requests are rate limited, and failed ones are dropped after one
//! retry.

use std::{sync::Arc, time::Duration};

use http::{Method, Request, header};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use super::{
    event::{About, Event, collection},
    rate_limit::RateLimit,
    series::{AllSeries, Key, Series},
};
use crate::{
    api::{Api, ApiError},
    backoff::{Backoff, Policy},
    metrics::EventMetrics,
};

/// Sends queued Events.
pub struct Recorder {
    api: Arc<Api>,
    node: String,
    metrics: EventMetrics,
    series: AllSeries,
    limit: RateLimit,
    backoff: Backoff,
    /// Whether the current failure has been logged.
    is_failing: bool,
}

const CONTROLLER: &str = "ferrule-agent";
/// Bytes; limits of the API server (`pkg/apis/core/validation/events.go` in Kubernetes).
const MAX_NOTE: usize = 1024;
const MAX_INSTANCE: usize = 128;
/// Bytes of an object's name, and of the suffix after the name of what the Event is about.
const MAX_NAME: usize = 253;
const SUFFIX: usize = 1 + 16;
const BACKOFF: Policy = Policy::new(Duration::from_millis(800), Duration::from_secs(30))
    .with_jitter()
    .reset_after(Duration::from_secs(120));

// === impl Recorder ===

impl Recorder {
    pub fn new(api: Arc<Api>, node: &str, metrics: EventMetrics) -> Self {
        Self {
            api,
            node: truncate(node, MAX_INSTANCE).to_owned(),
            metrics,
            series: AllSeries::default(),
            limit: RateLimit::default(),
            backoff: Backoff::new(BACKOFF),
            is_failing: false,
        }
    }

    /// Sends Events until all senders of the queue are dropped.
    pub async fn run(mut self, mut queue: mpsc::Receiver<Event>) {
        loop {
            let due = self.series.due().map(|due| due.max(self.limit.next_count_at()));
            let wait = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = queue.recv() => match event {
                    Some(event) => self.record(event).await,
                    None => return,
                },
                () = wait => self.send_count().await,
            }
        }
    }

    /// Counts the Event in its series, or sends it as the first of a new series.
    async fn record(&mut self, event: Event) {
        let key = Key::of(&event);
        if self.series.count(&key) {
            return;
        }
        if !self.limit.take_for_first() {
            self.metrics.lost.inc();
            return;
        }
        let (name, json) = self.json(&event);
        let request = request(Method::POST, collection(event.home()), "application/json", &json);
        let Event { about, namespace, name: object, .. } = &event;
        let what = match about {
            About::Pod => format!("create an Event about the pod {namespace}/{object}"),
            About::Node => format!("create an Event about the node {object}"),
            About::NetworkPolicy => format!("create an Event about the NetworkPolicy {namespace}/{object}"),
            About::ClusterNetworkPolicy => format!("create an Event about the ClusterNetworkPolicy {object}"),
        };
        if self.send(&what, request).await.is_ok() {
            self.series.insert(key, Series::new(event.home().to_owned(), name));
        }
    }

    /// Sends the count of the series that has waited longest.
    async fn send_count(&mut self) {
        if !self.limit.take_for_count() {
            return;
        }
        let Some((key, path, count)) = self.series.next_due() else { return };
        let series = json!({ "series": { "count": count, "lastObservedTime": now() } });
        let request = request(Method::PATCH, path, "application/merge-patch+json", &series);
        if self.send("count an Event", request).await.is_err_and(|error| error.is_not_found()) {
            // The Event was deleted: the next repetition starts a new series.
            self.series.remove(&key);
        }
    }

    /// Sends a request, with one retry. Waits after each failure.
    async fn send(&mut self, what: &str, request: Request<Vec<u8>>) -> Result<(), ApiError> {
        let mut first = true;
        loop {
            let error = match self.api.write(what, request.clone()).await {
                Ok(_) => {
                    self.metrics.sent.inc();
                    self.is_failing = false;
                    return Ok(());
                }
                Err(error) => error,
            };
            let retries = first && is_transient(&error);
            if !retries {
                self.metrics.failed.inc();
            }
            if !retries && !std::mem::replace(&mut self.is_failing, true) {
                tracing::warn!(%error, "dropping Events{}", error.remedy());
            }
            if is_transient(&error) {
                sleep(self.backoff.next_requested(error.retry_after(), Instant::now())).await;
            }
            if !retries {
                return Err(error);
            }
            first = false;
        }
    }

    /// The name and the JSON of a new Event.
    fn json(&self, event: &Event) -> (String, Value) {
        let object = truncate(&event.name, MAX_NAME - SUFFIX).trim_end_matches(['.', '-']);
        let name = format!("{object}.{:016x}", fastrand::u64(..));
        let mut regarding = json!({
            "apiVersion": event.about.api_version(), "kind": event.about.kind(), "name": event.name, "uid": event.uid,
        });
        if let Some(regarding) = regarding.as_object_mut().filter(|_| !event.namespace.is_empty()) {
            regarding.insert("namespace".to_owned(), event.namespace.clone().into());
        }
        let json = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": { "namespace": event.home(), "name": name },
            "eventTime": now(),
            "reportingController": CONTROLLER,
            "reportingInstance": self.node,
            "action": event.about.action(),
            "reason": event.reason,
            "regarding": regarding,
            "note": truncate(&event.note, MAX_NOTE),
            "type": if event.is_warning { "Warning" } else { "Normal" },
        });
        (name, json)
    }
}

/// Whether a retry of the same request may succeed.
fn is_transient(error: &ApiError) -> bool {
    match error {
        ApiError::Refused { status, .. } => matches!(status.code, 401 | 408 | 429 | 500..),
        _ => true,
    }
}

fn request(method: Method, path: String, kind: &'static str, body: &Value) -> Request<Vec<u8>> {
    let mut request = Request::new(body.to_string().into_bytes());
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().unwrap_or_default();
    request.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    request
}

fn now() -> MicroTime {
    MicroTime(Timestamp::now())
}

/// Truncates a text to a number of bytes, between two characters.
fn truncate(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or(text)
}

#[cfg(test)]
mod tests;
