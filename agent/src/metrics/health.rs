//! The health of the agent's components: read when it is scraped.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use super::source::Source;
use crate::health::{Health, State};

/// Clones share the source.
pub type HealthMetrics = Source<Health>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ComponentLabels {
    component: &'static str,
    affects: &'static str,
}

// === impl HealthMetrics ===

impl Collector for HealthMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(health) = self.read().and_then(|mut all| all.pop()) else { return Ok(()) };
        let help = "Whether an ADD could be served.";
        let ready = encoder.encode_descriptor("ready", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from(health.is_ready())).encode(ready)?;
        let help = "Whether a component is healthy, and which pods it affects otherwise.";
        let mut metric = encoder.encode_descriptor("component_healthy", help, None, MetricType::Gauge)?;
        for (component, it) in health.components() {
            let labels = ComponentLabels { component, affects: it.affects.as_str() };
            let is_healthy = i64::from(it.state == State::Healthy);
            ConstGauge::new(is_healthy).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn each_component_has_a_series_and_its_loss_shows() {
        let (health, metrics) = (Health::default(), Metrics::default());
        let ranges = health.component("ranges", true, "waiting");
        let source = health.clone();
        metrics.health.read_from(move || vec![source.clone()]);
        let lines = || -> Vec<String> {
            let text = metrics.encode().unwrap();
            let kept = text.lines().filter(|it| it.starts_with("ferrule_ready") || it.contains("healthy{"));
            kept.map(str::to_owned).collect()
        };
        let component =
            |value| format!("ferrule_component_healthy{{component=\"ranges\",affects=\"new-pods\"}} {value}");
        assert_eq!(lines(), ["ferrule_ready 0".to_owned(), component(0)]);
        ranges.healthy("");
        assert_eq!(lines(), ["ferrule_ready 1".to_owned(), component(1)]);
        ranges.unhealthy("gone");
        assert_eq!(lines(), ["ferrule_ready 0".to_owned(), component(0)]);
    }
}
