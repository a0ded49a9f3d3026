//! Packets, bytes and drops of the tunnel device and the uplinks: read from the dataplane when they are
//! scraped.

use std::fmt;

use agent_common::{DropReason, Traffic};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
};

use super::source::Source;

/// The counters of links. Clones share them.
pub type LinkMetrics = Source<LinkCounters>;

/// The counters of one link: packets from other hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkCounters {
    pub ifindex: u32,
    pub interface: String,
    pub traffic: Traffic,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LinkLabels {
    interface: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabels {
    interface: String,
    reason: &'static str,
}

// === impl LinkMetrics ===

impl Collector for LinkMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(links) = self.read() else { return Ok(()) };
        for (name, help, count) in [
            ("link_packets", "Packets from the tunnel or an uplink that were not dropped.", PACKETS),
            ("link_bytes", "Bytes of these packets, including Ethernet headers.", BYTES),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for LinkCounters { interface, traffic, .. } in &links {
                let labels = LinkLabels { interface: interface.clone() };
                ConstCounter::new(count(traffic)).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help =
            "Packets from the tunnel or an uplink that the dataplane has dropped; only reasons with any.";
        let mut metric = encoder.encode_descriptor("link_drops", help, None, MetricType::Counter)?;
        for LinkCounters { interface, traffic, .. } in &links {
            for reason in DropReason::ALL {
                let packets = traffic.drops.get(*reason);
                if packets > 0 {
                    let labels = DropLabels { interface: interface.clone(), reason: reason.name() };
                    ConstCounter::new(packets).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

const PACKETS: fn(&Traffic) -> u64 = |traffic| traffic.packets;
const BYTES: fn(&Traffic) -> u64 = |traffic| traffic.bytes;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn links_have_series_of_what_passed_and_of_reasons_with_drops() {
        let metrics = Metrics::default();
        assert!(!metrics.encode().unwrap().contains("link_packets"), "nothing to read from yet");
        metrics.links.read_from(|| {
            let mut traffic = Traffic { packets: 3, bytes: 300, ..Traffic::default() };
            traffic.drops.add(DropReason::TunnelInner, 2);
            vec![LinkCounters { ifindex: 2, interface: "eth0".to_owned(), traffic }]
        });
        let text = metrics.encode().unwrap();
        let lines: Vec<_> = text.lines().filter(|it| it.starts_with("ferrule_link_")).collect();
        let expected = [
            "ferrule_link_packets_total{interface=\"eth0\"} 3",
            "ferrule_link_bytes_total{interface=\"eth0\"} 300",
            "ferrule_link_drops_total{interface=\"eth0\",reason=\"tunnel_inner\"} 2",
        ];
        assert_eq!(lines, expected);
    }
}
