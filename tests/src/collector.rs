//! An OTLP collector that stores what it receives.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value},
    trace::v1::{ResourceSpans, Span},
};
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use crate::sys;

/// A running collector; dropping it stops it.
pub struct Collector {
    received: Arc<Mutex<Vec<ResourceSpans>>>,
    _runtime: Runtime,
}

/// A call's trace: its own span and its phases in order.
#[derive(Debug, Clone)]
pub struct Call {
    pub own: Span,
    pub phases: Vec<Span>,
}

struct Service(Arc<Mutex<Vec<ResourceSpans>>>);

/// Each node has its own loopback.
pub const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4317);
pub const FLAGS: [&str; 2] = ["--otlp-endpoint", "http://127.0.0.1:4317"];

const EXPORT_TIMEOUT: Duration = Duration::from_secs(30);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(request.into_inner().resource_spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

// === impl Collector ===

impl Collector {
    /// Listens in the caller's network namespace.
    ///
    /// # Errors
    /// If the port is in use.
    pub fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(ADDRESS).context("cannot listen as a collector")?;
        listener.set_nonblocking(true)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let received = Arc::<Mutex<Vec<ResourceSpans>>>::default();
        let service = TraceServiceServer::new(Service(Arc::clone(&received)));
        let inside = runtime.enter();
        let incoming = TcpListenerStream::new(tokio::net::TcpListener::from_std(listener)?);
        drop(inside);
        runtime.spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        Ok(Self { received, _runtime: runtime })
    }

    /// Everything received so far.
    pub fn received(&self) -> Vec<ResourceSpans> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All spans received so far.
    pub fn spans(&self) -> Vec<Span> {
        let scopes = self.received().into_iter().flat_map(|it| it.scope_spans);
        scopes.flat_map(|it| it.spans).collect()
    }

    /// Waits for a verb's span in a trace.
    ///
    /// # Errors
    /// If the span does not arrive in time.
    pub fn call(&self, trace_id: &str, verb: &str) -> anyhow::Result<Call> {
        let mut found = None;
        sys::wait_until("the collector has received the call's span", EXPORT_TIMEOUT, || {
            let spans = self.spans();
            let of_trace =
                |span: &&Span| hex(&span.trace_id) == trace_id && span.name == format!("CNI {verb}");
            found = spans.iter().find(of_trace).map(|own| {
                let is_phase = |span: &&Span| span.parent_span_id == own.span_id;
                Call { own: own.clone(), phases: spans.iter().filter(is_phase).cloned().collect() }
            });
            ensure!(found.is_some(), "received {:?}", spans.iter().map(|it| &it.name).collect::<Vec<_>>());
            Ok(true)
        })?;
        found.context("the call's span is missing")
    }
}

// === impl Call ===

impl Call {
    /// The names of the phases; verifies that they are contiguous and lie within the call.
    ///
    /// # Errors
    /// If the phases have gaps, overlap or exceed the call.
    pub fn phases(&self) -> anyhow::Result<Vec<&str>> {
        let mut at = self.own.start_time_unix_nano;
        for (number, phase) in self.phases.iter().enumerate() {
            ensure!(phase.trace_id == self.own.trace_id, "{} has another trace ID", phase.name);
            ensure!(
                phase.end_time_unix_nano >= phase.start_time_unix_nano,
                "{} ends before it begins",
                phase.name
            );
            let is_next =
                if number == 0 { phase.start_time_unix_nano >= at } else { phase.start_time_unix_nano == at };
            ensure!(is_next, "{} does not start at the previous phase's end: {:#?}", phase.name, self.phases);
            at = phase.end_time_unix_nano;
        }
        ensure!(at <= self.own.end_time_unix_nano, "the last phase ends after the call: {:#?}", self.phases);
        Ok(self.phases.iter().map(|phase| phase.name.as_str()).collect())
    }

    /// The call span's attributes as text.
    pub fn attributes(&self) -> BTreeMap<String, String> {
        texts(&self.own.attributes)
    }
}

pub fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |it: &KeyValue| match it.value.as_ref().and_then(|value| value.value.clone()) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|it| (it.key.clone(), text(it))).collect()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
