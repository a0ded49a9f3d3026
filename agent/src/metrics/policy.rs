//! Policies: what is compiled and written, and how long that takes.

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Clones share the numbers.
#[derive(Debug, Clone)]
pub struct PolicyMetrics {
    pub policies: Gauge,
    pub rulesets: Gauge,
    pub classes: Gauge,
    /// Changes that do not fit, and wait.
    pub held: Gauge,
    pub changes: Counter,
    pub refused: Counter,
    /// Seconds.
    pub compile: Histogram,
    /// Seconds.
    pub write: Histogram,
}

/// Seconds: from one row to all rows of a large cluster.
const BUCKETS: [f64; 15] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

// === impl PolicyMetrics ===

impl Default for PolicyMetrics {
    fn default() -> Self {
        Self {
            policies: Gauge::default(),
            rulesets: Gauge::default(),
            classes: Gauge::default(),
            held: Gauge::default(),
            changes: Counter::default(),
            refused: Counter::default(),
            compile: Histogram::new(BUCKETS),
            write: Histogram::new(BUCKETS),
        }
    }
}

impl PolicyMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("policies", "Policies that are known", self.policies.clone());
        registry.register(
            "rulesets",
            "Sets of rules that pods with the same policies share, by direction",
            self.rulesets.clone(),
        );
        registry.register(
            "classes",
            "Classes of addresses between which the rules of this node's pods distinguish",
            self.classes.clone(),
        );
        registry.register(
            "held",
            "Changes of policies, peers and pods that do not fit, and wait",
            self.held.clone(),
        );
        registry.register(
            "changes",
            "Changes of policies, peers and pods that were compiled",
            self.changes.clone(),
        );
        registry.register("refused", "Changes that did not fit into the maps", self.refused.clone());
        registry.register_with_unit(
            "compile",
            "Duration of compiling a batch of changes",
            Unit::Seconds,
            self.compile.clone(),
        );
        registry.register_with_unit(
            "write",
            "Duration of writing the rows of a batch of changes",
            Unit::Seconds,
            self.write.clone(),
        );
    }
}
