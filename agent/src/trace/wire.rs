//! Conversion of calls to OTLP messages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span, SpanFlags, Status, span::SpanKind, status::StatusCode},
};

use super::span::{Attribute, CallSpan, Part, Value};

const SAMPLED: u32 = 1;
/// Bytes of an exported error message.
const MAX_MESSAGE: usize = 1024;

/// The agent's resource attributes, by OpenTelemetry's conventions.
pub(super) fn resource(node_name: Option<&str>) -> Resource {
    let mut attributes = vec![
        ("service.name", Value::from("ferrule-agent")),
        ("service.version", Value::from(env!("CARGO_PKG_VERSION"))),
    ];
    attributes.extend(node_name.map(|name| ("k8s.node.name", Value::from(name))));
    Resource { attributes: attributes.into_iter().map(pair).collect(), ..Resource::default() }
}

/// The span of a call, and a child span for each of its parts.
pub(super) fn spans(call: CallSpan) -> Vec<Span> {
    let CallSpan { context, name, began, took, attributes, error, parts } = call;
    let at = |since: Duration| nanos(began) + u64::try_from(since.as_nanos()).unwrap_or_default();
    let call_id = id();
    // Declares whether the parent span is remote.
    let here = SAMPLED | SpanFlags::ContextHasIsRemoteMask as u32;
    let remote = context.parent.map_or(0, |_| SpanFlags::ContextIsRemoteMask as u32);
    let own = Span {
        trace_id: context.trace_id.to_vec(),
        span_id: call_id.clone(),
        trace_state: context.state.clone(),
        parent_span_id: context.parent.map(Vec::from).unwrap_or_default(),
        flags: here | remote,
        name,
        kind: SpanKind::Server.into(),
        start_time_unix_nano: at(Duration::ZERO),
        end_time_unix_nano: at(took),
        attributes: attributes.into_iter().map(pair).collect(),
        status: error.map(|message| Status { message: cut(message), code: StatusCode::Error.into() }),
        ..Span::default()
    };
    let part = |Part { name, from, to }| Span {
        trace_id: context.trace_id.to_vec(),
        span_id: id(),
        trace_state: context.state.clone(),
        parent_span_id: call_id.clone(),
        flags: here,
        name: String::from(name),
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: at(from),
        end_time_unix_nano: at(to),
        ..Span::default()
    };
    let parts: Vec<_> = parts.into_iter().map(part).collect();
    [vec![own], parts].concat()
}

pub(super) fn request(resource: Resource, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let scope = InstrumentationScope {
        name: "ferrule".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let resource_spans = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
}

/// Random bytes that are not all zero, which the IDs of traces and spans must not be.
pub(super) fn random<const N: usize>(bytes: impl Fn() -> [u8; N]) -> [u8; N] {
    loop {
        let bytes = bytes();
        if bytes != [0; N] {
            return bytes;
        }
    }
}

fn id() -> Vec<u8> {
    random(|| fastrand::u64(..).to_be_bytes()).to_vec()
}

fn nanos(at: SystemTime) -> u64 {
    let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or_default()
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_MESSAGE));
    text
}

fn pair((key, value): Attribute) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::StringValue(text),
        Value::Number(number) => any_value::Value::IntValue(number),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
