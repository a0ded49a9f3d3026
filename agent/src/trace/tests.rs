//! A tracer, an exporter, and a collector on the loopback.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::{ResourceSpans, Span, span::SpanKind},
};
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use super::*;
use crate::{
    health::{Health, State},
    metrics::Metrics,
};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// The behaviour of the fake collector.
#[derive(Clone, Copy)]
enum Behaviour {
    Take,
    /// Rejects one span of each request.
    TakeSome,
    Fail(tonic::Code),
    Hang,
}

#[derive(Clone)]
struct Collector {
    behaviour: Behaviour,
    taken: Arc<Mutex<Vec<ResourceSpans>>>,
    asked: Arc<Mutex<usize>>,
}

/// A tracer, its exporter and their metrics.
struct Bed {
    tracer: Tracer,
    health: Health,
    metrics: Metrics,
    exporting: JoinHandle<()>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        *self.asked.lock().unwrap() += 1;
        let rejected = match self.behaviour {
            Behaviour::Take => 0,
            Behaviour::TakeSome => 1,
            Behaviour::Fail(code) => return Err(Status::new(code, "the disk is full")),
            Behaviour::Hang => std::future::pending().await,
        };
        self.taken.lock().unwrap().extend(request.into_inner().resource_spans);
        let partial = ExportTracePartialSuccess { rejected_spans: rejected, ..Default::default() };
        Ok(Response::new(ExportTraceServiceResponse { partial_success: Some(partial) }))
    }
}

impl Collector {
    async fn start(behaviour: Behaviour) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let this = Self { behaviour, taken: Arc::default(), asked: Arc::default() };
        let service = TraceServiceServer::new(this.clone());
        let incoming = TcpListenerStream::new(listener);
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        (this, address)
    }

    fn spans(&self) -> Vec<Span> {
        let taken = self.taken.lock().unwrap();
        taken.iter().flat_map(|it| &it.scope_spans).flat_map(|it| it.spans.clone()).collect()
    }
}

impl Bed {
    fn new(collector: SocketAddr) -> Self {
        let (health, metrics) = (Health::default(), Metrics::default());
        let reporter = health.component("traces", false, "");
        let uri = format!("http://{collector}").parse().unwrap();
        let (tracer, exporter) = Tracer::to(&uri, Some("node-1"), metrics.trace.clone(), reporter);
        Self { tracer, health, metrics, exporting: tokio::spawn(exporter.run()) }
    }

    fn tell(&self, calls: usize) {
        for _ in 0..calls {
            let context = self.tracer.context(&metadata(PARENT, "rojo=1")).unwrap();
            self.tracer.tell(call(context));
        }
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.metrics.encode().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |value| value.trim().parse().unwrap())
    }
}

fn metadata(parent: &str, state: &str) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    metadata.insert(TRACEPARENT, parent.parse().unwrap());
    metadata.insert(TRACESTATE, state.parse().unwrap());
    metadata
}

/// Two spans.
fn call(context: Context) -> CallSpan {
    CallSpan {
        context,
        name: "CNI ADD".to_owned(),
        began: SystemTime::now(),
        took: Duration::from_millis(3),
        attributes: vec![("cni.ifname", Value::from("eth0")), ("cni.code", Value::Number(11))],
        error: Some("x".repeat(5000)),
        parts: vec![Part { name: "plug", from: Duration::from_millis(1), to: Duration::from_millis(2) }],
    }
}

#[tokio::test]
async fn a_call_joins_its_callers_trace_if_that_is_sampled() {
    let bed = Bed::new(SocketAddr::from(([127, 0, 0, 1], 1)));
    let joined = bed.tracer.context(&metadata(PARENT, "rojo=1")).unwrap();
    assert_eq!(joined.trace_id[..2], [0x4b, 0xf9]);
    assert_eq!((joined.parent.unwrap()[1], joined.state.as_str()), (0xf0, "rojo=1"));
    assert_eq!(bed.tracer.context(&metadata(&PARENT.replace("-01", "-00"), "")), None);
    let own = bed.tracer.context(&metadata("nonsense", "rojo=1")).unwrap();
    assert_eq!((own.parent, own.state.as_str()), (None, ""));
    assert_ne!(Some(own), bed.tracer.context(&MetadataMap::new()), "each is a trace of its own");
    assert_eq!(Tracer::off().context(&metadata(PARENT, "")), None);
}

#[tokio::test]
async fn a_call_becomes_a_span_with_a_child_for_each_part() {
    let (collector, address) = Collector::start(Behaviour::Take).await;
    let bed = Bed::new(address);
    bed.tell(1);
    bed.tracer.flush().await;
    bed.exporting.await.unwrap();
    let spans = collector.spans();
    let [own, part] = spans.as_slice() else { panic!("{spans:?}") };
    assert_eq!((own.name.as_str(), own.kind()), ("CNI ADD", SpanKind::Server));
    assert_eq!((own.parent_span_id[1], own.trace_state.as_str(), own.flags), (0xf0, "rojo=1", 0x301));
    assert_eq!(own.end_time_unix_nano - own.start_time_unix_nano, 3_000_000);
    assert_eq!(own.attributes.len(), 2);
    assert_eq!(own.status.as_ref().unwrap().message.len(), 1024, "it is cut");
    assert_eq!((part.name.as_str(), part.kind(), part.flags), ("plug", SpanKind::Internal, 0x101));
    assert_eq!((&part.trace_id, &part.parent_span_id), (&own.trace_id, &own.span_id));
    assert_eq!(part.start_time_unix_nano - own.start_time_unix_nano, 1_000_000);
    assert_ne!(part.span_id, own.span_id);
    let taken = collector.taken.lock().unwrap();
    let names: Vec<_> =
        taken[0].resource.as_ref().unwrap().attributes.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(names, ["service.name", "service.version", "k8s.node.name"]);
    assert_eq!(bed.metrics.trace.exported.get(), 2);
}

#[tokio::test]
async fn spans_for_an_unreachable_collector_are_dropped_and_counted_without_blocking() {
    // No process listens there.
    let bed = Bed::new(SocketAddr::from(([127, 0, 0, 1], 1)));
    bed.tell(QUEUE + 10);
    assert_eq!(bed.metric(r#"ferrule_trace_spans_dropped_total{reason="full"}"#), 20, "two for each call");
    bed.tracer.flush().await;
    let lost = bed.metric(r#"ferrule_trace_spans_dropped_total{reason="failed"}"#)
        + bed.metric(r#"ferrule_trace_spans_dropped_total{reason="stopping"}"#);
    assert_eq!(lost, 2 * QUEUE as u64);
    bed.exporting.await.unwrap();
    bed.tracer.flush().await;
    let context = bed.tracer.context(&MetadataMap::new()).unwrap();
    bed.tracer.tell(call(context));
    assert_eq!(bed.metrics.trace.exported.get(), 0);
    assert!(bed.health.is_ready(), "an ADD needs no collector");
}

#[tokio::test]
async fn only_retryable_failures_are_retried_a_bounded_number_of_times() {
    for (code, attempts) in [(tonic::Code::Unavailable, 3), (tonic::Code::InvalidArgument, 1)] {
        let (collector, address) = Collector::start(Behaviour::Fail(code)).await;
        let bed = Bed::new(address);
        bed.tell(1);
        let dropped = || bed.metric(r#"ferrule_trace_spans_dropped_total{reason="failed"}"#);
        let end = Instant::now() + Duration::from_secs(60);
        while dropped() == 0 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!((dropped(), *collector.asked.lock().unwrap()), (2, attempts), "{code:?}");
        let traces = &bed.health.components()["traces"];
        assert_eq!(traces.state, State::Unhealthy);
        assert!(
            traces.why.contains("the disk is full") && traces.why.contains(&address.to_string()),
            "{traces:?}"
        );
    }
}

#[tokio::test]
async fn spans_that_the_collector_rejects_are_counted() {
    let (_collector, address) = Collector::start(Behaviour::TakeSome).await;
    let bed = Bed::new(address);
    bed.tell(2);
    bed.tracer.flush().await;
    assert_eq!(bed.metrics.trace.exported.get(), 3);
    assert_eq!(bed.metric(r#"ferrule_trace_spans_dropped_total{reason="refused"}"#), 1);
}

#[tokio::test]
async fn flush_returns_in_time_if_the_collector_hangs() {
    let (_collector, address) = Collector::start(Behaviour::Hang).await;
    let bed = Bed::new(address);
    bed.tell(1);
    let start = Instant::now();
    bed.tracer.flush().await;
    assert!(start.elapsed() >= FLUSH && start.elapsed() < FLUSH * 10);
    assert!(!bed.exporting.is_finished(), "it goes with the agent");
    bed.exporting.abort();
}
