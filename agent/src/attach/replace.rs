//! A repeated ADD that replaces the attachment of an earlier one.
//!
//! The runtime's container may live on that attachment, so that an ADD which fails must not cost it: whatever
//! can fail is checked before anything is removed, and the earlier attachment is put back after a failure
//! that only the attempt could show.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{engine::Engine, error::AttachError, phases::Phases, restore::RestoreError};
use crate::{
    chain::chain,
    desired::netns_exists,
    plug::{
        GATEWAY, PlugError,
        netns::Netns,
        preflight::{self, Going, RouteKey},
        reaper,
    },
    registry::{Allocation, Attachment, Key, NewAttachment, RegistryError, State},
};

impl Engine {
    /// Refuses a replacement that would fail, while the attachments `before` are untouched, and returns those
    /// of them to put back should the replacement fail after all. Does nothing for a first ADD.
    ///
    /// # Errors
    /// The error that the plug or the reservation would give.
    pub(super) fn check_replacement(
        &self,
        before: &[Attachment],
        planned: &[NewAttachment],
        netns: &Netns,
        phases: &Phases,
    ) -> Result<Vec<Attachment>, AttachError> {
        if before.is_empty() {
            return Ok(Vec::new());
        }
        let is_live = |it: &Attachment| it.state == State::Attached && netns_exists(it);
        for it in before.iter().filter(|it| it.netns_id != netns.id() && is_live(it)) {
            // Only for its error: an interface with a foreign alias cannot be replaced.
            self.drift(&Netns::open(&it.netns)?, it)?;
        }
        for new in planned {
            self.check_reservation(before, new, phases)?;
        }
        let here = before.iter().filter(|it| it.netns_id == netns.id());
        let going: Vec<_> = here
            .filter_map(|it| Some(Going { ifname: &it.key.ifname, host_ifindex: it.host.ifindex()? }))
            .collect();
        let ifnames: Vec<_> = planned.iter().map(|it| &it.key.ifname).collect();
        let routes: Vec<_> = planned.iter().flat_map(|it| self.routes(&it.allocation)).collect();
        let check = || preflight::check(netns, &ifnames, &routes, &going);
        match check() {
            // Perhaps those of a retired interface, as in a plug.
            Err(PlugError::InterfaceExists(_) | PlugError::DefaultRouteExists) => {
                reaper::reap_now()?;
                check()?;
            }
            checked => checked?,
        }
        if !before.iter().all(is_live) {
            return Ok(Vec::new());
        }
        if let Some(first) = before.first() {
            // Changes nothing, and fails if the store cannot be written.
            self.registry.update(first.clone())?;
        }
        Ok(before.to_vec())
    }

    /// Refuses names and addresses that belong to other attachments.
    fn check_reservation(
        &self,
        before: &[Attachment],
        new: &NewAttachment,
        phases: &Phases,
    ) -> Result<(), AttachError> {
        let is_other = |key: &Key| before.iter().all(|it| it.key != *key);
        if is_other(&new.key) && self.registry.get(&new.key).is_some() {
            return Err(RegistryError::KeyTaken(new.key.ifname.clone()).into());
        }
        let Allocation::Fixed(vif) = &new.allocation else { return Ok(()) };
        for address in vif.addresses.iter() {
            let has = |it: &Attachment| is_other(&it.key) && it.vif.addresses.iter().any(|it| it == address);
            for holder in self.registry.find(has) {
                if !self.detach_stale(&holder.key, &new.pod, phases)? {
                    return Err(RegistryError::InUse { address, by: holder.key }.into());
                }
            }
        }
        Ok(())
    }

    /// The routes that a plug would add to the pod.
    fn routes(&self, allocation: &Allocation) -> Vec<RouteKey> {
        match allocation {
            Allocation::Fixed(vif) => {
                vif.all_routes(GATEWAY).iter().map(|it| RouteKey::new(it.dst, it.priority)).collect()
            }
            Allocation::FromIpam { .. } => {
                let ranges = self.registry.ranges().borrow().clone();
                let default = |range: &IpNet| match range {
                    IpNet::V4(_) => IpNet::V4(Ipv4Net::default()),
                    IpNet::V6(_) => IpNet::V6(Ipv6Net::default()),
                };
                ranges.nets().iter().map(|range| RouteKey::new(default(range), None)).collect()
            }
        }
    }

    /// Attaches again what a failed ADD has detached: the same VIFs under the same names. A failure is
    /// logged, and an attachment that is recorded by then is left to healing and to the next start.
    pub(super) fn put_back(&self, replaced: &[Attachment]) {
        // The requested interface last, as in a commit.
        for it in replaced.iter().rev() {
            match self.put_back_one(it) {
                Ok(()) => {
                    tracing::warn!(key = %it.key, "a repeated ADD failed; put the earlier attachment back");
                }
                Err(error) => tracing::error!(
                    key = %it.key,
                    error = chain(&error),
                    "a repeated ADD failed, and the earlier attachment cannot be put back at once"
                ),
            }
        }
    }

    fn put_back_one(&self, it: &Attachment) -> Result<(), RestoreError> {
        // Still recorded if its DEL failed half-way.
        if self.registry.get(&it.key).is_none() {
            let Attachment { key, with, pod, netns, netns_id, vif, wishes, .. } = it.clone();
            let allocation = Allocation::Fixed(vif);
            self.registry.reserve(NewAttachment { key, with, pod, netns, netns_id, allocation, wishes })?;
        }
        self.registry.update(it.clone())?;
        self.restore(it)?;
        self.ports.add(it)?;
        Ok(())
    }
}
