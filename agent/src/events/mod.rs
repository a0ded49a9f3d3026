//! What is told about a pod to those who look at the pod: Kubernetes' Events.
//!
//! To tell is to leave a note and go on: nobody waits for the API server, and a note for which there is no room is
//! counted and lost.

mod rate_limit;
mod recorder;
mod series;

use tokio::sync::mpsc;

use crate::{
    cluster::{PodRef, Pods},
    metrics::EventMetrics,
};
pub use recorder::{PodEvent, Recorder};

/// Where notes are left. Cloning it is cheap, and leaves them at the same place.
#[derive(Clone)]
pub struct Events {
    /// With the pods as the API server knows them.
    sender: Option<(mpsc::Sender<PodEvent>, Pods)>,
    metrics: EventMetrics,
}

/// Why there is a note. Where Kuryr had a reason for the same, it is that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// An ADD waits until the pod's VIF is decided.
    WaitingForVif,
    /// It waited in vain.
    TimedOutWaitingForVif,
    /// The same, for a KuryrPort.
    TimedOutWaitingForKuryrPort,
    /// The interface is there, and an ADD waits until its VIF is active.
    WaitingForActiveVifs,
    /// It waited in vain.
    TimedOutWaitingForActiveVifs,
    /// The VIF cannot be used.
    VifRefused,
    /// The interface could not be made.
    PlugFailed,
}

/// As many notes may wait; more than all pods of a node leave at once.
const WAITING: usize = 1024;

// === impl Events ===

impl Events {
    /// For an agent without an API server: nothing is kept.
    pub fn nowhere(metrics: EventMetrics) -> Self {
        Self { sender: None, metrics }
    }

    /// With the end at which the notes arrive.
    pub fn channel(metrics: EventMetrics, pods: Pods) -> (Self, mpsc::Receiver<PodEvent>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self { sender: Some((sender, pods)), metrics }, receiver)
    }

    /// Leaves a note. What is not a pod of Kubernetes has nobody to read it.
    pub fn tell(&self, pod: &PodRef, reason: Reason, note: impl Into<String>) {
        let Some((sender, pods)) = self.sender.as_ref().filter(|_| pod.is_of_kubernetes()) else { return };
        let event = PodEvent {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            // A static pod's is another one at the kubelet.
            uid: pods.api_uid(pod).unwrap_or_else(|| pod.uid.clone()),
            reason: reason.as_str(),
            is_warning: reason.is_warning(),
            note: note.into(),
        };
        if sender.try_send(event).is_err() {
            self.metrics.lost.inc();
        }
    }
}

// === impl Reason ===

impl Reason {
    /// As it stands in the Event.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WaitingForVif => "CNIWaitingForVIF",
            Self::TimedOutWaitingForVif => "CNITimedOutWaitingForVIF",
            Self::TimedOutWaitingForKuryrPort => "CNITimeoutKuryrPortRegistry",
            Self::WaitingForActiveVifs => "CNIWaitingForActiveVIFs",
            Self::TimedOutWaitingForActiveVifs => "CNITimedOutWaitingForActiveVIFs",
            Self::VifRefused => "CNIVIFRefused",
            Self::PlugFailed => "CNIPlugFailed",
        }
    }

    /// Whether something is wrong.
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
    fn a_static_pod_is_told_of_by_its_uid_in_the_api() {
        let pods = Pods::default();
        let mirror = r#"{"metadata":{"namespace":"n","name":"etcd","uid":"u-api",
            "annotations":{"kubernetes.io/config.source":"file"}}}"#;
        pods.apply_pod(Change::Applied(serde_json::from_str(mirror).unwrap()));
        let (events, mut notes) = Events::channel(EventMetrics::default(), pods);
        events.tell(&pod("n", "etcd", "hash-of-the-file"), Reason::PlugFailed, "no such interface");
        events.tell(&pod("n", "web", "u1"), Reason::WaitingForVif, "waiting");
        let (first, second) = (notes.try_recv().unwrap(), notes.try_recv().unwrap());
        assert_eq!((first.uid.as_str(), first.reason, first.is_warning), ("u-api", "CNIPlugFailed", true));
        assert_eq!(
            (second.uid.as_str(), second.is_warning),
            ("u1", false),
            "one that the API server has not told of yet"
        );
    }

    #[test]
    fn a_note_without_room_is_counted_and_nobody_waits() {
        let metrics = EventMetrics::default();
        let (events, _notes) = Events::channel(metrics.clone(), Pods::default());
        for _ in 0..WAITING + 3 {
            events.tell(&pod("n", "web", "u1"), Reason::PlugFailed, "");
        }
        events.tell(&pod("", "container-of-podman", ""), Reason::PlugFailed, "has nobody to read it");
        assert_eq!(metrics.lost.get(), 3);
    }
}
