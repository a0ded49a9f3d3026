//! Exports batches of spans to the collector, with a deadline for each attempt and a bounded number of
//! retries.

use std::time::Duration;

use http::Uri;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceResponse, trace_service_client::TraceServiceClient},
    resource::v1::Resource,
    trace::v1::Span,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use tonic::{
    Code, Request, Status,
    transport::{Channel, Endpoint},
};

use super::{span::CallSpan, wire};
use crate::{chain::chain, health::Reporter, metrics::TraceMetrics};

/// Receives calls from the queue and exports them.
#[derive(Debug)]
pub(crate) struct Exporter {
    collector: Uri,
    /// Connects on first use, and reconnects.
    client: TraceServiceClient<Channel>,
    resource: Resource,
    calls: mpsc::Receiver<CallSpan>,
    flushes: Option<mpsc::Receiver<oneshot::Sender<()>>>,
    /// The spans in export.
    batch: Vec<Span>,
    metrics: TraceMetrics,
    health: Reporter,
}

/// The wait for more calls of one batch.
const LINGER: Duration = Duration::from_secs(1);
/// The spans of a batch; the last call may exceed it.
const MAX_BATCH: usize = 512;
const CONNECT: Duration = Duration::from_secs(2);
/// The deadline of one attempt.
const DEADLINE: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 3;
/// The first backoff, which doubles.
const RETRY: Duration = Duration::from_millis(500);
/// During an export, a silent collector is detected within twice this time.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

// === impl Exporter ===

impl Exporter {
    /// Must be called within a Tokio runtime.
    pub(super) fn new(
        collector: &Uri,
        resource: Resource,
        calls: mpsc::Receiver<CallSpan>,
        flushes: mpsc::Receiver<oneshot::Sender<()>>,
        metrics: TraceMetrics,
        health: Reporter,
    ) -> Self {
        let endpoint = Endpoint::from(collector.clone())
            .connect_timeout(CONNECT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let client = TraceServiceClient::new(endpoint.connect_lazy());
        let (collector, flushes) = (collector.clone(), Some(flushes));
        Self { collector, client, resource, calls, flushes, batch: Vec::new(), metrics, health }
    }

    /// Exports calls until a flush is requested or all tracers are dropped.
    pub(crate) async fn run(mut self) {
        let Some(mut flushes) = self.flushes.take() else { return };
        let flushed = tokio::select! {
            biased;
            flushed = flushes.recv() => flushed,
            () = self.export_batches() => None,
        };
        self.finish().await;
        if let Some(flushed) = flushed {
            // The caller of flush may have timed out.
            let _ = flushed.send(());
        }
    }

    /// Cancel-safe: calls taken from the queue stay in the batch until they are exported or dropped.
    async fn export_batches(&mut self) {
        loop {
            if self.batch.is_empty() {
                let Some(first) = self.calls.recv().await else { return };
                self.take(first);
            }
            let more = async {
                while self.batch.len() < MAX_BATCH {
                    let Some(call) = self.calls.recv().await else { return };
                    self.take(call);
                }
            };
            let _ = timeout(LINGER, more).await;
            self.deliver(ATTEMPTS).await;
        }
    }

    /// Exports the rest of the queue, with one attempt; drops it after a failure.
    async fn finish(&mut self) {
        self.calls.close();
        let mut is_away = false;
        loop {
            while self.batch.len() < MAX_BATCH {
                let Ok(call) = self.calls.try_recv() else { break };
                self.take(call);
            }
            if self.batch.is_empty() {
                return;
            }
            if is_away {
                self.metrics.drop_spans("stopping", self.batch.len());
                self.batch.clear();
            } else {
                is_away = !self.deliver(1).await;
            }
        }
    }

    fn take(&mut self, call: CallSpan) {
        self.batch.extend(wire::spans(call));
    }

    /// Exports and empties the batch. Returns whether the collector accepted it.
    async fn deliver(&mut self, attempts: u32) -> bool {
        let mut wait = RETRY;
        let mut left = attempts;
        loop {
            left = left.saturating_sub(1);
            match self.export().await {
                Ok(answer) => {
                    self.record_success(answer);
                    return true;
                }
                Err(status) if left > 0 && is_retryable(&status) => {
                    sleep(wait).await;
                    wait *= 2;
                }
                Err(status) => {
                    self.record_failure(&status);
                    return false;
                }
            }
        }
    }

    async fn export(&mut self) -> Result<ExportTraceServiceResponse, Status> {
        let mut request = Request::new(wire::request(self.resource.clone(), self.batch.clone()));
        request.set_timeout(DEADLINE);
        match timeout(DEADLINE, self.client.export(request)).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded(format!("no reply within {DEADLINE:?}"))),
        }
    }

    fn record_success(&mut self, answer: ExportTraceServiceResponse) {
        let spans = self.batch.len();
        self.batch.clear();
        let partial = answer.partial_success.unwrap_or_default();
        let refused = usize::try_from(partial.rejected_spans).unwrap_or_default().min(spans);
        self.metrics.drop_spans("refused", refused);
        self.metrics.exported.inc_by((spans - refused) as u64);
        self.health.healthy(match partial.error_message {
            message if message.is_empty() => format!("exporting to {}", self.collector),
            message => format!("exporting to {}, which reports: {message}", self.collector),
        });
    }

    fn record_failure(&mut self, status: &Status) {
        self.metrics.drop_spans("failed", self.batch.len());
        self.batch.clear();
        let why = chain(status);
        self.health.unhealthy(format!("cannot export to {}: {why}", self.collector));
    }
}

/// Whether the OTLP specification calls the failure retryable.
fn is_retryable(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    )
}
