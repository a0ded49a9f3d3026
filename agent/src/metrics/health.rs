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
        let components = health.components();
        for (name, help, state) in [
            (
                "component_healthy",
                "Whether a component is healthy, and which pods it affects otherwise.",
                State::Healthy,
            ),
            (
                "component_starting",
                "Whether a component has never been healthy or unhealthy.",
                State::Starting,
            ),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (component, it) in &components {
                let labels = ComponentLabels { component, affects: it.affects.as_str() };
                ConstGauge::new(i64::from(it.state == state)).encode(metric.encode_family(&labels)?)?;
            }
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
            let kept =
                text.lines().filter(|it| it.starts_with("ferrule_ready") || it.contains("{component="));
            kept.map(str::to_owned).collect()
        };
        let all = |ready: u8, healthy: u8, starting: u8| {
            let labels = "{component=\"ranges\",affects=\"new-pods\"}";
            [
                format!("ferrule_ready {ready}"),
                format!("ferrule_component_healthy{labels} {healthy}"),
                format!("ferrule_component_starting{labels} {starting}"),
            ]
        };
        assert_eq!(lines(), all(0, 0, 1));
        ranges.healthy("");
        assert_eq!(lines(), all(1, 1, 0));
        ranges.unhealthy("gone");
        assert_eq!(lines(), all(0, 0, 0));
    }
}
