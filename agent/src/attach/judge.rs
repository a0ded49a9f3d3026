//! Interfaces, as policies see them.

use std::time::{Duration, Instant};

use agent_common::VifEntry;
use ferrule_vif::Addresses;

use super::engine::Engine;
use crate::{cluster::PodRef, dataplane::shown_text, policy::Interface, registry::Attachment};

/// How long an ADD waits, with its key locked, for the rows that judge the pod. All that they follow from is
/// known by then.
pub(super) const ADMISSION: Duration = Duration::from_secs(5);

/// An attachment, as policies see it.
pub(super) fn interface(ifindex: u32, attachment: &Attachment) -> Interface {
    let Attachment { pod, vif, .. } = attachment;
    Interface { ifindex, pod: pod.clone(), addresses: vif.addresses.iter().collect() }
}

// === impl Engine ===

impl Engine {
    /// Lets policies judge an interface that exists already.
    pub fn judge(&self, ifindex: u32, attachment: &Attachment) {
        self.enforcer.add(interface(ifindex, attachment));
    }

    /// Lets policies judge an interface without a known attachment, as far as the maps tell whose it is.
    pub fn judge_unknown(&self, ifindex: u32, addresses: Addresses) {
        let recorded = self.dataplane.recorded(ifindex).ok().flatten();
        let pod = recorded.map(|it| pod_of(&it.vif)).unwrap_or_default();
        self.enforcer.add(Interface { ifindex, pod, addresses: addresses.iter().collect() });
    }

    /// Lets all interfaces pass everything, as no policy judges any. Blocks for `ADMISSION` at most.
    pub fn let_all_pass(&self) {
        self.enforcer.replace(Vec::new());
        if let Err(waiting) = self.enforcer.settle(Instant::now() + ADMISSION) {
            tracing::error!(
                waiting,
                "interfaces without rows of policies pass nothing until these are written"
            );
        }
    }
}

/// The pod that a row of `VIFS` names.
fn pod_of(row: &VifEntry) -> PodRef {
    let pod = shown_text(&row.pod);
    let (namespace, name) = pod.split_once('/').unwrap_or_default();
    PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: shown_text(&row.pod_uid) }
}
