//! What waits for the thread, and what the thread has answered.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use ferrule_policy::{Change, Endpoint, EndpointId, ObjectKey};

use super::queue::Queue;
use crate::cluster::{PodRef, Pods};

/// An interface of a pod on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// On the host.
    pub ifindex: u32,
    pub pod: PodRef,
    /// Those that are plugged; the pod's status may not list them yet.
    pub addresses: Vec<IpAddr>,
}

/// Shared by the thread and its callers.
#[derive(Default)]
pub(super) struct Inbox {
    /// A complete state that replaces all that is known.
    pub(super) state: Option<Vec<Change>>,
    /// Until when that state waits for UIDs.
    uids_until: Option<Instant>,
    /// What is missing for a state that is known to be needed.
    pub(super) expected: Option<String>,
    /// Changes since then.
    pub(super) changes: Queue,
    /// Other news, which change no rows.
    pub(super) has_news: bool,
    /// The interfaces of this node, whatever the state.
    pub(super) locals: BTreeMap<EndpointId, Local>,
}

/// An interface, and what became of it.
pub(super) struct Local {
    pub(super) interface: Interface,
    /// The pod's UID that the compiler knows.
    uid: String,
    /// The UID is that of the API. A static pod has another one than the kubelet says.
    is_final: bool,
    /// Whether the compiler had a row when it was asked last.
    pub(super) has_row: bool,
    pub(super) answer: Answer,
}

/// Whether an interface is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Waiting,
    /// The row is in the map.
    Admitted,
    /// The rows do not fit.
    Refused(String),
}

/// What the thread takes at a time.
pub(super) struct Taken {
    pub(super) state: Option<Vec<Change>>,
    pub(super) changes: Vec<Change>,
}

/// The node's own pods can be known later than those of all nodes: their checkpoint is held back for half of
/// this at most.
const UIDS: Duration = Duration::from_secs(10);

// === impl Inbox ===

impl Inbox {
    /// Replaces all that is known. What came before is part of the state, or outdated; the interfaces are
    /// added again.
    pub(super) fn replace(&mut self, state: Vec<Change>) {
        self.changes.take();
        (self.state, self.expected) = (Some(state), None);
        self.uids_until = Some(Instant::now() + UIDS);
    }

    /// Adds an interface, or replaces what is known of it.
    pub(super) fn add(&mut self, interface: Interface, pods: &Pods) {
        let uid = pods.api_uid(&interface.pod);
        let is_final = uid.is_some();
        let uid = uid.unwrap_or_else(|| interface.pod.uid.clone());
        let id = EndpointId(interface.ifindex);
        let local = Local { interface, uid, is_final, has_row: false, answer: Answer::Waiting };
        self.changes.push(Change::Endpoint(local.endpoint()));
        self.locals.insert(id, local);
    }

    pub(super) fn remove(&mut self, id: EndpointId) {
        if self.locals.remove(&id).is_some() {
            self.changes.push(Change::EndpointGone { id });
        }
    }

    /// Looks for UIDs that the API has brought meanwhile. Returns whether some are still missing.
    pub(super) fn look_for_uids(&mut self, pods: &Pods) -> bool {
        let mut is_missing = false;
        for local in self.locals.values_mut().filter(|it| !it.is_final) {
            let Some(uid) = pods.api_uid(&local.interface.pod) else {
                is_missing |= !local.has_row;
                continue;
            };
            local.is_final = true;
            if local.uid != uid {
                local.uid = uid;
                self.changes.push(Change::Endpoint(local.endpoint()));
            }
        }
        is_missing
    }

    /// Whether the complete state has to wait for the UIDs of the node's own pods. Without the UID of a
    /// static pod, nothing would be known of the pod, which an earlier agent's rows judge meanwhile.
    pub(super) fn waits_for_uids(&self, pods: &Pods) -> bool {
        let is_in_time = self.uids_until.is_some_and(|until| Instant::now() < until);
        let Some(state) = self.state.as_ref().filter(|_| is_in_time && !pods.is_synced()) else {
            return false;
        };
        let open = self.locals.values().filter(|it| !it.is_final);
        let mut unknown: HashSet<&str> = open.map(|it| it.uid.as_str()).collect();
        let mut has_policies = false;
        for change in state {
            match change {
                Change::Pod(pod) => drop(unknown.remove(pod.metadata.uid.as_str())),
                Change::Policy(_) => has_policies = true,
                _ => {}
            }
        }
        has_policies && !unknown.is_empty()
    }

    pub(super) fn take(&mut self) -> Taken {
        self.has_news = false;
        Taken { state: self.state.take(), changes: self.changes.take() }
    }

    /// All interfaces of this node.
    pub(super) fn endpoints(&self) -> Vec<Change> {
        self.locals.values().map(|it| Change::Endpoint(it.endpoint())).collect()
    }

    /// How many interfaces have no answer.
    pub(super) fn waiting(&self) -> usize {
        self.locals.values().filter(|it| it.answer == Answer::Waiting).count()
    }

    /// Whether the thread does not know yet what judges pods.
    pub(super) fn is_outdated_for_all(&self) -> bool {
        self.state.is_some() || self.expected.is_some()
    }

    /// Whether a change of an interface waits, so that what the thread knows of it is outdated.
    pub(super) fn is_outdated(&self, id: EndpointId) -> bool {
        self.is_outdated_for_all() || self.changes.contains(&ObjectKey::Endpoint(id))
    }
}

// === impl Local ===

impl Local {
    /// Whether nothing more can change the answer or the UID.
    pub(super) fn is_settled(&self) -> bool {
        self.is_final && self.answer == Answer::Admitted
    }

    fn endpoint(&self) -> Endpoint {
        let Interface { ifindex, addresses, .. } = &self.interface;
        Endpoint { id: EndpointId(*ifindex), uid: self.uid.clone(), addresses: addresses.clone() }
    }
}
