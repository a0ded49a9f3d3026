//! Bringing the registry and the kernel together at start, before anyone can call.

use std::collections::{HashMap, HashSet};

use anyhow::Context as _;
use nix::errno::Errno;

use super::{DeferredDels, rebuild::rebuild};
use crate::{
    attach::{Engine, Phases},
    chain::chain,
    crash::{self, Step},
    metrics::StoreMetrics,
    plug::{HostEnds, filter, host_ends, netlink::Socket, reaper, stamp::Stamp, veth},
    registry::{Attachment, HostSide, State},
};
use ferrule_vif::Addresses;

/// Takes the attachments over that an earlier agent made, undoes what it left half done, does what the deferred say was
/// deleted meanwhile, makes attachments anew that the registry has lost, and interfaces that pods that live have lost.
/// Interfaces without our stamp are not touched.
///
/// # Errors
/// If the kernel or the store refuses. What goes wrong with one
/// attachment does not keep the others from being served: it is said, and stays as it is.
pub fn recover(engine: &Engine, deferred: &DeferredDels, metrics: &StoreMetrics) -> anyhow::Result<()> {
    let mut host = Socket::open()?;
    let HostEnds { stamped, dead: buried, disguised } =
        host_ends(&mut host).context("cannot list the interfaces that are ours")?;
    let left = rebuild(engine, &mut host, &stamped, metrics).context("cannot make lost attachments anew")?;

    let all = engine.registry.list();
    let is_live = |it: &Attachment| is_plugged(it, &stamped) && !deferred.covers(it);
    // Somebody else's now, for all that its alias says: it is left as it is, and so are its entries.
    let is_disguised =
        |it: &Attachment| it.host.ifindex().is_some_and(|ifindex| disguised.contains(&ifindex));
    // The pod lives, and gets an interface again that it has lost. What a DEL has buried is not lost.
    let stays = |it: &Attachment| {
        let is_wanted = it.state == State::Attached && !deferred.covers(it) && !has_link(it, &buried);
        is_wanted && (is_live(it) || it.is_in_living_netns())
    };
    let with_one_that_stays = |it: &Attachment| {
        let with = it.with.as_ref().and_then(|with| all.iter().find(|other| other.key == *with));
        it.with.is_none() || with.is_some_and(stays)
    };
    let (kept, dead): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|it| {
        // A further interface of one that stays is missed, even if it cannot be made anew.
        let is_further = it.with.is_some() && it.state == State::Attached;
        (stays(it) || is_further) && with_one_that_stays(it)
    });
    let (live, lost): (Vec<_>, Vec<_>) = kept.into_iter().partition(is_live);
    let (strange, lost): (Vec<_>, Vec<_>) = lost.into_iter().partition(is_disguised);
    // All entries before any filter: a new program with empty maps would drop what the old one let pass.
    for (ifindex, attachment) in with_ifindex(&live).chain(with_ifindex(&strange)) {
        engine.dataplane.keep(ifindex, attachment)?;
    }
    crash::point(Step::StartEntries);
    engine.dataplane.inherit();
    crash::point(Step::StartInherited);
    for (host_link, attachment) in live.iter().filter_map(|it| Some((it.host.device()?, it))) {
        let (ifindex, ifname) = (host_link.ifindex, &host_link.ifname);
        match filter::reattach(&mut host, ifindex, ifname, engine.dataplane.filters()) {
            // It went meanwhile, with its pod.
            Err(error) if error.is(Errno::ENODEV) => {}
            Err(error) => {
                let (key, error) = (&attachment.key, chain(&error));
                tracing::error!(%key, error, "an attachment has not got this agent's filters; an earlier agent's stay, if it has some");
            }
            Ok(()) => {}
        }
        crash::point(Step::StartFilterReplaced);
    }
    let going: HashSet<u32> = with_ifindex(&dead).map(|(ifindex, _)| ifindex).collect();
    let mut live: HashMap<u32, Addresses> = with_ifindex(&live)
        .chain(with_ifindex(&strange))
        .map(|(ifindex, it)| (ifindex, it.vif.addresses))
        .collect();
    live.extend(left);
    // Before any record is removed: an interface that still has its entries and no record would be taken for one that lost it, if this is
    // cut short.
    for (ifindex, stamp) in stamped.iter().filter(|(it, _)| !live.contains_key(it) && !going.contains(it)) {
        tracing::warn!(ifindex, %stamp, "deleting an interface of ours that belongs to no attachment");
        veth::retire(*ifindex, stamp, Addresses::default())?;
        crash::point(Step::StartStrayBuried);
    }
    for attachment in &dead {
        let (key, state, noted) = (&attachment.key, attachment.state, deferred.covers(attachment));
        tracing::info!(%key, ?state, noted, "removing what was deleted or left half done meanwhile");
        if let Err(error) = engine.detach_one(attachment, &Phases::untracked()) {
            tracing::error!(key = %attachment.key, %error, "it cannot be undone; a DEL of it will try again");
        }
        crash::point(Step::StartDeadRemoved);
    }
    engine.dataplane.disinherit();
    engine.dataplane.retain(&live)?;
    crash::point(Step::StartMapsRetained);
    reaper::reap_at_start()?;
    crash::point(Step::StartReaped);
    for attachment in &lost {
        if let Err(error) = engine.restore(attachment) {
            let (key, error) = (&attachment.key, chain(&error));
            tracing::error!(%key, error, "an interface of a pod is gone, and cannot be made anew; a CHECK of the pod will fail");
        }
        crash::point(Step::StartRestored);
    }
    tracing::info!(attachments = live.len(), "registry and kernel agree");
    Ok(())
}

/// Whether the host side of an attachment is as its record says.
fn is_plugged(attachment: &Attachment, stamped: &HashMap<u32, Stamp>) -> bool {
    match attachment.host {
        HostSide::Link(_) => has_link(attachment, stamped),
        HostSide::Unplugged => false,
        // The agent cannot lose a device that it does not create: the namespace alone decides.
        HostSide::None | HostSide::Representor(_) => {
            attachment.state == State::Attached && attachment.is_in_living_netns()
        }
    }
}

/// Whether the host link of an attachment is among these.
fn has_link(attachment: &Attachment, stamped: &HashMap<u32, Stamp>) -> bool {
    let stamp = attachment.host.stamped_link().and_then(|link| stamped.get(&link.ifindex));
    attachment.state == State::Attached && stamp == Some(&Stamp::of(&attachment.key))
}

fn with_ifindex(attachments: &[Attachment]) -> impl Iterator<Item = (u32, &Attachment)> {
    attachments.iter().filter_map(|attachment| Some((attachment.host.ifindex()?, attachment)))
}
