//! Writes notes about pods to the API server, as Events of `events.k8s.io/v1`.
//!
//! An Event costs every node of a cluster a write to etcd, just when much goes wrong. So what happens again to a pod is not
//! told again but counted (a *series*), all of it is rationed, and what the API server does not take is dropped.

use std::{sync::Arc, time::Duration};

use http::{Method, Request, header};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use super::{
    rate_limit::Ration,
    series::{AllSeries, Key, Series},
};
use crate::{
    api::{Api, ApiError},
    backoff::{Backoff, Policy},
    metrics::EventMetrics,
};

/// A note about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    pub namespace: String,
    pub name: String,
    /// As the API server has it; empty if that is not known.
    pub uid: String,
    /// In one word, for programs.
    pub reason: &'static str,
    /// Whether something is wrong.
    pub is_warning: bool,
    /// One line.
    pub note: String,
}

/// Who writes them.
pub struct Recorder {
    api: Arc<Api>,
    node: String,
    metrics: EventMetrics,
    series: AllSeries,
    ration: Ration,
    backoff: Backoff,
    /// Whether it was said already that Events are not taken.
    failing: bool,
}

const CONTROLLER: &str = "ferrule-agent";
/// All notes are of ADDs.
const ACTION: &str = "Add";
/// The API server takes no longer ones (`pkg/apis/core/validation/events.go` in Kubernetes).
const MOST_NOTE: usize = 1024;
const MOST_INSTANCE: usize = 128;
/// The longest name of an object, and what is put behind the pod's.
const MOST_NAME: usize = 253;
const SUFFIX: usize = 1 + 16;
const BACKOFF: Policy = Policy::new(Duration::from_millis(800), Duration::from_secs(30))
    .with_jitter()
    .reset_after(Duration::from_secs(120));

// === impl Recorder ===

impl Recorder {
    /// `node` is the name of the node that the Events are from.
    pub fn new(api: Arc<Api>, node: &str, metrics: EventMetrics) -> Self {
        Self {
            api,
            node: cut(node, MOST_INSTANCE).to_owned(),
            metrics,
            series: AllSeries::default(),
            ration: Ration::default(),
            backoff: Backoff::new(BACKOFF),
            failing: false,
        }
    }

    /// Writes what arrives until nobody can leave a note any more.
    pub async fn run(mut self, mut notes: mpsc::Receiver<PodEvent>) {
        loop {
            let due = self.series.due().map(|due| due.max(self.ration.again_at()));
            let wait = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                note = notes.recv() => match note {
                    Some(note) => self.note(note).await,
                    None => return,
                },
                () = wait => self.count().await,
            }
        }
    }

    /// Counts a note to its series, or begins one with a new Event.
    async fn note(&mut self, note: PodEvent) {
        let key = Key::of(&note);
        if self.series.again(&key) {
            return;
        }
        if !self.ration.take_for_new() {
            self.metrics.lost.inc();
            return;
        }
        let (name, event) = self.event(&note);
        let request = request(Method::POST, collection(&note.namespace), "application/json", &event);
        if self
            .send(&format!("create an Event about the pod {}/{}", note.namespace, note.name), request)
            .await
            .is_ok()
        {
            self.series.begin(key, Series::new(note.namespace, name));
        }
    }

    /// Tells how long one series has become that has not been told for a while.
    async fn count(&mut self) {
        if !self.ration.take_for_more() {
            return;
        }
        let Some((key, path, count)) = self.series.tell() else { return };
        let series = json!({ "series": { "count": count, "lastObservedTime": now() } });
        let request = request(Method::PATCH, path, "application/merge-patch+json", &series);
        if self.send("count an Event", request).await.is_err_and(|error| error.is_not_found()) {
            // Somebody has deleted it, so that the next one is a new one.
            self.series.forget(&key);
        }
    }

    /// Tries twice at most. After each failure nothing is sent for a while.
    async fn send(&mut self, what: &str, request: Request<Vec<u8>>) -> Result<(), ApiError> {
        let mut first = true;
        loop {
            let error = match self.api.write(what, request.clone()).await {
                Ok(_) => {
                    self.metrics.sent.inc();
                    self.failing = false;
                    return Ok(());
                }
                Err(error) => error,
            };
            if error.is_unauthorized() {
                self.api.reload();
            }
            let again = first && may_pass(&error);
            if !again {
                self.metrics.failed.inc();
            }
            if !again && !std::mem::replace(&mut self.failing, true) {
                tracing::warn!(%error, "Events about pods are lost{}", error.remedy());
            }
            if may_pass(&error) {
                sleep(self.backoff.next_requested(error.retry_after(), Instant::now())).await;
            }
            if !again {
                return Err(error);
            }
            first = false;
        }
    }

    /// A new Event and its name.
    fn event(&self, note: &PodEvent) -> (String, Value) {
        let pod = cut(&note.name, MOST_NAME - SUFFIX).trim_end_matches(['.', '-']);
        let name = format!("{pod}.{:016x}", fastrand::u64(..));
        let event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": { "namespace": note.namespace, "name": name },
            "eventTime": now(),
            "reportingController": CONTROLLER,
            "reportingInstance": self.node,
            "action": ACTION,
            "reason": note.reason,
            "regarding": {
                "apiVersion": "v1", "kind": "Pod", "namespace": note.namespace, "name": note.name, "uid": note.uid,
            },
            "note": cut(&note.note, MOST_NOTE),
            "type": if note.is_warning { "Warning" } else { "Normal" },
        });
        (name, event)
    }
}

/// Whether the same request may be taken a little later.
fn may_pass(error: &ApiError) -> bool {
    match error {
        ApiError::Refused { status, .. } => matches!(status.code, 401 | 408 | 429 | 500..),
        _ => true,
    }
}

/// Names of namespaces and pods are checked before they come here, so that they can be part of a path.
pub(super) fn collection(namespace: &str) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events")
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

/// As much of a text as has room, in whole characters.
fn cut(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or(text)
}

#[cfg(test)]
mod tests;
