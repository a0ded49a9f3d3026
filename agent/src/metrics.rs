//! Prometheus metrics.

mod attachments;
mod cni;
mod health;
mod links;
mod nodes;
mod pods;
mod policy;
mod process;
mod programs;
mod source;
mod values;

use std::sync::Arc;

use agent_common::event::Event;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::{Registry, Unit},
};

pub use attachments::AttachmentMetrics;
pub use cni::CniMetrics;
pub use health::HealthMetrics;
pub use links::{LinkCounters, LinkMetrics};
pub use nodes::NodeMetrics;
pub use pods::{PodCounters, PodLabels, PodMetrics};
pub use policy::PolicyMetrics;
pub use programs::{ProgramInfo, ProgramMetrics};
pub use values::{Time, count, now, seconds};

use crate::ipam::{Family as AddressFamily, Usage};

/// All metrics of the agent. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    pub watch: WatchMetrics,
    pub events: EventMetrics,
    pub monitor: MonitorMetrics,
    pub reconcile: ReconcileMetrics,
    pub registry_store: StoreMetrics,
    pub cni: CniMetrics,
    pub trace: TraceMetrics,
    pub heal: HealMetrics,
    pub maps: MapMetrics,
    pub install: InstallMetrics,
    pub ipam: IpamMetrics,
    pub pods: PodMetrics,
    pub links: LinkMetrics,
    pub programs: ProgramMetrics,
    pub nodes: NodeMetrics,
    pub policy: PolicyMetrics,
    pub health: HealthMetrics,
    pub attachments: AttachmentMetrics,
}

/// The addresses of the agent's own IPAM.
#[derive(Debug, Clone, Default)]
pub struct IpamMetrics {
    addresses: Family<AddressLabels, Gauge>,
    /// Attachments with an address outside of the node's ranges.
    pub outside: Gauge,
}

/// Metrics of the installation of plugin and configuration.
#[derive(Debug, Clone, Default)]
pub struct InstallMetrics {
    /// Files that were installed again.
    pub repairs: Counter,
    /// 1 if the runtime uses another plugin's configuration.
    pub overridden: Gauge,
}

/// Metrics of the trace exporter.
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

/// Metrics of self-healing.
#[derive(Debug, Clone, Default)]
pub struct HealMetrics {
    passes: Family<PassLabels, Counter>,
    deviations: Family<KindLabels, Counter>,
    repairs: Family<RepairLabels, Counter>,
}

/// Metrics of reconciliation.
#[derive(Debug, Clone, Default)]
pub struct ReconcileMetrics {
    /// Pods in the work queue or with a worker.
    pub queued: Gauge,
    pub rounds: Counter,
    pub failures: Counter,
    pub given_up: Counter,
    /// Orphaned attachments that are not removed yet.
    pub dangling: Gauge,
    pub removed: Counter,
}

/// Metrics of rebuilding the registry after its store was lost or corrupted.
#[derive(Debug, Clone, Default)]
pub struct StoreMetrics {
    pub rebuilds: Counter,
    pub rebuilt_attachments: Counter,
    /// Interfaces whose attachments could not be rebuilt.
    pub unknown_interfaces: Gauge,
    /// Objects and files that the start skipped after an error.
    pub start_failures: Counter,
}

/// Metrics of the records of dropped packets and flows.
#[derive(Debug, Clone, Default)]
pub struct MonitorMetrics {
    records: Family<KindLabels, Counter>,
    suppressed: Counter,
    lost: Counter,
    /// Records of an unknown kind or size.
    pub undecodable: Counter,
}

/// Metrics of Kubernetes Events.
#[derive(Debug, Clone, Default)]
pub struct EventMetrics {
    pub sent: Counter,
    pub failed: Counter,
    /// Dropped by the full queue or the rate limit.
    pub lost: Counter,
}

/// Metrics of the watches, one time series for each source.
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
    pub current: Family<SourceLabels, Time>,
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MapLabels {
    map: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddressLabels {
    family: &'static str,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PassLabels {
    over: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RepairLabels {
    kind: &'static str,
    outcome: &'static str,
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        let mut root = Registry::default();
        // Under the names that every exporter of a process uses.
        root.register_collector(Box::new(process::Process::default()));
        let registry = root.sub_registry_with_prefix("ferrule");
        registry.register(
            "build",
            "The agent's version",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        let (watch, events) = (WatchMetrics::default(), EventMetrics::default());
        let (reconcile, monitor) = (ReconcileMetrics::default(), MonitorMetrics::default());
        let registry_store = StoreMetrics::default();
        let (cni, trace) = (CniMetrics::default(), TraceMetrics::default());
        let install = InstallMetrics::default();
        let (heal, maps, ipam) = (HealMetrics::default(), MapMetrics::default(), IpamMetrics::default());
        watch.register(registry.sub_registry_with_prefix("watch"));
        events.register(registry.sub_registry_with_prefix("pod_events"));
        monitor.register(registry);
        reconcile.register(registry.sub_registry_with_prefix("reconcile"));
        registry_store.register(registry.sub_registry_with_prefix("registry"));
        cni.register(registry.sub_registry_with_prefix("cni"));
        trace.register(registry.sub_registry_with_prefix("trace_spans"));
        heal.register(registry);
        maps.register(registry);
        install.register(registry.sub_registry_with_prefix("install"));
        ipam.register(registry.sub_registry_with_prefix("ipam"));
        let nodes = NodeMetrics::default();
        nodes.register(registry.sub_registry_with_prefix("node"));
        let policy = PolicyMetrics::default();
        policy.register(registry.sub_registry_with_prefix("policy"));
        let (pods, links) = (PodMetrics::default(), LinkMetrics::default());
        let (health, attachments) = (HealthMetrics::default(), AttachmentMetrics::default());
        registry.register_collector(Box::new(pods.clone()));
        let programs = ProgramMetrics::default();
        registry.register_collector(Box::new(links.clone()));
        registry.register_collector(Box::new(programs.clone()));
        registry.register_collector(Box::new(health.clone()));
        registry.register_collector(Box::new(attachments.clone()));
        Self {
            registry: Arc::new(root),
            watch,
            events,
            monitor,
            reconcile,
            registry_store,
            cni,
            trace,
            heal,
            maps,
            install,
            ipam,
            pods,
            links,
            programs,
            nodes,
            policy,
            health,
            attachments,
        }
    }
}

impl Metrics {
    /// Encodes all metrics in the OpenMetrics text format.
    ///
    /// # Errors
    /// If writing to the string fails.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

// === impl TraceMetrics ===

impl TraceMetrics {
    /// Counts spans that are not exported.
    pub fn drop_spans(&self, reason: &'static str, spans: usize) {
        if spans > 0 {
            self.dropped.get_or_create(&DropLabels { reason }).inc_by(spans as u64);
        }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("exported", "Spans that the collector accepted", self.exported.clone());
        registry.register(
            "dropped",
            "Spans dropped: queue full, refused or not accepted in time",
            self.dropped.clone(),
        );
    }
}

// === impl HealMetrics ===

impl HealMetrics {
    /// Counts a new deviation.
    pub fn deviation(&self, kind: &'static str) {
        self.deviations.get_or_create(&KindLabels { kind }).inc();
    }

    /// Counts a comparison: of `everything`, or of `attachments` that a notification named.
    pub fn pass(&self, over: &'static str) {
        self.passes.get_or_create(&PassLabels { over }).inc();
    }

    /// Counts an attempt to repair a deviation.
    pub fn repair(&self, kind: &'static str, outcome: &'static str) {
        self.repairs.get_or_create(&RepairLabels { kind, outcome }).inc();
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "deviations",
            "Deviations of kernel and map state found, by kind",
            self.deviations.clone(),
        );
        registry.register(
            "comparisons",
            "Comparisons of kernel and maps with what they should be, of everything or of some attachments",
            self.passes.clone(),
        );
        registry.register(
            "repairs",
            "Attempts to repair deviations, by kind and outcome",
            self.repairs.clone(),
        );
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
            "Entries in use of a pinned eBPF map; not counted for STACK_FLOWS, which the programs fill",
            self.entries.clone(),
        );
        registry.register("map_capacity", "Capacity of a pinned eBPF map, in entries", self.capacity.clone());
    }
}

// === impl InstallMetrics ===

impl InstallMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("repairs", "Installed files that were removed or changed", self.repairs.clone());
        registry.register(
            "overridden",
            "1 if the runtime uses another plugin's configuration",
            self.overridden.clone(),
        );
    }
}

// === impl IpamMetrics ===

impl IpamMetrics {
    /// Replaces the numbers of all families; one without a range has no series.
    pub fn set(&self, usage: &[Usage]) {
        for family in [AddressFamily::Ipv4, AddressFamily::Ipv6] {
            let of_family = usage.iter().find(|it| it.family == family);
            let numbers = of_family.map(|it| {
                let free = i64::try_from(it.free).unwrap_or(i64::MAX);
                [free, count(it.used), count(it.cooling_down)]
            });
            for (index, state) in ["free", "used", "cooldown"].into_iter().enumerate() {
                let labels = AddressLabels { family: family.as_str(), state };
                match numbers.and_then(|numbers| numbers.get(index).copied()) {
                    Some(number) => drop(self.addresses.get_or_create(&labels).set(number)),
                    None => drop(self.addresses.remove(&labels)),
                }
            }
        }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "addresses",
            "Addresses of the node's ranges: free, used by pods, and in cooldown after a release",
            self.addresses.clone(),
        );
        registry.register(
            "outside",
            "Attachments with an address outside of the node's ranges",
            self.outside.clone(),
        );
    }
}

// === impl MonitorMetrics ===

impl MonitorMetrics {
    /// Counts a record, and those that the programs could not write before.
    pub fn record(&self, event: &Event) {
        let (kind, suppressed, lost) = match event {
            Event::Drop(drop) => ("drop", drop.suppressed, drop.lost),
            Event::Flow(flow) => ("flow", flow.suppressed, flow.lost),
        };
        self.records.get_or_create(&KindLabels { kind }).inc();
        self.suppressed.inc_by(suppressed.into());
        self.lost.inc_by(lost.into());
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("events", "Records of dropped packets and of flows, by kind", self.records.clone());
        registry.register(
            "events_suppressed",
            "Records that the programs did not write, because there were too many",
            self.suppressed.clone(),
        );
        registry.register("events_lost", "Records that found the ring buffer full", self.lost.clone());
        registry.register(
            "events_undecodable",
            "Records of an unknown kind or size",
            self.undecodable.clone(),
        );
    }
}

// === impl EventMetrics ===

impl EventMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("sent", "Events about pods that the API server accepted", self.sent.clone());
        registry.register("failed", "Events about pods that the API server rejected", self.failed.clone());
        registry.register(
            "lost",
            "Events about pods dropped by the queue or the rate limit",
            self.lost.clone(),
        );
    }
}

// === impl ReconcileMetrics ===

impl ReconcileMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("queued", "Pods in the work queue of reconciliation", self.queued.clone());
        registry.register("rounds", "Periodic rounds over all attachments", self.rounds.clone());
        registry.register("failures", "Reconciliations that failed", self.failures.clone());
        registry.register(
            "given_up",
            "Pods whose retry budget is exhausted until they change",
            self.given_up.clone(),
        );
        registry.register("dangling", "Orphaned attachments that are not removed yet", self.dangling.clone());
        registry.register("removed", "Orphaned attachments removed", self.removed.clone());
    }
}

// === impl StoreMetrics ===

impl StoreMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("rebuilds", "Starts with a lost or corrupt registry store", self.rebuilds.clone());
        registry.register(
            "rebuilt_attachments",
            "Attachments rebuilt from kernel state",
            self.rebuilt_attachments.clone(),
        );
        registry.register(
            "unknown_interfaces",
            "Interfaces left alone because their attachments could not be rebuilt",
            self.unknown_interfaces.clone(),
        );
        registry.register(
            "start_failures",
            "Objects and files that the start skipped after an error",
            self.start_failures.clone(),
        );
    }
}

// === impl WatchMetrics ===

impl WatchMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("events", "Watch events applied, bookmarks included", self.events.clone());
        registry.register(
            "undecodable",
            "Objects and lines skipped because decoding failed",
            self.undecodable.clone(),
        );
        registry.register("failures", "Failed requests and streams", self.failures.clone());
        registry.register("lists", "Full lists of all objects", self.lists.clone());
        registry.register("resumes", "Watches resumed at a stored position", self.resumes.clone());
        registry.register_with_unit(
            "received",
            "Bytes received from the API server",
            Unit::Bytes,
            self.bytes.clone(),
        );
        registry.register("objects", "Objects in the inventory", self.objects.clone());
        registry.register_with_unit(
            "buffered",
            "Bytes received of an incomplete event",
            Unit::Bytes,
            self.buffered.clone(),
        );
        registry.register("unsaved", "Changes that are not checkpointed yet", self.unsaved.clone());
        registry.register_with_unit(
            "current_timestamp",
            "When the inventory was last known to be current, by an event, a bookmark or a list; before, the time \
             of the checkpoint or of the start",
            Unit::Seconds,
            self.current.clone(),
        );
    }
}

#[cfg(test)]
mod tests;
