//! A traced call, independent of the protocol of the collector.

use std::time::{Duration, SystemTime};

/// The trace of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) trace_id: [u8; 16],
    /// The caller's span; `None` if the trace starts here.
    pub(crate) parent: Option<[u8; 8]>,
    /// The caller's `tracestate`, unchanged.
    pub(crate) state: String,
}

/// A finished call.
#[derive(Debug)]
pub(crate) struct CallSpan {
    pub(crate) context: Context,
    pub(crate) name: String,
    pub(crate) began: SystemTime,
    pub(crate) took: Duration,
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) error: Option<String>,
    /// In order.
    pub(crate) parts: Vec<Part>,
}

/// A part of a call. Times are since the start of the call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

pub(crate) type Attribute = (&'static str, Value);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Number(i64),
}

// === impl Context ===

impl Context {
    /// The trace's identifier as W3C Trace Context writes it.
    pub(crate) fn trace_hex(&self) -> String {
        self.trace_id.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

// === impl CallSpan ===

impl CallSpan {
    /// The number of its spans.
    pub(super) fn spans(&self) -> usize {
        1 + self.parts.len()
    }
}

// === impl Value ===

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}
