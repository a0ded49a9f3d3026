//! Calls told to a collector, as OTLP's spans: the only room that names OpenTelemetry.
//!
//! To tell is to leave a note and go on, as with pods' [events](crate::events): nobody waits for the collector, and a call for
//! which there is no room is counted and lost. Without a collector to tell, nothing is gathered at all.

mod export;
mod wire;

use std::time::{Duration, SystemTime};

use ferrule_proto::trace::{TRACEPARENT, TRACESTATE, TraceParent, is_trace_state};
use http::Uri;
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    time::timeout,
};
use tonic::metadata::MetadataMap;

use crate::{health::Reporter, metrics::TraceMetrics};
pub(crate) use export::Exporter;

/// Where calls are told of. Cloning it is cheap, and tells the same collector.
#[derive(Debug, Clone)]
pub struct Tracer(Option<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    calls: mpsc::Sender<CallSpan>,
    flush: mpsc::Sender<oneshot::Sender<()>>,
    metrics: TraceMetrics,
}

/// The trace that a call is part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Context {
    trace_id: [u8; 16],
    /// What the caller is doing; `None` where the trace begins with us.
    parent: Option<[u8; 8]>,
    /// Passed on as it came.
    state: String,
}

/// A call that is over.
#[derive(Debug)]
pub(crate) struct CallSpan {
    pub(crate) context: Context,
    pub(crate) name: String,
    pub(crate) began: SystemTime,
    pub(crate) took: Duration,
    pub(crate) attributes: Vec<Attribute>,
    /// Why it failed, if it did.
    pub(crate) error: Option<String>,
    /// What it was made of, in order.
    pub(crate) parts: Vec<Part>,
}

/// A part of a call, in time since the call began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

pub(crate) type Attribute = (&'static str, Value);

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Number(i64),
}

/// As many calls may wait to be told: some seconds of a node that starts all its pods at once.
const WAITING: usize = 512;
/// How long the last ones may take, when the agent stops.
const FLUSH: Duration = Duration::from_secs(2);

// === impl Tracer ===

impl Tracer {
    /// Tells nobody.
    pub fn off() -> Self {
        Self(None)
    }

    /// Tells a collector, by what the exporter does as long as it runs. `node_name` is the node's in Kubernetes.
    pub(crate) fn to(
        collector: &Uri,
        node_name: Option<&str>,
        metrics: TraceMetrics,
        health: Reporter,
    ) -> (Self, Exporter) {
        let (sender, calls) = mpsc::channel(WAITING);
        let (flush, flushes) = mpsc::channel(1);
        let exporter =
            Exporter::new(collector, wire::resource(node_name), calls, flushes, metrics.clone(), health);
        (Self(Some(Inner { calls: sender, flush, metrics })), exporter)
    }

    /// The trace that a call is part of, by its metadata: the caller's, or one that begins here. `None` if the call is not to
    /// be told of, because there is nobody to tell or the caller does not record its part either.
    pub(crate) fn context(&self, metadata: &MetadataMap) -> Option<Context> {
        self.0.as_ref()?;
        let text = |name| metadata.get(name)?.to_str().ok();
        let Some(parent) = text(TRACEPARENT).and_then(TraceParent::parse) else {
            return Some(Context {
                trace_id: wire::random(|| fastrand::u128(..).to_be_bytes()),
                parent: None,
                state: String::new(),
            });
        };
        let state = text(TRACESTATE).filter(|state| is_trace_state(state)).unwrap_or_default();
        let TraceParent { trace_id, span_id, sampled } = parent;
        sampled.then(|| Context { trace_id, parent: Some(span_id), state: state.to_owned() })
    }

    /// Tells of a call.
    pub(crate) fn tell(&self, call: CallSpan) {
        let Some(Inner { calls, metrics, .. }) = &self.0 else { return };
        if let Err(error) = calls.try_send(call) {
            let (reason, call) = match error {
                TrySendError::Full(call) => ("full", call),
                TrySendError::Closed(call) => ("stopping", call),
            };
            metrics.drop_spans(reason, call.spans());
        }
    }

    /// Tells of the last calls, or gives up after two seconds. Later ones are lost.
    pub async fn flush(&self) {
        let Some(Inner { flush, .. }) = &self.0 else { return };
        let (done, flushed) = oneshot::channel();
        if flush.try_send(done).is_ok() {
            // What could not be told is counted by whoever did not take it.
            let _ = timeout(FLUSH, flushed).await;
        }
    }
}

// === impl CallSpan ===

impl CallSpan {
    /// How many spans it is.
    fn spans(&self) -> usize {
        1 + self.parts.len()
    }
}

// === impl Value ===

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

#[cfg(test)]
mod tests;
