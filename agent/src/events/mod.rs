//! Kubernetes Events about pods, nodes and policies.
//!
//! Events pass through a bounded queue to the [`Recorder`]. Callers never wait for the API server; an Event
//! that finds the queue full is dropped and counted.

mod event;
mod rate_limit;
mod recorder;
mod series;

use tokio::sync::mpsc;

use crate::{
    cluster::{PodRef, Pods},
    metrics::EventMetrics,
};
pub use event::{About, Event};
pub use recorder::Recorder;

/// The sending end of the queue. Clones share the queue.
#[derive(Clone)]
pub struct Events {
    sender: Option<(mpsc::Sender<Event>, Pods)>,
    metrics: EventMetrics,
}

/// The reason of an Event; the same as Kuryr's where Kuryr has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// An ADD waits for the decision about the pod's VIF.
    WaitingForVif,
    TimedOutWaitingForVif,
    TimedOutWaitingForKuryrPort,
    /// The interface is plugged; the ADD waits for its VIF to become active.
    WaitingForActiveVifs,
    TimedOutWaitingForActiveVifs,
    /// The VIF cannot be decoded, or violates an admission rule.
    VifRefused,
    /// The pod's annotation came after its VIF was plugged.
    VifIgnored,
    /// The agent's own IPAM has no address for the pod.
    NoAddress,
    PlugFailed,
    /// A port of the node cannot lead to the pod.
    HostPortRefused,
    /// An annotation that limits the pod's traffic cannot be read, or has no effect.
    BandwidthIgnored,
    /// A range or an address of a Node object is not routed.
    NodeRangeRefused,
    /// A part of a policy is not understood, and denies.
    PolicyNotUnderstood,
    /// The rows of a policy do not fit into the maps.
    PolicyRefused,
}

/// More than all pods of a node cause at once.
const QUEUE_CAPACITY: usize = 1024;

// === impl Events ===

impl Events {
    /// For an agent without an API server: drops all Events.
    pub fn disabled(metrics: EventMetrics) -> Self {
        Self { sender: None, metrics }
    }

    /// A queue, with its receiving end. `pods` provides the UIDs of static pods.
    pub fn channel(metrics: EventMetrics, pods: Pods) -> (Self, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        (Self { sender: Some((sender, pods)), metrics }, receiver)
    }

    /// Queues an Event. Containers outside Kubernetes get none.
    pub fn record(&self, pod: &PodRef, reason: Reason, note: impl Into<String>) {
        let Some((sender, pods)) = self.sender.as_ref().filter(|_| pod.is_of_kubernetes()) else { return };
        let event = Event {
            about: About::Pod,
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            // The kubelet has another UID for a static pod than the API.
            uid: pods.api_uid(pod).unwrap_or_else(|| pod.uid.clone()),
            reason: reason.as_str(),
            is_warning: reason.is_warning(),
            note: note.into(),
        };
        self.queue(sender, event);
    }

    /// Queues an Event about a node.
    pub fn record_node(&self, name: &str, uid: &str, reason: Reason, note: impl Into<String>) {
        self.record_object(About::Node, ("", name, uid), reason, note);
    }

    /// Queues an Event about an object of a type, by its namespace (empty for one of the cluster), name and
    /// UID.
    pub fn record_object(
        &self,
        about: About,
        (namespace, name, uid): (&str, &str, &str),
        reason: Reason,
        note: impl Into<String>,
    ) {
        let Some((sender, _)) = &self.sender else { return };
        let event = Event {
            about,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            reason: reason.as_str(),
            is_warning: reason.is_warning(),
            note: note.into(),
        };
        self.queue(sender, event);
    }

    fn queue(&self, sender: &mpsc::Sender<Event>, event: Event) {
        if sender.try_send(event).is_err() {
            self.metrics.lost.inc();
        }
    }
}

// === impl Reason ===

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WaitingForVif => "CNIWaitingForVIF",
            Self::TimedOutWaitingForVif => "CNITimedOutWaitingForVIF",
            Self::TimedOutWaitingForKuryrPort => "CNITimeoutKuryrPortRegistry",
            Self::WaitingForActiveVifs => "CNIWaitingForActiveVIFs",
            Self::TimedOutWaitingForActiveVifs => "CNITimedOutWaitingForActiveVIFs",
            Self::VifRefused => "CNIVIFRefused",
            Self::VifIgnored => "CNIVIFIgnored",
            Self::NoAddress => "CNINoAddress",
            Self::PlugFailed => "CNIPlugFailed",
            Self::HostPortRefused => "CNIHostPortRefused",
            Self::BandwidthIgnored => "CNIBandwidthIgnored",
            Self::NodeRangeRefused => "NodeRangeRefused",
            Self::PolicyNotUnderstood => "PolicyNotUnderstood",
            Self::PolicyRefused => "PolicyRefused",
        }
    }

    pub fn is_warning(self) -> bool {
        !matches!(self, Self::WaitingForVif | Self::WaitingForActiveVifs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Change;

    fn pod(namespace: &str, name: &str, uid: &str) -> PodRef {
        PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.to_owned() }
    }

    #[test]
    fn an_event_about_a_static_pod_has_the_uid_of_the_api() {
        let pods = Pods::default();
        let mirror = r#"{"metadata":{"namespace":"n","name":"etcd","uid":"u-api",
            "annotations":{"kubernetes.io/config.mirror":"hash"}}}"#;
        pods.apply_pod(Change::applied(serde_json::from_str(mirror).unwrap()));
        let (events, mut notes) = Events::channel(EventMetrics::default(), pods);
        events.record(&pod("n", "etcd", "hash"), Reason::PlugFailed, "no such interface");
        events.record(&pod("n", "web", "u1"), Reason::WaitingForVif, "waiting");
        let (first, second) = (notes.try_recv().unwrap(), notes.try_recv().unwrap());
        assert_eq!((first.uid.as_str(), first.reason, first.is_warning), ("u-api", "CNIPlugFailed", true));
        assert_eq!(
            (second.uid.as_str(), second.is_warning),
            ("u1", false),
            "a pod that the watch has not delivered yet"
        );
    }

    #[test]
    fn an_event_that_finds_the_queue_full_is_dropped_and_counted() {
        let metrics = EventMetrics::default();
        let (events, _notes) = Events::channel(metrics.clone(), Pods::default());
        for _ in 0..1024 + 3 {
            events.record(&pod("n", "web", "u1"), Reason::PlugFailed, "");
        }
        events.record(&pod("", "container-of-podman", ""), Reason::PlugFailed, "not of Kubernetes");
        assert_eq!(metrics.lost.get(), 3);
    }

    #[test]
    fn waiting_is_no_warning_and_every_reason_has_the_name_that_kuryr_or_the_documents_give_it() {
        for (reason, name, is_warning) in [
            (Reason::WaitingForVif, "CNIWaitingForVIF", false),
            (Reason::TimedOutWaitingForVif, "CNITimedOutWaitingForVIF", true),
            (Reason::TimedOutWaitingForKuryrPort, "CNITimeoutKuryrPortRegistry", true),
            (Reason::WaitingForActiveVifs, "CNIWaitingForActiveVIFs", false),
            (Reason::TimedOutWaitingForActiveVifs, "CNITimedOutWaitingForActiveVIFs", true),
            (Reason::VifRefused, "CNIVIFRefused", true),
            (Reason::PlugFailed, "CNIPlugFailed", true),
            (Reason::HostPortRefused, "CNIHostPortRefused", true),
            (Reason::BandwidthIgnored, "CNIBandwidthIgnored", true),
            (Reason::NodeRangeRefused, "NodeRangeRefused", true),
            (Reason::PolicyRefused, "PolicyRefused", true),
        ] {
            assert_eq!((reason.as_str(), reason.is_warning()), (name, is_warning));
        }
    }

    #[test]
    fn an_agent_without_an_api_server_loses_no_events() {
        let metrics = EventMetrics::default();
        Events::disabled(metrics.clone()).record(&pod("n", "web", "u1"), Reason::PlugFailed, "");
        assert_eq!(metrics.lost.get(), 0);
    }
}
