//! Propagation of the runtime's trace context to the agent.
//!
//! Runtimes with a libcni of November 2025 or later export the trace context to plugins in the environment
//! variables of OpenTelemetry, `TRACEPARENT` and `TRACESTATE`. (They also export `BAGGAGE`, which the agent
//! does not use.) A malformed trace context is ignored silently: tracing never fails a call.

use ferrule_proto::trace::{TRACEPARENT, TRACESTATE, TraceParent, is_trace_state};
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue};

use crate::env::Env;

/// The trace context as request metadata.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    parent: HeaderValue,
    state: Option<HeaderValue>,
}

// === impl Trace ===

impl Trace {
    /// The trace context in the environment.
    pub(crate) fn from_env(env: &impl Env) -> Option<Self> {
        let parent = TraceParent::parse(env("TRACEPARENT")?.to_str()?)?;
        let state = env("TRACESTATE").and_then(|state| state.into_string().ok());
        let state = state.filter(|state| is_trace_state(state));
        Some(Self {
            parent: HeaderValue::try_from(parent.to_string()).ok()?,
            state: state.and_then(|state| HeaderValue::try_from(state).ok()),
        })
    }

    /// Adds the trace context to the metadata of a call.
    pub(crate) fn write(self, metadata: &mut HeaderMap) {
        metadata.insert(HeaderName::from_static(TRACEPARENT), self.parent);
        if let Some(state) = self.state {
            metadata.insert(HeaderName::from_static(TRACESTATE), state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt as _};

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// The metadata that an environment results in.
    fn sent(parent: Option<&str>, state: Option<OsString>) -> Vec<(String, String)> {
        let env = |name: &str| match name {
            "TRACEPARENT" => parent.map(OsString::from),
            "TRACESTATE" => state.clone(),
            _ => None,
        };
        let mut metadata = HeaderMap::new();
        if let Some(trace) = Trace::from_env(&env) {
            trace.write(&mut metadata);
        }
        let pairs =
            metadata.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
        pairs.collect()
    }

    #[test]
    fn parent_and_state_are_sent() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(sent(None, None), []);
        assert_eq!(sent(Some(PARENT), None), [pair("traceparent", PARENT)]);
        let both = [pair("traceparent", PARENT), pair("tracestate", "rojo=1,congo=2")];
        assert_eq!(sent(Some(PARENT), Some("rojo=1,congo=2".into())), both);
    }

    #[test]
    fn malformed_trace_context_is_ignored() {
        for parent in ["", "00", &PARENT.to_uppercase(), &PARENT.repeat(1000)] {
            assert_eq!(
                sent(Some(parent), Some("rojo=1".into())),
                [],
                "{parent:?}: no tracestate without traceparent"
            );
        }
        assert_eq!(sent(None, Some("rojo=1".into())), []);
        let not_utf8 = OsString::from_vec(b"rojo=\xff".to_vec());
        for state in ["".into(), "rojo".into(), "a=b\r\nx: y".into(), "a=b,".repeat(1000).into(), not_utf8] {
            let sent = sent(Some(PARENT), Some(state));
            assert_eq!(sent.len(), 1, "{sent:?}");
        }
    }
}
