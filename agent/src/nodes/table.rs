//! The known Node objects and ranges of Services, and the task that resolves the nodes after changes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ipnet::IpNet;
use tokio::{
    sync::{
        Notify,
        watch::{Receiver, Sender, channel},
    },
    time::{sleep, timeout},
};

use super::{
    Nodes, Refusals,
    resolve::{Resolved, resolve},
};
use crate::{
    cluster::{self, ServiceCidr},
    ipam::parse_cidr,
    watch::{Change, ObjectKey},
};

/// The Node objects of the cluster, by UID.
pub struct Table {
    own: String,
    /// Ranges of Services that no object names.
    services: Vec<IpNet>,
    known: Mutex<Known>,
    changed: Notify,
    has_services: Notify,
    nodes: Sender<Arc<Nodes>>,
}

#[derive(Default)]
struct Known {
    /// The name tells objects apart that have no UID.
    nodes: BTreeMap<(Arc<str>, ObjectKey), Arc<cluster::Node>>,
    /// Ranges of Services, which no node's range may overlap.
    services: BTreeMap<ObjectKey, Arc<ServiceCidr>>,
    is_listed: bool,
    /// A list that lacks this node may be another cluster's: nothing is concluded from it.
    had_own: bool,
}

/// Changes gather for this long: events come in batches.
const SETTLE: Duration = Duration::from_millis(5);
/// How long the first nodes wait for the ranges of Services: a node's range inside of one would be accepted
/// meanwhile. Longer than a silent API server delays those of a checkpoint.
const SERVICES: Duration = Duration::from_secs(6);

// === impl Table ===

impl Table {
    /// `services`: ranges of Services beside those of the API. The receiver gets the nodes each time they
    /// change.
    pub fn new(own: &str, services: Vec<IpNet>) -> (Arc<Self>, Receiver<Arc<Nodes>>) {
        let (nodes, receiver) = channel(Arc::default());
        let (known, changed, has_services) = (Mutex::default(), Notify::new(), Notify::new());
        (Arc::new(Self { own: own.to_owned(), services, known, changed, has_services, nodes }), receiver)
    }

    /// Notes a change of the ranges of Services. Never waits.
    pub fn apply_services(&self, change: Change<ServiceCidr>) {
        let mut known = self.known();
        match change {
            Change::Applied(range) => drop(known.services.insert(range.metadata.key(), range)),
            Change::Gone { key, .. } => drop(known.services.remove(&key)),
            Change::Synced => self.has_services.notify_one(),
        }
        drop(known);
        self.changed.notify_one();
    }

    /// Notes a change. Never waits.
    pub fn apply(&self, change: Change<cluster::Node>) {
        let mut known = self.known();
        match change {
            Change::Applied(node) => {
                known.had_own |= node.name() == self.own;
                known.nodes.insert((Arc::clone(&node.uid), node.key.clone()), node);
            }
            Change::Gone { key, uid } => drop(known.nodes.remove(&(uid.into(), key))),
            Change::Synced => known.is_listed = true,
        }
        drop(known);
        self.changed.notify_one();
    }

    /// Resolves the nodes after each batch of changes, and reports what is refused. Never returns.
    pub async fn run(self: Arc<Self>, mut refusals: Refusals) {
        // An error is the timeout: the nodes are resolved without the API's ranges of Services.
        let _ = timeout(SERVICES, self.has_services.notified()).await;
        loop {
            self.changed.notified().await;
            sleep(SETTLE).await;
            if let Some(resolved) = self.resolved() {
                refusals.report(&resolved);
                self.publish(resolved.nodes);
            } else if self.known().is_listed {
                refusals.await_own(&self.own);
            }
        }
    }

    /// `None` before the nodes are complete.
    fn resolved(&self) -> Option<Resolved> {
        let known = self.known();
        if !known.is_listed || !known.had_own {
            return None;
        }
        let nodes: Vec<_> = known.nodes.values().cloned().collect();
        let of_api = known.services.values().flat_map(|it| &it.spec.cidrs);
        let of_api = of_api.filter_map(|text| parse_cidr(text).ok());
        let services: Vec<_> = self.services.iter().copied().chain(of_api).collect();
        drop(known);
        Some(resolve(&nodes, &self.own, &services))
    }

    fn publish(&self, nodes: Nodes) {
        self.nodes.send_if_modified(|current| {
            let changed = **current != nodes;
            if changed {
                *current = Arc::new(nodes);
            }
            changed
        });
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
