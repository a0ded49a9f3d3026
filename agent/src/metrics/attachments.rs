//! The attachments by state: counted when they are scraped.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use super::{source::Source, values::count};

/// The name of each state, and the number of attachments in it. Clones share the source.
pub type AttachmentMetrics = Source<(&'static str, usize)>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

// === impl AttachmentMetrics ===

impl Collector for AttachmentMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(states) = self.read() else { return Ok(()) };
        let help = "Attachments in the registry.";
        let mut metric = encoder.encode_descriptor("attachments", help, None, MetricType::Gauge)?;
        for (state, number) in states {
            ConstGauge::new(count(number)).encode(metric.encode_family(&StateLabels { state })?)?;
        }
        Ok(())
    }
}
