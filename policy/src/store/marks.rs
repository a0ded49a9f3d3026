//! What is known of an address besides its party: Services, and this node.
//!
//! Kept apart from the claims of parties, of which there are as many as pods.

use std::{collections::BTreeSet, net::IpAddr};

use super::{Store, Uid, Work};
use crate::{
    Addr,
    address::parse_address,
    journal::{Map, Set, journaled},
    object,
};

/// The addresses of Services, and those of this node.
#[derive(Default)]
pub(crate) struct Marks {
    services: Map<Uid, Box<[Addr]>>,
    of_services: Set<(Addr, Uid)>,
    /// Of these, the addresses of the cluster.
    of_cluster: Set<(Addr, Uid)>,
    of_node: Set<Addr>,
}

journaled!(Marks { services, of_services, of_cluster, of_node });

/// Addresses of a Service that count; the API allows objects of a megabyte.
const MAX_ADDRESSES: usize = 64;

fn has(marked: &Set<(Addr, Uid)>, addr: Addr) -> bool {
    marked.range((addr, Uid::MIN)..).next().is_some_and(|(found, _)| *found == addr)
}

// === impl Marks ===

impl Marks {
    pub(crate) fn is_service(&self, addr: Addr) -> bool {
        has(&self.of_services, addr)
    }

    /// An address of the cluster is a Service's, also where the host has it on an interface (kube-proxy with
    /// IPVS). Other addresses of Services can be the node's: load balancers of some clusters use these.
    pub(crate) fn is_own_node(&self, addr: Addr) -> bool {
        self.of_node.contains(&addr) && !has(&self.of_cluster, addr)
    }

    /// All addresses. May repeat some.
    pub(crate) fn all(&self) -> impl Iterator<Item = Addr> {
        self.of_services.iter().map(|(addr, _)| *addr).chain(self.of_node.iter().copied())
    }

    /// All addresses from one to another. May repeat some.
    pub(crate) fn between(&self, first: Addr, last: Addr) -> impl Iterator<Item = Addr> {
        let services = self.of_services.range((first, Uid::MIN)..).map(|(addr, _)| *addr);
        let services = services.take_while(move |addr| *addr <= last);
        services.chain(self.of_node.range(first..=last).copied())
    }
}

// === impl Store ===

impl Store {
    pub(super) fn set_service(&mut self, service: &object::Service, work: &mut Work) {
        let addresses = service.addresses().filter_map(parse_address).map(Addr::from);
        let addresses: BTreeSet<_> = addresses.take(MAX_ADDRESSES).collect();
        let of_cluster = service.cluster_addresses().filter_map(parse_address).map(Addr::from);
        let of_cluster = of_cluster.filter(|addr| addresses.contains(addr)).collect();
        self.mark_service(&Uid::new(&service.metadata.uid), addresses, &of_cluster, work);
    }

    pub(super) fn remove_service(&mut self, uid: &str, work: &mut Work) {
        self.mark_service(&Uid::new(uid), BTreeSet::new(), &BTreeSet::new(), work);
    }

    pub(super) fn set_own_addresses(&mut self, addresses: &[IpAddr], work: &mut Work) {
        let new: BTreeSet<_> = addresses.iter().map(|it| Addr::from(*it)).collect();
        let old: BTreeSet<_> = self.marks.of_node.iter().copied().collect();
        for addr in old.difference(&new) {
            self.marks.of_node.remove(addr);
        }
        for addr in new.difference(&old) {
            self.marks.of_node.insert(*addr);
        }
        work.addresses.extend(old.symmetric_difference(&new));
    }

    fn mark_service(&mut self, uid: &Uid, new: BTreeSet<Addr>, of_cluster: &BTreeSet<Addr>, work: &mut Work) {
        let old: BTreeSet<_> = self.marks.services.get(uid).into_iter().flatten().copied().collect();
        for addr in old.union(&new) {
            let key = (*addr, uid.clone());
            let is_changed = if of_cluster.contains(addr) {
                self.marks.of_cluster.insert(key)
            } else {
                self.marks.of_cluster.remove(&key)
            };
            work.addresses.extend(is_changed.then_some(*addr));
        }
        if old == new {
            return;
        }
        for addr in old.difference(&new) {
            self.marks.of_services.remove(&(*addr, uid.clone()));
        }
        for addr in new.difference(&old) {
            self.marks.of_services.insert((*addr, uid.clone()));
        }
        work.addresses.extend(old.symmetric_difference(&new));
        if new.is_empty() {
            self.marks.services.remove(uid);
        } else {
            self.marks.services.insert(uid.clone(), new.into_iter().collect());
        }
    }
}
