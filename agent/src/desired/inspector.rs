//! Reads and compares, twice: inventories are not atomic, and calls change attachments at any time.

use std::{collections::HashSet, sync::Arc};

use super::{
    deviation::{Deviation, Kind},
    foreign::{Foreign, foreign, on_links, strict_conntrack},
    inventory::Inventory,
    orphans::shared_addresses,
    verify::verify_pod_end,
};
use crate::{
    chain::chain,
    dataplane::Dataplane,
    masquerade::Masquerade,
    nodes::Keeper,
    plug::{
        host_inventory::HostInventory,
        netlink::{NetlinkError, Socket},
        nft::firewall,
        range_route::Skipped,
    },
    policy::Enforcer,
    ports::HostPorts,
    registry::{Attachment, Key, Registry, State},
};

/// Finds the deviations of a node. Changes nothing; may block.
#[derive(Clone)]
pub struct Inspector {
    pub registry: Arc<Registry>,
    pub dataplane: Arc<Dataplane>,
    pub masquerade: Arc<Masquerade>,
    pub nodes: Arc<Keeper>,
    pub enforcer: Arc<Enforcer>,
    pub ports: Arc<HostPorts>,
}

/// The result of one inventory of everything.
pub struct Inspection {
    pub attachments: Vec<Attachment>,
    /// Seen once: those of no attachment need [`Inspector::confirm_node`], others a look under the lock.
    pub deviations: Vec<Deviation>,
    pub actual: Inventory,
}

/// The result of [`Inspector::verify`].
#[derive(Debug, Default)]
pub struct Findings {
    pub deviations: Vec<Deviation>,
    pub foreign: Vec<Foreign>,
    /// The compared attachments.
    pub attachments: Vec<Attachment>,
    /// How many attachments were skipped because a call works on them.
    pub in_work: usize,
}

// === impl Inspector ===

impl Inspector {
    /// Compares everything, pods' ends included. A reported deviation was found twice, the second time while
    /// no call worked on its subject.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn verify(&self) -> Result<Findings, NetlinkError> {
        let mut host = Socket::open()?;
        let Inspection { attachments, deviations, actual } = self.all(&mut host)?;
        let mut findings = Findings::default();
        let mut keys: HashSet<Key> = deviations.iter().filter_map(|it| it.of.attachment().cloned()).collect();
        let deviates = |it: &&Attachment| !self.pod_end(it).is_empty();
        keys.extend(attachments.iter().filter(deviates).map(|it| it.key.clone()));
        for key in keys {
            let Some(attachment) = self.registry.get(&key) else { continue };
            let Some(_guard) = self.registry.try_lock(&attachment.runtime_key()) else {
                findings.in_work += 1;
                continue;
            };
            let Some((attachment, found)) = self.one(&mut host, &key)? else { continue };
            // The two ends of a pair disappear together.
            if !found.iter().any(|it| it.kind == Kind::LinkGone) {
                findings.deviations.extend(self.pod_end(&attachment));
            }
            findings.deviations.extend(found);
        }
        findings.deviations.extend(self.confirm_node(&mut host, deviations)?.0);
        for it in attachments.iter().filter(|it| it.state == State::Attached) {
            let device = it.host.device();
            let tcx = device.map(|device| self.dataplane.tcx(device.ifindex)).unwrap_or_default();
            findings.foreign.extend(foreign(it, &actual, &tcx));
        }
        let links: Vec<_> = self.nodes.decided().links().into_iter().collect();
        let states = HostInventory::links(&mut host)?.links;
        findings.foreign.extend(on_links(&links, &states, &self.nodes.ahead(&mut host)?));
        let chains = firewall::forward_drops().into_iter().map(|it| it.to_string());
        let skipped = actual.skipped_ranges.iter().map(|Skipped { range, why }| {
            format!("the range {range} has no unreachable route, because {why}: see: ip route show {range}")
        });
        let strict = strict_conntrack(self.nodes.decided().has_fast());
        let of_node = chains.into_iter().chain(skipped).chain(strict);
        findings.foreign.extend(of_node.map(|what| Foreign { of: None, link: None, what }));
        findings.attachments = attachments;
        Ok(findings)
    }

    /// A namespace that cannot be read is no deviation: the agent may not see its path.
    fn pod_end(&self, it: &Attachment) -> Vec<Deviation> {
        verify_pod_end(it, self.dataplane.program_ids()).unwrap_or_else(|error| {
            tracing::warn!(key = %it.key, error = chain(&error), "cannot compare the pod's end");
            Vec::new()
        })
    }

    /// Compares everything once.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn all(&self, host: &mut Socket) -> Result<Inspection, NetlinkError> {
        let attachments = self.registry.list();
        let ranges = self.registry.ranges().borrow().nets().to_vec();
        let node = (self.registry.families(), ranges.as_slice());
        let mut actual = Inventory::all(host, &self.dataplane, &attachments, node, &self.masquerade)?;
        actual.node_routes = self.nodes.differences();
        actual.policy_rows = self.enforcer.differences();
        actual.host_ports = self.ports.difference();
        let deviations = actual.deviations(&attachments, &self.registry.list());
        Ok(Inspection { attachments, deviations, actual })
    }

    /// Compares one attachment; `None` unless it is Attached. The caller holds the key's lock.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn one(
        &self,
        host: &mut Socket,
        key: &Key,
    ) -> Result<Option<(Attachment, Vec<Deviation>)>, NetlinkError> {
        let attached = self.registry.get(key).filter(|it| it.state == State::Attached);
        let Some(it) = attached.filter(|it| it.host.device().is_some()) else { return Ok(None) };
        let mut found = Inventory::one(host, &self.dataplane, &it)?.deviations_of(&it);
        let has_its = |other: &Attachment| {
            it.vif.addresses.iter().any(|its| other.vif.addresses.iter().any(|it| it == its))
        };
        found.extend(shared_addresses(&it, &self.registry.find(has_its)));
        Ok(Some((it, found)))
    }

    /// Keeps the deviations of no attachment that a second inventory shows again, and returns that inventory.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn confirm_node(
        &self,
        host: &mut Socket,
        mut found: Vec<Deviation>,
    ) -> Result<(Vec<Deviation>, Inventory), NetlinkError> {
        found.retain(|it| it.of.attachment().is_none());
        if found.is_empty() {
            return Ok((found, Inventory::default()));
        }
        let again = self.all(host)?;
        Ok((confirmed(found, &again.deviations), again.actual))
    }
}

/// The deviations of no attachment that are in both inventories.
fn confirmed(mut found: Vec<Deviation>, again: &[Deviation]) -> Vec<Deviation> {
    found.retain(|it| it.of.attachment().is_none() && again.contains(it));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::Subject;

    #[test]
    fn only_what_two_inventories_show_of_no_attachment_is_confirmed() {
        let deviation =
            |of: &Subject, kind, what: &str| Deviation { of: of.clone(), kind, what: what.to_owned() };
        let key = || Key::try_from("net/a/eth0".to_owned()).unwrap();
        let (stray, node) = (Subject::Interface(7, key()), Subject::Setting("ipv4/ip_forward"));
        let attachment = Subject::Attachment(key());
        let stays = deviation(&stray, Kind::StrayLink, "fr7");
        let passes = deviation(&node, Kind::NodeForwarding, "net.ipv4.ip_forward");
        let of_attachment = deviation(&attachment, Kind::LinkDown, "fr8");
        let first = || vec![stays.clone(), passes.clone(), of_attachment.clone()];
        let new = deviation(&Subject::Interface(9, key()), Kind::StrayLink, "fr9");
        let again = [new, stays.clone(), of_attachment.clone()];
        assert_eq!(confirmed(first(), &again), std::slice::from_ref(&stays));
        let other = deviation(&Subject::Interface(8, key()), Kind::StrayLink, "fr7");
        assert_eq!(confirmed(first(), &[other]), []);
    }
}
