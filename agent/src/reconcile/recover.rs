//! Recovery at start, before any call is served: registry, kernel and maps agree afterwards.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use anyhow::Context as _;
use ferrule_vif::Addresses;
use nix::errno::Errno;

use super::{DeferredDels, rebuild};
use crate::{
    attach::{Engine, Phases},
    chain::chain,
    crash::{self, Step},
    dataplane::Dataplane,
    desired::{Presence, netns_exists, presence},
    metrics::StoreMetrics,
    plug::{
        filter,
        host_inventory::{HostInventory, HostLinkState},
        netlink::Socket,
        nodes, reaper,
        stamp::Stamp,
        veth,
    },
    ports::HostPorts,
    registry::{Attachment, HostSide, Key, Registry, State},
};

/// What recovery works on.
pub struct Recovery {
    pub engine: Arc<Engine>,
    pub registry: Arc<Registry>,
    pub dataplane: Arc<Dataplane>,
    pub ports: Arc<HostPorts>,
    /// Whether policies are to be listed, before anything judges pods.
    pub has_policies: bool,
    pub metrics: StoreMetrics,
}

/// The attachments of an earlier agent, by what becomes of them.
struct Plan {
    /// Plugged as recorded: kept.
    live: Vec<Attachment>,
    /// A foreign program changed the alias of the host link: the link and its map entries are left alone.
    foreign: Vec<Attachment>,
    /// The pod lives, but lost its interface: restored.
    lost: Vec<Attachment>,
    /// Deleted meanwhile, or never committed: removed.
    dead: Vec<Attachment>,
}

// === impl Recovery ===

impl Recovery {
    /// Takes over the attachments of an earlier agent: rebuilds lost records from the kernel, applies
    /// deferred DELs, rolls back what was never committed, replaces the filters, and restores lost interfaces
    /// of live pods. Interfaces without the ownership stamp are not touched.
    ///
    /// The failure of a single object is logged and counted, and affects no other one: healing, the reaper or
    /// garbage collection retries.
    ///
    /// # Errors
    /// If the kernel refuses to list the interfaces, or a program, or the store to record what was rebuilt.
    pub fn run(&self, deferred: &DeferredDels) -> anyhow::Result<()> {
        let mut host = Socket::open()?;
        let HostInventory { links, .. } =
            HostInventory::links(&mut host).context("cannot list the host's interfaces")?;
        let in_service = links.iter().filter(|(_, link)| link.group != reaper::RETIRED);
        let stamped: HashMap<u32, Stamp> =
            in_service.filter_map(|(ifindex, link)| Some((*ifindex, link.stamp.clone()?))).collect();
        let unknown = rebuild::rebuild(&self.registry, &self.dataplane, &mut host, &stamped, &self.metrics)
            .context("cannot rebuild lost attachments from the kernel")?;
        let Plan { live, foreign, lost, dead } = plan(self.registry.list(), &links, deferred);

        // All entries before any filter: a new program with empty maps would drop what the earlier one
        // passes.
        let unwritten = self.write_entries(by_ifindex(&live).chain(by_ifindex(&foreign)));
        crash::point(Step::StartEntries);
        self.let_unjudged_pass(by_ifindex(&live).chain(by_ifindex(&foreign)));
        // A lost interface may come back, as long as it is not restored.
        for (ifindex, attachment) in by_ifindex(&live).chain(by_ifindex(&foreign)).chain(by_ifindex(&lost)) {
            self.engine.judge(ifindex, attachment);
        }
        unknown.iter().for_each(|(ifindex, addresses)| self.engine.judge_unknown(*ifindex, *addresses));
        // An agent whose programs the kernel refuses lets nothing more pass.
        self.dataplane.verified()?;
        if !self.has_policies {
            self.engine.let_all_pass();
        }
        self.dataplane.inherit();
        crash::point(Step::StartHandedOver);
        self.replace_filters(&mut host, live.iter().filter(|it| !unwritten.contains(&it.key)));

        let removing: HashSet<u32> = by_ifindex(&dead).map(|(ifindex, _)| ifindex).collect();
        let mut owners: HashMap<u32, Addresses> = by_ifindex(&live)
            .chain(by_ifindex(&foreign))
            .map(|(ifindex, it)| (ifindex, it.vif.addresses))
            .collect();
        owners.extend(unknown);
        // Before any record is removed: after a crash in between, a stray interface with map entries and no
        // record would count as an attachment with a lost record.
        let is_stray = |(it, _): &(&u32, &Stamp)| !owners.contains_key(it) && !removing.contains(it);
        for (ifindex, stamp) in stamped.iter().filter(is_stray) {
            tracing::warn!(ifindex, %stamp, "deleting a stray interface: the stamp belongs to no attachment");
            if let Err(error) = veth::retire(*ifindex, stamp, Addresses::default()) {
                let error = chain(&error);
                self.failed();
                tracing::error!(ifindex, %stamp, error, "cannot delete a stray interface; healing retries");
            }
            crash::point(Step::StartStrayRetired);
        }
        self.remove(&dead, deferred);
        if let Err(error) = self.ports.take_over(&self.registry.list(), &self.registry.left()) {
            self.failed();
            tracing::error!(
                error = chain(&error),
                "cannot keep the ports of the node that lead to pods; healing retries"
            );
        }
        crash::point(Step::StartPorts);
        let (uplinks, tunnel) = (self.dataplane.uplink_filters(), self.dataplane.tunnel_filters());
        if let Err(error) =
            Socket::open().and_then(|mut host| nodes::uplink_filter::renew(&mut host, uplinks, tunnel))
        {
            self.failed();
            tracing::error!(
                error = chain(&error),
                "cannot replace the filters of uplinks; the first pass retries"
            );
        }
        self.dataplane.disinherit();
        // What judged a lost interface judges the restored one.
        let lost_ones: HashSet<u32> = by_ifindex(&lost).map(|(ifindex, _)| ifindex).collect();
        if let Err(error) = self.dataplane.retain(&owners, &lost_ones) {
            self.failed();
            tracing::error!(error = chain(&error), "cannot remove stray map entries; healing retries");
        }
        crash::point(Step::StartMapsRetained);
        for group in [reaper::UNSTAMPED, reaper::RETIRED] {
            if let Err(error) = reaper::delete_group(group) {
                let error = chain(&error);
                self.failed();
                tracing::error!(
                    group,
                    error,
                    "cannot delete the interfaces that an earlier agent left; the next start retries"
                );
            }
        }
        crash::point(Step::StartReaped);
        self.restore(&lost);
        tracing::info!(attachments = owners.len(), "recovered: registry, kernel and maps agree");
        Ok(())
    }

    /// Writes all map entries, and returns the attachments whose entries cannot be written.
    fn write_entries<'a>(
        &self,
        attachments: impl Iterator<Item = (u32, &'a Attachment)>,
    ) -> HashSet<&'a Key> {
        let mut unwritten = HashSet::new();
        for (ifindex, attachment) in attachments {
            if let Err(error) = self.dataplane.keep(ifindex, attachment) {
                let (key, error) = (&attachment.key, chain(&error));
                self.failed();
                tracing::error!(%key, error, "cannot write the map entries of an attachment; its earlier filters stay, and healing retries");
                unwritten.insert(key);
            }
        }
        unwritten
    }

    /// Goes on to let everything pass that pods send and receive whom an agent without policies has attached:
    /// until their policies are known, the update cuts nothing off.
    fn let_unjudged_pass<'a>(&self, attachments: impl Iterator<Item = (u32, &'a Attachment)>) {
        if !self.dataplane.has_unjudged() {
            return;
        }
        for (ifindex, attachment) in attachments {
            if let Err(error) = self.dataplane.open_subject(ifindex) {
                let (key, error) = (&attachment.key, chain(&error));
                self.failed();
                tracing::error!(%key, error, "cannot let an attachment's packets pass; they are dropped until policies are known");
            }
        }
    }

    fn replace_filters<'a>(&self, host: &mut Socket, live: impl Iterator<Item = &'a Attachment>) {
        for (device, attachment) in live.filter_map(|it| Some((it.host.device()?, it))) {
            match filter::reattach(host, device.ifindex, &device.ifname, self.dataplane.filters()) {
                // The interface was deleted with its pod meanwhile.
                Err(error) if error.is(Errno::ENODEV) => {}
                Err(error) => {
                    let (key, error) = (&attachment.key, chain(&error));
                    self.failed();
                    tracing::error!(%key, error, "cannot replace the filters of an interface; its earlier filters stay, and healing retries");
                }
                Ok(()) => {}
            }
            crash::point(Step::StartFilterReplaced);
        }
    }

    fn remove(&self, dead: &[Attachment], deferred: &DeferredDels) {
        for attachment in dead {
            let (key, state, deferred_del) = (&attachment.key, attachment.state, deferred.covers(attachment));
            tracing::info!(%key, ?state, deferred_del, "removing an attachment that was deleted or never committed");
            if let Err(error) = self.engine.detach_one(attachment, &Phases::untracked()) {
                self.failed();
                tracing::error!(%key, error = chain(&error), "cannot remove an attachment; a DEL or garbage collection retries");
            }
            crash::point(Step::StartDeadRemoved);
        }
    }

    fn restore(&self, lost: &[Attachment]) {
        for attachment in lost {
            if let Err(error) = self.engine.restore(attachment) {
                let (key, error) = (&attachment.key, chain(&error));
                self.failed();
                tracing::error!(%key, error, "cannot restore the lost interface of a pod; healing retries, and a CHECK of the pod fails");
            }
            crash::point(Step::StartRestored);
        }
    }

    fn failed(&self) {
        self.metrics.start_failures.inc();
    }
}

fn plan(all: Vec<Attachment>, links: &HashMap<u32, HostLinkState>, deferred: &DeferredDels) -> Plan {
    let is_live = |it: &Attachment| is_plugged(it, links) && !deferred.covers(it);
    let is = |it: &Attachment, expected| presence(it, links) == expected;
    // A retired link was deleted by a DEL, and is not lost.
    let stays = |it: &Attachment| {
        let is_deleted = deferred.covers(it) || is(it, Presence::Retired);
        it.state == State::Attached && !is_deleted && (is_live(it) || netns_exists(it))
    };
    let requested_stays = |it: &Attachment| {
        let requested = it.with.as_ref().and_then(|with| all.iter().find(|other| other.key == *with));
        it.with.is_none() || requested.is_some_and(stays)
    };
    let (kept, dead): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|it| {
        // The pod lacks an additional interface also if the restore fails, so the record stays.
        let is_additional = it.with.is_some() && it.state == State::Attached;
        (stays(it) || is_additional) && requested_stays(it)
    });
    let (live, lost): (Vec<_>, Vec<_>) = kept.into_iter().partition(is_live);
    let (foreign, lost): (Vec<_>, Vec<_>) = lost.into_iter().partition(|it| is(it, Presence::Restamped));
    Plan { live, foreign, lost, dead }
}

/// Whether the host side of an attachment is as recorded.
fn is_plugged(attachment: &Attachment, links: &HashMap<u32, HostLinkState>) -> bool {
    let is_as_recorded = match attachment.host {
        HostSide::Link(_) => presence(attachment, links) == Presence::Present,
        HostSide::Unplugged => false,
        // The agent does not create such a device, and so cannot have lost one: the namespace decides.
        HostSide::None | HostSide::Representor(_) => netns_exists(attachment),
    };
    attachment.state == State::Attached && is_as_recorded
}

fn by_ifindex(attachments: &[Attachment]) -> impl Iterator<Item = (u32, &Attachment)> {
    attachments.iter().filter_map(|attachment| Some((attachment.host.ifindex()?, attachment)))
}

#[cfg(test)]
mod tests;
