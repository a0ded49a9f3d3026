//! The ranges of other nodes by their ways, and what is refused.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Clones share the numbers.
#[derive(Debug, Clone, Default)]
pub struct NodeMetrics {
    ranges: Family<WayLabels, Gauge>,
    refused: Gauge,
    passes: Counter,
    messages: Counter,
    repairs: Counter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WayLabels {
    way: &'static str,
}

const WAYS: [&str; 3] = ["direct", "vxlan", "none"];

// === impl NodeMetrics ===

impl NodeMetrics {
    /// Replaces the numbers: of ranges reached directly, by VXLAN and not at all, and of what is refused.
    pub fn set(&self, ranges: [i64; 3], refused: i64) {
        for (way, number) in WAYS.into_iter().zip(ranges) {
            self.ranges.get_or_create(&WayLabels { way }).set(number);
        }
        self.refused.set(refused);
    }

    /// Counts a comparison of the kernel with what it should have, for which so many messages were read.
    pub fn passed(&self, messages: u64) {
        self.passes.inc();
        self.messages.inc_by(messages);
    }

    /// Counts a comparison that has restored what another program had changed.
    pub fn repaired(&self) {
        self.repairs.inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("ranges", "Ranges of other nodes, by the way to them", self.ranges.clone());
        registry.register(
            "refused",
            "Ranges and addresses of nodes, also of this one, that are refused",
            self.refused.clone(),
        );
        registry.register("passes", "Comparisons of the routes to nodes with the nodes", self.passes.clone());
        registry.register(
            "pass_messages",
            "Messages of the kernel that these comparisons have read",
            self.messages.clone(),
        );
        registry.register(
            "repairs",
            "Comparisons that have restored a route, rule, filter, row or tunnel that another program had changed",
            self.repairs.clone(),
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::Metrics;

    #[test]
    fn ranges_have_a_series_for_each_way_once_the_nodes_are_known() {
        let metrics = Metrics::default();
        assert!(!metrics.encode().unwrap().contains("ferrule_node_ranges{"));
        metrics.nodes.set([5, 2, 0], 1);
        metrics.nodes.set([4, 2, 0], 3);
        metrics.nodes.passed(7);
        metrics.nodes.repaired();
        let text = metrics.encode().unwrap();
        let mut lines: Vec<_> = text.lines().filter(|it| it.starts_with("ferrule_node_")).collect();
        lines.sort_unstable();
        let expected = [
            "ferrule_node_pass_messages_total 7",
            "ferrule_node_passes_total 1",
            "ferrule_node_ranges{way=\"direct\"} 4",
            "ferrule_node_ranges{way=\"none\"} 0",
            "ferrule_node_ranges{way=\"vxlan\"} 2",
            "ferrule_node_refused 3",
            "ferrule_node_repairs_total 1",
        ];
        assert_eq!(lines, expected);
    }
}
