//! Tracing of CNI calls: exports spans to a collector by OTLP. The only room that names OpenTelemetry.
//!
//! A finished call goes into a bounded queue. No call waits for the collector: if the queue is full, the
//! call's spans are dropped and counted. Without a collector, no spans are recorded.

mod export;
mod span;
mod wire;

use std::time::Duration;

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
pub(crate) use span::{Attribute, CallSpan, Context, Part, Value};

/// The queue of finished calls, or none without a collector. Clones share it.
#[derive(Debug, Clone)]
pub struct Tracer(Option<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    calls: mpsc::Sender<CallSpan>,
    flush: mpsc::Sender<oneshot::Sender<()>>,
    metrics: TraceMetrics,
}

/// Calls in the queue: some seconds of a node that starts all its pods at once.
const QUEUE: usize = 512;
/// The deadline of the last export, when the agent stops.
pub(crate) const FLUSH: Duration = Duration::from_secs(2);

// === impl Tracer ===

impl Tracer {
    /// Records no spans.
    pub fn off() -> Self {
        Self(None)
    }

    /// Records spans for the returned exporter, which must be run. `node_name`: of the Node object.
    pub(crate) fn to(
        collector: &Uri,
        node_name: Option<&str>,
        metrics: TraceMetrics,
        health: Reporter,
    ) -> (Self, Exporter) {
        let (sender, calls) = mpsc::channel(QUEUE);
        let (flush, flushes) = mpsc::channel(1);
        let exporter =
            Exporter::new(collector, wire::resource(node_name), calls, flushes, metrics.clone(), health);
        (Self(Some(Inner { calls: sender, flush, metrics })), exporter)
    }

    /// The trace of a call: the caller's, from its metadata, or a new one. `None` if tracing is off or the
    /// caller does not sample its trace.
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

    /// Queues a finished call for export.
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

    /// Exports the queued calls within [`FLUSH`]; drops later ones.
    pub async fn flush(&self) {
        let Some(Inner { flush, .. }) = &self.0 else { return };
        let (done, flushed) = oneshot::channel();
        if flush.try_send(done).is_ok() {
            // The exporter counts the spans that it drops.
            let _ = timeout(FLUSH, flushed).await;
        }
    }
}

#[cfg(test)]
mod tests;
