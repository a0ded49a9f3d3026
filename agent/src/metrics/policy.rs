//! Policies: what is compiled and written, and how long that takes.

use ferrule_policy::Resource;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Clones share the numbers.
#[derive(Debug, Clone)]
pub struct PolicyMetrics {
    pub policies: Gauge,
    pub rules: Gauge,
    pub rulesets: Gauge,
    pub classes: Gauge,
    /// Changes that do not fit, and wait.
    held: Family<MapLabels, Gauge>,
    pub changes: Counter,
    refused: Family<MapLabels, Counter>,
    /// Seconds.
    pub compile: Histogram,
    /// Seconds.
    pub write: Histogram,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MapLabels {
    map: &'static str,
}

/// Seconds: from one row to all rows of a large cluster.
const BUCKETS: [f64; 15] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

// === impl MapLabels ===

impl MapLabels {
    fn of(map: Resource) -> Self {
        Self { map: map.name() }
    }
}

// === impl PolicyMetrics ===

impl Default for PolicyMetrics {
    fn default() -> Self {
        let metrics = Self {
            policies: Gauge::default(),
            rules: Gauge::default(),
            rulesets: Gauge::default(),
            classes: Gauge::default(),
            held: Family::default(),
            changes: Counter::default(),
            refused: Family::default(),
            compile: Histogram::new(BUCKETS),
            write: Histogram::new(BUCKETS),
        };
        for map in Resource::ALL {
            metrics.set_held(map, 0);
            drop(metrics.refused.get_or_create(&MapLabels::of(map)));
        }
        metrics
    }
}

impl PolicyMetrics {
    /// Replaces the number of changes that wait for room in a map.
    pub fn set_held(&self, map: Resource, number: i64) {
        self.held.get_or_create(&MapLabels::of(map)).set(number);
    }

    /// Counts a change that does not fit into a map.
    pub fn count_refused(&self, map: Resource) {
        self.refused.get_or_create(&MapLabels::of(map)).inc();
    }

    /// Changes that wait for room in a map, and how many were refused.
    #[cfg(test)]
    pub fn refused_of(&self, map: Resource) -> (i64, u64) {
        let labels = MapLabels::of(map);
        (self.held.get_or_create(&labels).get(), self.refused.get_or_create(&labels).get())
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("policies", "Policies that are known", self.policies.clone());
        registry.register("rules", "Rules of these policies", self.rules.clone());
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
            "Changes of policies, peers and pods that do not fit into a map, and wait",
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
            "Duration of writing the rows of a batch of changes, and of switching pods to them",
            Unit::Seconds,
            self.write.clone(),
        );
    }
}
