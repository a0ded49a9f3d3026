//! From the queue of calls to the collector: many at a time, each attempt with a deadline, few attempts, and never for ever.

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

use super::{CallSpan, wire};
use crate::{chain::chain, health::Reporter, metrics::TraceMetrics};

/// Tells a collector of calls, as long as it runs.
#[derive(Debug)]
pub(crate) struct Exporter {
    collector: Uri,
    /// Connects when it is used, and again when the connection has been lost.
    client: TraceServiceClient<Channel>,
    resource: Resource,
    calls: mpsc::Receiver<CallSpan>,
    flushes: Option<mpsc::Receiver<oneshot::Sender<()>>>,
    /// What is being told.
    batch: Vec<Span>,
    metrics: TraceMetrics,
    health: Reporter,
}

/// How long to wait for more to tell at the same time.
const LINGER: Duration = Duration::from_secs(1);
/// The most spans that are told at once, but for those of the last call.
const MAX_BATCH: usize = 512;
const CONNECT: Duration = Duration::from_secs(2);
/// How long the collector may take.
const DEADLINE: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 3;
/// The wait after a failed attempt, which doubles.
const RETRY: Duration = Duration::from_millis(500);
/// A collector that is gone without a word is noticed within twice this, while it is told something.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

// === impl Exporter ===

impl Exporter {
    /// To be called within a runtime.
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

    /// Tells of calls until it is asked for the last of them, or nobody can tell it of any.
    pub(crate) async fn run(mut self) {
        let Some(mut flushes) = self.flushes.take() else { return };
        let flushed = tokio::select! {
            biased;
            flushed = flushes.recv() => flushed,
            () = self.follow() => None,
        };
        self.finish().await;
        if let Some(flushed) = flushed {
            // Whoever asked may have given up.
            let _ = flushed.send(());
        }
    }

    /// It can be dropped at any time: what has been taken from the queue is in the batch until it is told or lost.
    async fn follow(&mut self) {
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

    /// Tells of what is left, if the collector takes it.
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

    /// Tells of the batch, which is empty afterwards. Gives whether the collector took it.
    async fn deliver(&mut self, attempts: u32) -> bool {
        let mut wait = RETRY;
        let mut left = attempts;
        loop {
            left = left.saturating_sub(1);
            match self.export().await {
                Ok(answer) => {
                    self.taken(answer);
                    return true;
                }
                Err(status) if left > 0 && may_pass(&status) => {
                    sleep(wait).await;
                    wait *= 2;
                }
                Err(status) => {
                    self.lost(&status);
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
            Err(_) => Err(Status::deadline_exceeded(format!("there is no answer after {DEADLINE:?}"))),
        }
    }

    fn taken(&mut self, answer: ExportTraceServiceResponse) {
        let spans = self.batch.len();
        self.batch.clear();
        let partial = answer.partial_success.unwrap_or_default();
        let refused = usize::try_from(partial.rejected_spans).unwrap_or_default().min(spans);
        self.metrics.drop_spans("refused", refused);
        self.metrics.exported.inc_by((spans - refused) as u64);
        self.health.healthy(match partial.error_message {
            said if said.is_empty() => format!("{} is told of calls", self.collector),
            said => format!("{} is told of calls, and says: {said}", self.collector),
        });
    }

    fn lost(&mut self, status: &Status) {
        self.metrics.drop_spans("failed", self.batch.len());
        self.batch.clear();
        let why = chain(status);
        self.health.unhealthy(format!("{} cannot be told of calls: {why}", self.collector));
    }
}

/// Whether the next attempt may succeed, as OTLP says which do.
fn may_pass(status: &Status) -> bool {
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
