//! What is told about a pod to those who look at the pod: Kubernetes' Events.
//!
//! To tell is to leave a note and go on: nobody waits for the API server, and a note for which there is no room is
//! counted and lost.

use tokio::sync::mpsc;

use crate::{metrics::EventMetrics, registry::Pod};

/// Where notes are left. Cloning it is cheap, and leaves them at the same place.
#[derive(Debug, Clone)]
pub struct Events {
    sender: Option<mpsc::Sender<PodEvent>>,
    metrics: EventMetrics,
}

/// A note about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    pub pod: Pod,
    pub reason: Reason,
    /// One line.
    pub note: String,
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
    pub fn channel(metrics: EventMetrics) -> (Self, mpsc::Receiver<PodEvent>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self { sender: Some(sender), metrics }, receiver)
    }

    /// Leaves a note. What is not a pod of Kubernetes has nobody to read it.
    pub fn tell(&self, pod: &Pod, reason: Reason, note: impl Into<String>) {
        let Some(sender) = self.sender.as_ref().filter(|_| pod.is_of_kubernetes()) else { return };
        let event = PodEvent { pod: pod.clone(), reason, note: note.into() };
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
