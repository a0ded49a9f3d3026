//! Packets, bytes and drops of pods: read from the dataplane when they are scraped.

use std::fmt;

use agent_common::{Counters, DropReason, Traffic};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
};

use super::source::Source;

/// The counters of pods' interfaces. Clones share them.
pub type PodMetrics = Source<PodCounters>;

/// The counters of one interface, or of several together. No two have the same labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCounters {
    pub labels: PodLabels,
    pub counters: Counters,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct PodLabels {
    pub namespace: String,
    pub pod: String,
    /// The name in the pod.
    pub interface: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TrafficLabels {
    #[prometheus(flatten)]
    pod: PodLabels,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabels {
    #[prometheus(flatten)]
    pod: PodLabels,
    direction: &'static str,
    reason: &'static str,
}

// === impl PodMetrics ===

impl Collector for PodMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(pods) = self.read() else { return Ok(()) };
        for (name, help, count) in [
            ("pod_packets", "Packets forwarded from a pod (egress) or delivered to it (ingress).", PACKETS),
            ("pod_bytes", "Bytes of these packets, including Ethernet headers.", BYTES),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (pod, direction, traffic) in directions(&pods) {
                let labels = TrafficLabels { pod: pod.clone(), direction };
                ConstCounter::new(count(traffic)).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help = "Packets from or to a pod that the dataplane has dropped; only reasons with any.";
        let mut metric = encoder.encode_descriptor("pod_drops", help, None, MetricType::Counter)?;
        for (pod, direction, traffic) in directions(&pods) {
            for reason in DropReason::ALL {
                let packets = traffic.drops.get(*reason);
                if packets > 0 {
                    let labels = DropLabels { pod: pod.clone(), direction, reason: reason.name() };
                    ConstCounter::new(packets).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

const PACKETS: fn(&Traffic) -> u64 = |traffic| traffic.packets;
const BYTES: fn(&Traffic) -> u64 = |traffic| traffic.bytes;

fn directions(pods: &[PodCounters]) -> impl Iterator<Item = (&PodLabels, &'static str, &Traffic)> {
    pods.iter().flat_map(|PodCounters { labels, counters: Counters { egress, ingress } }| {
        [(labels, "egress", egress), (labels, "ingress", ingress)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn pods_have_series_for_both_directions_and_for_reasons_with_drops() {
        let metrics = Metrics::default();
        assert!(!metrics.encode().unwrap().contains("pod_packets"), "nothing to read from yet");
        metrics.pods.read_from(|| {
            let labels = PodLabels {
                namespace: "shop".to_owned(),
                pod: "web-0".to_owned(),
                interface: "eth0".to_owned(),
            };
            let mut egress = Traffic { packets: 3, bytes: 300, ..Traffic::default() };
            egress.drops.add(DropReason::SpoofedMac, 2);
            vec![PodCounters { labels, counters: Counters { egress, ingress: Traffic::default() } }]
        });
        let text = metrics.encode().unwrap();
        let pod = r#"namespace="shop",pod="web-0",interface="eth0""#;
        let lines: Vec<_> = text.lines().filter(|it| it.starts_with("ferrule_pod_")).collect();
        let expected = [
            format!("ferrule_pod_packets_total{{{pod},direction=\"egress\"}} 3"),
            format!("ferrule_pod_packets_total{{{pod},direction=\"ingress\"}} 0"),
            format!("ferrule_pod_bytes_total{{{pod},direction=\"egress\"}} 300"),
            format!("ferrule_pod_bytes_total{{{pod},direction=\"ingress\"}} 0"),
            format!("ferrule_pod_drops_total{{{pod},direction=\"egress\",reason=\"spoofed_mac\"}} 2"),
        ];
        let of_pods: Vec<_> = lines.into_iter().filter(|it| !it.contains("_events_")).collect();
        assert_eq!(of_pods, expected);
    }
}
