//! What is counted, under the names that a monitoring system sees.

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// All metrics of the agent. Cloning it is cheap, and counts into the same.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    pub watch: WatchMetrics,
    pub events: EventMetrics,
    pub reconcile: ReconcileMetrics,
    pub registry_store: StoreMetrics,
    pub cni: CniMetrics,
    pub trace: TraceMetrics,
    pub heal: HealMetrics,
    pub maps: MapMetrics,
}

/// Of the runtime's calls.
#[derive(Debug, Clone)]
pub struct CniMetrics {
    duration: Family<CallLabels, Histogram, fn() -> Histogram>,
}

/// Of telling a collector of calls.
#[derive(Debug, Clone, Default)]
pub struct TraceMetrics {
    pub exported: Counter,
    dropped: Family<DropLabels, Counter>,
}

/// Pressure of the pinned eBPF maps.
#[derive(Debug, Clone, Default)]
pub struct MapMetrics {
    entries: Family<MapLabels, Gauge>,
    capacity: Family<MapLabels, Gauge>,
}

/// Of what others have changed, and of putting it right.
#[derive(Debug, Clone, Default)]
pub struct HealMetrics {
    deviations: Family<KindLabels, Counter>,
    repairs: Family<RepairLabels, Counter>,
}

/// Of bringing together what should be and what is.
#[derive(Debug, Clone, Default)]
pub struct ReconcileMetrics {
    /// Pods that are to be looked at, or are being.
    pub queued: Gauge,
    pub rounds: Counter,
    pub failures: Counter,
    pub given_up: Counter,
    /// Attachments that were found dangling and are not removed yet.
    pub dangling: Gauge,
    pub removed: Counter,
}

/// Of the registry's store, which may be lost or damaged.
#[derive(Debug, Clone, Default)]
pub struct StoreMetrics {
    pub rebuilds: Counter,
    pub rebuilt_attachments: Counter,
    /// Interfaces whose attachments could not be made anew.
    pub unknown_interfaces: Gauge,
}

/// Of the Events about pods.
#[derive(Debug, Clone, Default)]
pub struct EventMetrics {
    pub sent: Counter,
    pub failed: Counter,
    /// There was no room, or too many were told.
    pub lost: Counter,
}

/// Of the watches, one time series for each source.
#[derive(Debug, Clone, Default)]
pub struct WatchMetrics {
    pub events: Family<EventLabels, Counter>,
    pub undecodable: Family<SourceLabels, Counter>,
    pub failures: Family<FailureLabels, Counter>,
    pub lists: Family<SourceLabels, Counter>,
    pub resumes: Family<SourceLabels, Counter>,
    pub bytes: Family<SourceLabels, Counter>,
    pub objects: Family<SourceLabels, Gauge>,
    pub buffered: Family<SourceLabels, Gauge>,
    pub unsaved: Family<SourceLabels, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SourceLabels {
    pub source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EventLabels {
    pub source: &'static str,
    pub kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FailureLabels {
    pub source: &'static str,
    pub reason: &'static str,
}

/// A few verbs, phases and codes, all of them our own: nobody can make many of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    verb: &'static str,
    phase: &'static str,
    code: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MapLabels {
    map: &'static str,
}

/// The names of our own kinds of deviation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RepairLabels {
    kind: &'static str,
    outcome: &'static str,
}

/// In seconds: from what a compare takes to the longest that a runtime's call is waited for.
const CALL_BUCKETS: [f64; 19] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 90.0,
];

/// A number of things as a gauge takes it.
pub fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("ferrule");
        let (watch, events) = (WatchMetrics::default(), EventMetrics::default());
        let reconcile = ReconcileMetrics::default();
        let registry_store = StoreMetrics::default();
        let (cni, trace) = (CniMetrics::default(), TraceMetrics::default());
        let (heal, maps) = (HealMetrics::default(), MapMetrics::default());
        watch.register(registry.sub_registry_with_prefix("watch"));
        events.register(registry.sub_registry_with_prefix("pod_events"));
        reconcile.register(registry.sub_registry_with_prefix("reconcile"));
        registry_store.register(registry.sub_registry_with_prefix("registry"));
        cni.register(registry.sub_registry_with_prefix("cni"));
        trace.register(registry.sub_registry_with_prefix("trace_spans"));
        heal.register(&mut registry);
        maps.register(&mut registry);
        Self {
            registry: Arc::new(registry),
            watch,
            events,
            reconcile,
            registry_store,
            cni,
            trace,
            heal,
            maps,
        }
    }
}

impl Metrics {
    /// All of them in the OpenMetrics text format.
    ///
    /// # Errors
    /// None that can occur: a text is written.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

// === impl CniMetrics ===

impl Default for CniMetrics {
    fn default() -> Self {
        Self { duration: Family::new_with_constructor(|| Histogram::new(CALL_BUCKETS)) }
    }
}

impl CniMetrics {
    /// How long a call was in a phase. `code` is the CNI code that it ended with, 0 for success.
    pub fn observe(&self, verb: &'static str, phase: &'static str, code: i32, took: Duration) {
        self.duration.get_or_create(&CallLabels { verb, phase, code }).observe(took.as_secs_f64());
    }

    fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "duration",
            "How long the runtime's calls took, in all and in each phase",
            Unit::Seconds,
            self.duration.clone(),
        );
    }
}

// === impl TraceMetrics ===

impl TraceMetrics {
    /// Spans that no collector will see.
    pub fn drop_spans(&self, reason: &'static str, spans: usize) {
        if spans > 0 {
            self.dropped.get_or_create(&DropLabels { reason }).inc_by(spans as u64);
        }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("exported", "Spans that the collector took", self.exported.clone());
        registry.register("dropped", "Spans that no collector took", self.dropped.clone());
    }
}

// === impl HealMetrics ===

impl HealMetrics {
    /// One that was not known before.
    pub fn deviation(&self, kind: &'static str) {
        self.deviations.get_or_create(&KindLabels { kind }).inc();
    }

    /// An attempt to put one right.
    pub fn repair(&self, kind: &'static str, outcome: &'static str) {
        self.repairs.get_or_create(&RepairLabels { kind, outcome }).inc();
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "deviations",
            "What others had changed of pods' interfaces when it was noticed",
            self.deviations.clone(),
        );
        registry.register("repairs", "Attempts to put deviations right", self.repairs.clone());
    }
}

// === impl MapMetrics ===

impl MapMetrics {
    /// The entries in use of a map.
    pub fn entries(&self, map: &'static str) -> Gauge {
        self.entries.get_or_create_owned(&MapLabels { map })
    }

    /// The capacity of a map, in entries.
    pub fn capacity(&self, map: &'static str) -> Gauge {
        self.capacity.get_or_create_owned(&MapLabels { map })
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "map_entries",
            "Entries in use of a pinned eBPF map; not counted for STACK_FLOWS, an LRU map",
            self.entries.clone(),
        );
        registry.register("map_capacity", "Capacity of a pinned eBPF map, in entries", self.capacity.clone());
    }
}

// === impl EventMetrics ===

impl EventMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("sent", "Events about pods that the API server took", self.sent.clone());
        registry.register(
            "failed",
            "Events about pods that the API server did not take",
            self.failed.clone(),
        );
        registry.register("lost", "Events about pods that were not sent: too many", self.lost.clone());
    }
}

// === impl ReconcileMetrics ===

impl ReconcileMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("queued", "Pods whose attachments are to be looked at", self.queued.clone());
        registry.register("rounds", "Times that all attachments were to be looked at", self.rounds.clone());
        registry.register("failures", "Looks and removals that failed", self.failures.clone());
        registry.register(
            "given_up",
            "Pods left alone after too many failures, until they change",
            self.given_up.clone(),
        );
        registry.register(
            "dangling",
            "Attachments found dangling, and not removed yet",
            self.dangling.clone(),
        );
        registry.register("removed", "Attachments removed because they were dangling", self.removed.clone());
    }
}

// === impl StoreMetrics ===

impl StoreMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "rebuilds",
            "Times that the registry's store was lost or damaged",
            self.rebuilds.clone(),
        );
        registry.register(
            "rebuilt_attachments",
            "Attachments made anew from what the kernel has",
            self.rebuilt_attachments.clone(),
        );
        registry.register(
            "unknown_interfaces",
            "Interfaces left as they are: their attachments could not be made anew",
            self.unknown_interfaces.clone(),
        );
    }
}

// === impl WatchMetrics ===

impl WatchMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("events", "Events applied, bookmarks among them", self.events.clone());
        registry.register("undecodable", "Objects and lines that were passed over", self.undecodable.clone());
        registry.register("failures", "Requests and streams that failed", self.failures.clone());
        registry.register("lists", "Times that all objects were listed", self.lists.clone());
        registry.register("resumes", "Watches opened at a known position", self.resumes.clone());
        registry.register_with_unit(
            "received",
            "Received from the API server",
            Unit::Bytes,
            self.bytes.clone(),
        );
        registry.register("objects", "Objects known", self.objects.clone());
        registry.register_with_unit(
            "buffered",
            "Received of an event that is not whole yet",
            Unit::Bytes,
            self.buffered.clone(),
        );
        registry.register("unsaved", "Changes that are not durable yet", self.unsaved.clone());
    }
}
