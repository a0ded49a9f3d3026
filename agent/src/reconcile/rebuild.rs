//! Rebuilds attachments from the kernel whose records were lost with the registry's store, or damaged.
//!
//! Inside the pod, only its routes and the limit of what it sends are read: no address comes from what a pod
//! can change. The sources of each fact, best first:
//!
//! * key and host end: the ownership stamp; name and index of the interface
//! * addresses and MAC: `VIFS` and `ENDPOINTS`; the host's routes and permanent neighbours
//! * pod: `VIFS`; otherwise unknown, and proves nothing
//! * MTU, gateways and routes: the host end; the pod's routes through its end (protocol static, table main)
//! * namespace: the peer's namespace ID (`IFLA_LINK_NETNSID`), resolved by `RTM_GETNSID` among `/run/netns`,
//!   `/run/docker/netns` and the namespaces of processes. A process's path is not recorded, because the
//!   process may end before the pod: without a path, only a missing interface proves that the namespace is
//!   gone, until a CHECK or a repeated ADD supplies the path.
//! * limits of traffic: the qdiscs of both ends; what the pod receives, if `VIFS` says that the limit is the
//!   agent's
//! * ports of the node: the table `inet ferrule-ports`, by the pod's addresses
//! * group of one container: its interfaces in one network; the requested one is `eth0`, else the one with
//!   the lowest index
//! * creation time: now. A deferred DEL of the key meant an earlier interface: the shim has deleted it.

mod claim;
mod record;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use ferrule_vif::Addresses;

use self::{claim::Claim, record::records};
use crate::{
    chain::chain,
    dataplane::Dataplane,
    metrics::{StoreMetrics, count},
    plug::{
        host_inventory::{HostInventory, StampedLink},
        netlink::Socket,
        nft::host_ports_table,
        stamp::Stamp,
    },
    registry::{Attachment, Condition, HostSide, LeftAddresses, Registry, State},
};
use anyhow::Context as _;

/// Rebuilds, durably, the attachments that the kernel has and the registry lacks. Returns the interfaces that
/// cannot be rebuilt and are left alone, with their addresses in the maps. The IPAM allocates none of the
/// addresses that such an interface has in the maps, or by a route of the host.
///
/// An intact store lacks no record: ADD writes the record before it creates the interface, and DEL removes
/// the record after the map entries. An interface with map entries and no record has lost its record all the
/// same.
///
/// # Errors
/// If the kernel or the store refuses; nothing is changed.
pub(super) fn rebuild(
    registry: &Registry,
    dataplane: &Dataplane,
    host: &mut Socket,
    stamped: &HashMap<u32, Stamp>,
    metrics: &StoreMetrics,
) -> anyhow::Result<HashMap<u32, Addresses>> {
    let condition = registry.condition();
    let is_intact = *condition == Condition::Intact;
    let recorded = registry.list();
    let is_live = |it: &Attachment| is_live(it, stamped);
    let has_record = |(ifindex, stamp): &(&u32, &Stamp)| {
        let matches = |it: &Attachment| is_live(it) && it.host.ifindex() == Some(**ifindex);
        recorded.iter().any(|it| it.key == *stamp.key() && (is_intact || matches(it)))
    };
    let unrecorded: HashSet<u32> =
        stamped.iter().filter(|it| !has_record(it)).map(|(ifindex, _)| *ifindex).collect();
    report(condition, metrics, unrecorded.len());
    if unrecorded.is_empty() {
        if !is_intact {
            registry.adopt(Vec::new(), &[], true)?;
        }
        return Ok(HashMap::new());
    }

    let (mut claims, mut unknown, mut left) = (Vec::new(), HashMap::new(), Vec::new());
    let mut taken: HashSet<_> = recorded
        .iter()
        .filter(|it| is_intact || is_live(it))
        .flat_map(|it| it.vif.addresses.iter())
        .collect();
    let mut keys = HashSet::new();
    let inventory = HostInventory::all(host, &HashSet::new())?;
    for link in inventory.stamped_links().filter(|it| unrecorded.contains(&it.ifindex)) {
        let (ifindex, stamp) = (link.ifindex, link.stamp.clone());
        let entry = match dataplane.recorded(ifindex) {
            Ok(entry) => entry,
            Err(error) => {
                let error = chain(&error);
                metrics.start_failures.inc();
                tracing::error!(ifindex, %stamp, error, "cannot read the map entry of a pod's interface; leaving the interface alone");
                unknown
                    .insert(ifindex, Addresses::collect(link.addresses.iter().copied()).unwrap_or_default());
                left.extend(left_addresses(&link, Vec::new()));
                continue;
            }
        };
        let is_intent = |it: &Attachment| it.state == State::Reserved && it.key == *stamp.key();
        if entry.is_none() && (is_intact || recorded.iter().any(is_intent)) {
            // The link of an ADD that was interrupted before the map entries: rolled back by recovery. With
            // entries, the ADD may have succeeded, and the damaged store may have lost the commit: a live pod
            // is not cut off, and the runtime sends a DEL for an ADD that failed.
            continue;
        }
        let owned = entry.iter().flat_map(|it| &it.owners).filter(|(_, owner)| *owner == ifindex);
        let owned: Vec<_> = owned.map(|(address, _)| *address).collect();
        let claim = Claim::of(link.clone(), entry, |other| stamped.contains_key(&other)).and_then(|claim| {
            let is_free = claim.addresses.iter().all(|address| !taken.contains(&address));
            let is_first = keys.insert(stamp.key().clone());
            if is_free && is_first {
                Ok(claim)
            } else {
                Err("another interface has its addresses or its stamp")
            }
        });
        match claim {
            Ok(claim) => {
                taken.extend(claim.addresses.iter());
                claims.push(claim);
            }
            Err(why) => {
                tracing::error!(ifindex, %stamp, why, "cannot rebuild the attachment of a pod's interface; leaving the interface alone");
                unknown.insert(ifindex, Addresses::collect(owned.iter().copied()).unwrap_or_default());
                left.extend(left_addresses(&link, owned));
            }
        }
    }
    // Recovery deletes from the table what no record has.
    let mappings = host_ports_table::read().context("cannot read the ports of the node that lead to pods")?;
    let attachments = records(host, claims, &recorded, &mappings);
    // Stale records of a damaged store, whose addresses belong to others now.
    let is_superseded = |it: &&Attachment| {
        !is_intact
            && !is_live(it)
            && !keys.contains(&it.key)
            && it.vif.addresses.iter().any(|address| taken.contains(&address))
    };
    let superseded: Vec<_> = recorded.iter().filter(is_superseded).cloned().collect();
    for Attachment { key, pod, vif, netns, .. } in &attachments {
        tracing::warn!(%key, %pod, addresses = %vif.addresses, ?netns, "rebuilt an attachment from the kernel");
    }
    if is_intact && !attachments.is_empty() {
        tracing::error!(
            attachments = attachments.len(),
            "the registry's store had lost attachments that the kernel has"
        );
        metrics.rebuilds.inc();
    }
    metrics.rebuilt_attachments.inc_by(attachments.len() as u64);
    metrics.unknown_interfaces.set(count(unknown.len()));
    registry.adopt(attachments, &superseded, unknown.is_empty())?;
    registry.leave(left);
    Ok(unknown)
}

/// The addresses of an interface that is left alone: those of the maps, and those of the host's routes.
fn left_addresses(link: &StampedLink, in_maps: Vec<IpAddr>) -> Vec<LeftAddresses> {
    let all: BTreeSet<_> = in_maps.into_iter().chain(link.addresses.iter().copied()).collect();
    let (key, ifindex) = (link.stamp.key(), link.ifindex);
    let single = all.into_iter().filter_map(|address| Addresses::collect([address]).ok());
    single.map(|addresses| LeftAddresses { key: key.clone(), ifindex, addresses }).collect()
}

/// Whether a record is committed and the kernel does not contradict it.
fn is_live(it: &Attachment, stamped: &HashMap<u32, Stamp>) -> bool {
    let is_confirmed = match &it.host {
        HostSide::Link(link) => stamped.get(&link.ifindex).is_some_and(|stamp| *stamp.key() == it.key),
        HostSide::Unplugged => false,
        // No stamp could contradict the record.
        HostSide::None | HostSide::Representor(_) => true,
    };
    it.state == State::Attached && is_confirmed
}

/// Logs and counts a store that was lost or damaged, once per start.
fn report(condition: &Condition, metrics: &StoreMetrics, interfaces: usize) {
    match condition {
        Condition::Damaged { why, quarantined } => tracing::error!(
            why,
            ?quarantined,
            interfaces,
            "the registry's store is damaged: quarantined it, rebuilding lost attachments from the kernel"
        ),
        Condition::New if interfaces > 0 => tracing::error!(
            interfaces,
            "the registry's store was lost, and pods have interfaces: rebuilding their attachments from the kernel"
        ),
        Condition::Upgraded => tracing::info!(
            interfaces,
            "an earlier build has left its registry in a database: rebuilding its attachments from the kernel"
        ),
        Condition::Incomplete if interfaces > 0 => tracing::warn!(
            interfaces,
            "an earlier agent lost the registry's store and did not rebuild all attachments: retrying"
        ),
        _ => return,
    }
    if !matches!(condition, Condition::Incomplete | Condition::Upgraded) {
        metrics.rebuilds.inc();
    }
}
