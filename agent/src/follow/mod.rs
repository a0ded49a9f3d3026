//! What the API server tells goes where it belongs: pods and KuryrPorts to the registry, the node's ranges to the IPAM.

mod ranges;

use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    attach::Engine,
    config::Kubernetes,
    decide::VifSource,
    health::Reporter,
    reconcile::Queue,
    registry::Pods,
    watch::{Change, KuryrPort, Pod, Scope, Sink, Watches},
};
pub use ranges::use_ranges;

/// The node's pods, and who is told besides the registry.
struct PodSink {
    engine: Arc<Engine>,
    queue: Queue,
    known: Option<Known>,
}

/// Kuryr's decisions for them.
struct PortSink {
    engine: Arc<Engine>,
    known: Option<Known>,
}

/// Name of the watch of KuryrPorts.
const PORTS: &str = "kuryrports";
/// Kuryr labels its ports with the node that they are for.
const KURYR_LABEL: &str = "kuryr.openstack.org/nodeName";

/// Says that ADD can be served when all have been told that decide about it.
#[derive(Clone)]
struct Known(Arc<Mutex<Awaited>>);

struct Awaited {
    sources: Vec<&'static str>,
    health: Reporter,
}

/// Follows all that this node has to know. `known` says when its pods are, if ADD needs them; `ranges` when there are
/// ranges, if they are not configured: then what is returned has to run.
pub fn follow(
    watches: &Watches,
    engine: &Arc<Engine>,
    cluster: &Kubernetes,
    queue: Queue,
    known: Option<Reporter>,
    ranges: Option<Reporter>,
) -> Option<impl Future<Output = ()> + Send + 'static> {
    let name = &cluster.node_name;
    let of_node = |what: &str| ("fieldSelector", format!("{what}={name}"));
    let is_kuryr = engine.decider.source == VifSource::Kuryr;
    let sources = if is_kuryr { vec![Pods::WATCH, PORTS] } else { vec![Pods::WATCH] };
    let known = known.map(|health| Known(Arc::new(Mutex::new(Awaited { sources, health }))));

    let pods = Scope { name: Pods::WATCH, path: "/api/v1/pods", selector: of_node("spec.nodeName") };
    watches.add(pods, PodSink { engine: Arc::clone(engine), queue, known: known.clone() });
    if is_kuryr {
        let selector = ("labelSelector", format!("{KURYR_LABEL}={name}"));
        let ports = Scope { name: PORTS, path: "/apis/openstack.org/v1/kuryrports", selector };
        watches.add(ports, PortSink { engine: Arc::clone(engine), known });
    }
    ranges.map(|health| {
        let (sink, using) = ranges::ranges(Arc::clone(engine), name, health);
        let nodes = Scope { name: "node", path: "/api/v1/nodes", selector: of_node("metadata.name") };
        watches.add(nodes, sink);
        using
    })
}

impl Sink<Pod> for PodSink {
    fn apply(&self, change: Change<Pod>) {
        if let (Change::Synced, Some(known)) = (&change, &self.known) {
            known.told(Pods::WATCH);
        }
        if let Some(key) = self.engine.registry.pods.pod(change) {
            self.queue.add(key);
        }
    }
}

impl Sink<KuryrPort> for PortSink {
    fn apply(&self, change: Change<KuryrPort>) {
        if let (Change::Synced, Some(known)) = (&change, &self.known) {
            known.told(PORTS);
        }
        self.engine.registry.pods.port(change);
    }
}

// === impl Known ===

impl Known {
    fn told(&self, source: &'static str) {
        let mut awaited = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.sources.retain(|other| *other != source);
        if awaited.sources.is_empty() {
            awaited.health.healthy("all that decides about the node's pods is known");
        }
    }
}
