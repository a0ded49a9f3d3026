//! Durations of CNI calls, with the trace of one call of each bucket.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{exemplar::HistogramWithExemplars, family::Family},
    registry::{Registry, Unit},
};

/// Metrics of CNI calls.
#[derive(Debug, Clone)]
pub struct CniMetrics {
    duration: Family<CallLabels, Durations, fn() -> Durations>,
}

type Durations = HistogramWithExemplars<TraceLabels>;

/// All values are constants of the agent, so that the number of time series is bounded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    verb: &'static str,
    phase: &'static str,
    code: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TraceLabels {
    trace_id: String,
}

/// Seconds: from a comparison of kernel state to the shim's longest deadline.
const BUCKETS: [f64; 19] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 90.0,
];

// === impl CniMetrics ===

impl Default for CniMetrics {
    fn default() -> Self {
        Self { duration: Family::new_with_constructor(|| HistogramWithExemplars::new(BUCKETS.into_iter())) }
    }
}

impl CniMetrics {
    /// Records the time of a call in a phase. `code` is the call's CNI code, 0 for success; `trace_id` that
    /// of an exported trace.
    pub fn observe(
        &self,
        verb: &'static str,
        phase: &'static str,
        code: i32,
        took: Duration,
        trace_id: Option<String>,
    ) {
        let labels = trace_id.map(|trace_id| TraceLabels { trace_id });
        self.duration.get_or_create(&CallLabels { verb, phase, code }).observe(
            took.as_secs_f64(),
            labels,
            None,
        );
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "duration",
            "Duration of CNI calls, in total and by phase",
            Unit::Seconds,
            self.duration.clone(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn a_traced_call_is_the_exemplar_of_its_bucket() {
        let metrics = Metrics::default();
        let took = Duration::from_millis(2);
        metrics.cni.observe("ADD", "total", 0, took, Some("4bf92f".to_owned()));
        metrics.cni.observe("DEL", "total", 0, took, None);
        let text = metrics.encode().unwrap();
        let bucket =
            r#"ferrule_cni_duration_seconds_bucket{le="0.0025",verb="ADD",phase="total",code="0"} 1"#;
        let line = text.lines().find(|it| it.starts_with(bucket)).unwrap();
        assert!(line.contains("# {trace_id=\"4bf92f\"} 0.002"), "{line}");
        assert_eq!(text.matches("trace_id").count(), 1, "{text}");
    }
}
