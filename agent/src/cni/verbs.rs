//! The verbs, from a checked request to a result. Which order things happen in is told in `docs/architecture.md`.

use std::{path::PathBuf, sync::Arc};

use ferrule_proto::names::NetworkName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    error::VerbError,
    work::{self, Abandoned},
};
use crate::{
    dataplane::Dataplane,
    plug::{
        check,
        netns::Netns,
        reaper::Reaper,
        stamp::Stamp,
        uplink::Uplink,
        veth::{self, Plan},
    },
    registry::{Attachment, Draft, HostLink, Key, Pod, Registry, State},
};

/// What a node needs to serve a runtime.
pub struct Node {
    pub registry: Registry,
    pub dataplane: Dataplane,
    pub uplink: Uplink,
    pub reaper: Reaper,
    /// Calls that are in work or wait for it.
    admitted: Arc<Semaphore>,
    /// Calls that are in work.
    working: Arc<Semaphore>,
}

/// A checked ADD.
#[derive(Debug)]
pub struct Add {
    pub key: Key,
    pub netns: PathBuf,
    pub pod: Pod,
    /// Bytes.
    pub mtu: Option<u32>,
}

/// The most calls that are taken at once; more than a node has pods.
const MAX_CALLS: usize = 1024;
/// The kernel changes its network one request at a time, so that more at once only wait there, each on a thread.
const MAX_WORKING: usize = 8;

// === impl Node ===

impl Node {
    pub fn new(registry: Registry, dataplane: Dataplane, uplink: Uplink, reaper: Reaper) -> Self {
        let admitted = Arc::new(Semaphore::new(MAX_CALLS));
        let working = Arc::new(Semaphore::new(MAX_WORKING));
        Self { registry, dataplane, uplink, reaper, admitted, working }
    }

    /// Attaches a container; the same answer again for one that is attached.
    ///
    /// # Errors
    /// See [`VerbError`]; then nothing is left of the attempt.
    pub async fn add(self: &Arc<Self>, add: Add) -> Result<Attachment, VerbError> {
        let key = add.key.clone();
        match self.work(&key, move |node| node.add_now(&add), Self::undo_add).await? {
            Added::Now(attachment) | Added::Before(attachment) => Ok(attachment),
        }
    }

    /// Detaches a container. There is nothing to do for one that is not attached.
    ///
    /// # Errors
    /// If the kernel or the store refuses; a later DEL goes on from there.
    pub async fn del(self: &Arc<Self>, key: Key) -> Result<(), VerbError> {
        let of = key.clone();
        let remove = move |node: &Self| {
            node.registry.get(&of).map_or(Ok(()), |attachment| node.remove_now(&attachment))
        };
        self.work(&key, remove, |_, _| {}).await
    }

    /// Compares an attachment with what the kernel has.
    ///
    /// # Errors
    /// If it is not attached, or something differs.
    pub async fn check(self: &Arc<Self>, key: Key, netns: PathBuf) -> Result<(), VerbError> {
        let of = key.clone();
        self.work(&key, move |node| node.check_now(&of, &netns), |_, _| {}).await
    }

    /// Detaches all of a network but those that are valid.
    ///
    /// # Errors
    /// The first that could not be detached; the others were tried.
    pub async fn gc(self: &Arc<Self>, network: &NetworkName, valid: &[Key]) -> Result<(), VerbError> {
        let mut outcome = Ok(());
        for Attachment { key, .. } in self.registry.list() {
            if key.network == *network && !valid.contains(&key) {
                tracing::info!(%key, "the runtime no longer knows this attachment: removing it");
                outcome = outcome.and(self.del(key).await);
            }
        }
        outcome
    }

    /// Does the work of a call alone with its key.
    async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        key: &Key,
        work: impl FnOnce(&Self) -> Result<T, VerbError> + Send + 'static,
        abandoned: Abandoned<Self, Result<T, VerbError>>,
    ) -> Result<T, VerbError> {
        let admitted = self.admit()?;
        let guard = self.registry.lock(key).await;
        let permit = Arc::clone(&self.working).acquire_owned().await.map_err(|_| VerbError::Lost)?;
        let hold = (guard, permit, admitted);
        work::run(Arc::clone(self), hold, work, abandoned).await.ok_or(VerbError::Lost)?
    }

    fn admit(&self) -> Result<OwnedSemaphorePermit, VerbError> {
        Arc::clone(&self.admitted).try_acquire_owned().map_err(|_| VerbError::Busy(MAX_CALLS))
    }

    fn add_now(&self, add: &Add) -> Result<Added, VerbError> {
        let netns = Netns::open(&add.netns)?;
        let stamp = Stamp::of(&add.key);
        if let Some(before) = self.registry.get(&add.key) {
            if self.is_current(&before, &netns)? {
                return Ok(Added::Before(before));
            }
            // Of another namespace, or half done by an agent that crashed.
            self.remove_now(&before)?;
        }
        let mtu = self.uplink.mtu_for(add.mtu, self.registry.has_ipv6())?;
        let draft = Draft {
            key: add.key.clone(),
            pod: add.pod.clone(),
            netns: add.netns.clone(),
            netns_id: netns.id(),
            mtu,
        };
        let reserved = self.registry.reserve(draft)?;
        let plugged = self.plug(&netns, &stamp, &reserved).inspect_err(|_| self.cancel(&reserved))?;
        let attached = self.registry.advance(plugged.clone(), State::Attached).inspect_err(|_| {
            if let Err(error) = self.remove_now(&plugged) {
                tracing::error!(key = %plugged.key, %error, "a failed ADD is left behind");
            }
        })?;
        tracing::info!(key = %attached.key, pod = %attached.pod, addresses = %attached.vif.addresses, "attached");
        Ok(Added::Now(attached))
    }

    /// What an ADD did whose caller has gone.
    fn undo_add(&self, done: Result<Added, VerbError>) {
        if let Ok(Added::Now(attachment)) = done {
            tracing::info!(key = %attachment.key, "the caller of ADD has gone: undoing it");
            if let Err(error) = self.remove_now(&attachment) {
                tracing::error!(key = %attachment.key, %error, "an ADD that nobody waits for is left behind");
            }
        }
    }

    fn plug(&self, netns: &Netns, stamp: &Stamp, attachment: &Attachment) -> Result<Attachment, VerbError> {
        let plan = Plan { netns, ifname: &attachment.key.ifname, stamp, vif: &attachment.vif };
        let pending = veth::create(plan, self.dataplane.filters())?;
        let host = HostLink { ifname: pending.ifname().to_owned(), ifindex: pending.ifindex() };
        self.dataplane.insert(host.ifindex, attachment)?;
        let undo_entries = |_: &_| {
            if let Err(error) = self.dataplane.remove(host.ifindex, attachment.vif.addresses) {
                tracing::error!(key = %attachment.key, %error, "the maps keep entries of a failed ADD");
            }
        };
        pending.bring_up().inspect_err(undo_entries)?;
        let plugged = Attachment { host: Some(host), ..attachment.clone() };
        Ok(self.registry.advance(plugged, State::Plugged)?)
    }

    fn cancel(&self, reserved: &Attachment) {
        if let Err(error) = self.registry.cancel(reserved) {
            tracing::error!(key = %reserved.key, %error, "the address of a failed ADD stays set aside");
        }
    }

    /// Removes all of an attachment: entries first, so that nothing new gets in.
    pub(crate) fn remove_now(&self, attachment: &Attachment) -> Result<(), VerbError> {
        let going = self.registry.advance(attachment.clone(), State::Unplugging)?;
        if let Some(HostLink { ifindex, .. }) = going.host {
            self.dataplane.remove(ifindex, going.vif.addresses)?;
            veth::bury(ifindex, &Stamp::of(&going.key), going.vif.addresses)?;
            self.reaper.notify();
        }
        self.registry.release(&going)?;
        tracing::info!(key = %going.key, "detached");
        Ok(())
    }

    /// Whether an attachment is what a repeated ADD asks for: in the same namespace, and as it was made. The number of a
    /// namespace is used again once it is gone, and with it goes the interface.
    fn is_current(&self, before: &Attachment, netns: &Netns) -> Result<bool, VerbError> {
        match &before.host {
            Some(host) if before.state == State::Attached && before.netns_id == netns.id() => {
                let in_kernel = check::attachment(netns, host.ifindex, before, self.dataplane.program_ids())?;
                let as_made = in_kernel.and_then(|()| self.dataplane.verify(host.ifindex, before));
                if let Err(differs) = &as_made {
                    tracing::warn!(key = %before.key, differs, "a repeated ADD finds a difference: making it anew");
                }
                Ok(as_made.is_ok())
            }
            _ => Ok(false),
        }
    }

    fn check_now(&self, key: &Key, netns: &std::path::Path) -> Result<(), VerbError> {
        let attachment =
            self.registry.get(key).filter(|it| it.state == State::Attached).ok_or(VerbError::Unknown)?;
        let netns = Netns::open(netns)?;
        if netns.id() != attachment.netns_id {
            let differs =
                format!("it was made in namespace {}, and this is {}", attachment.netns_id, netns.id());
            return Err(VerbError::Differs(differs));
        }
        let host = attachment.host.as_ref().ok_or(VerbError::Unknown)?;
        check::attachment(&netns, host.ifindex, &attachment, self.dataplane.program_ids())?
            .map_err(VerbError::Differs)?;
        self.dataplane.verify(host.ifindex, &attachment).map_err(VerbError::Differs)
    }
}

/// An ADD that succeeded.
enum Added {
    /// By this call.
    Now(Attachment),
    /// By an earlier one.
    Before(Attachment),
}
