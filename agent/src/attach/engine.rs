//! The verbs, from a checked request to a result. Which order things happen in is told in `docs/architecture.md`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use ferrule_proto::{cni::AddResult, names::NetworkName};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

use super::{
    error::AttachError,
    in_flight::{InFlight, InFlightGuard},
    phases::{Phase, Phases},
    prev_result,
    uncommitted::Uncommitted,
    work::{self, Abandoned},
};
use crate::{
    crash::{self, Step},
    dataplane::Dataplane,
    decide::{DecideError, Decider, Decision, Request, is_active},
    events::{Events, Reason},
    plug::{
        check::{self, Leeway},
        netns::Netns,
        reaper::Reaper,
        stamp::Stamp,
        uplink::Uplink,
        veth,
    },
    registry::{Attachment, HostLink, Key, Pod, Registry, State},
    watch::Annotations,
};

/// What a engine needs to serve a runtime.
pub struct Engine {
    pub registry: Registry,
    pub dataplane: Dataplane,
    pub uplink: Uplink,
    pub reaper: Reaper,
    pub decider: Decider,
    pub events: Events,
    /// Turns true when the agent stops: nobody is to wait for a decision then.
    stopping: watch::Sender<bool>,
    /// ADDs that are in work or wait: for it, or for a decision.
    adding: Arc<Semaphore>,
    /// Other calls that are in work or wait for it. However many ADDs wait, a DEL is served.
    others: Arc<Semaphore>,
    /// Calls that are in work.
    working: Arc<Semaphore>,
    in_flight: InFlight,
}

/// A checked ADD.
#[derive(Debug, Clone)]
pub struct Add {
    pub key: Key,
    pub netns: PathBuf,
    pub pod: Pod,
    /// The pod's, if the runtime hands them over.
    pub annotations: Option<Annotations>,
    /// Bytes.
    pub mtu: Option<u32>,
}

/// An ADD that succeeded: the interface that was asked for, and those that came with it.
pub(super) enum Added {
    /// By this call.
    Now(Vec<Attachment>),
    /// By an earlier one.
    Before(Vec<Attachment>),
}

/// The most calls that are taken at once; more than a engine has pods.
const MAX_CALLS: u32 = 1024;
/// The kernel changes its network one request at a time, so that more at once only wait there, each on a thread.
const MAX_WORKING: u32 = 8;

// === impl Engine ===

impl Engine {
    pub fn new(
        registry: Registry,
        dataplane: Dataplane,
        uplink: Uplink,
        reaper: Reaper,
        decider: Decider,
        events: Events,
    ) -> Self {
        let calls = || Arc::new(Semaphore::new(MAX_CALLS as usize));
        let (adding, others) = (calls(), calls());
        let working = Arc::new(Semaphore::new(MAX_WORKING as usize));
        let stopping = watch::Sender::new(false);
        let in_flight = InFlight::default();
        Self {
            registry,
            dataplane,
            uplink,
            reaper,
            decider,
            events,
            stopping,
            adding,
            others,
            working,
            in_flight,
        }
    }

    /// Sends away who waits for a VIF, now and from now on. Calls in work go on.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Whether [`Self::stop`] was called. From then on, shims may delete interfaces by themselves.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Waits until no call is in work, nor what an abandoned one has to undo.
    pub async fn idle(&self) {
        // They are never closed. What an abandoned call left in work has no more than its part of the last one.
        for (calls, all) in
            [(&self.adding, MAX_CALLS), (&self.others, MAX_CALLS), (&self.working, MAX_WORKING)]
        {
            let _ = calls.acquire_many(all).await;
        }
    }

    /// Attaches a container; the same answer again for one that is attached. The interface that was asked for comes
    /// first.
    ///
    /// # Errors
    /// See [`AttachError`]; then nothing is left of the attempt.
    pub(crate) async fn add(
        self: &Arc<Self>,
        add: Add,
        phases: &Phases,
    ) -> Result<Vec<Attachment>, AttachError> {
        phases.enter(Phase::Queue);
        let _admitted = self.admit()?;
        let ticket = Arc::new(self.in_flight.enter(&add.key));
        if let Some(before) = self.added_before(&add, phases).await? {
            return Ok(before);
        }
        // Waited for without the key's lock, so that a DEL need not wait with us.
        // One for both waits: the caller has one.
        let deadline = Instant::now() + self.decider.timeout;
        phases.enter(Phase::WaitForVif);
        let request = Request { pod: &add.pod, annotations: add.annotations.as_ref() };
        let decide = self.decider.decide(&self.registry, &self.events, &request, deadline);
        let decided = self.unless_stopping(ticket.unless_deleted(decide)).await.inspect_err(|error| {
            if let AttachError::Decide(DecideError::Vif(why)) = error {
                self.events.tell(&add.pod, Reason::VifRefused, why.to_string());
            }
        })?;
        let (of, decision, held) = (add.clone(), decided.clone(), Arc::clone(&ticket));
        let plug = move |engine: &Self, phases: &Phases| engine.add_now(&of, &decision, &held, phases);
        let added = self
            .work(&add.key, phases, plug, Self::undo_add)
            .await
            .inspect_err(|error| self.tell(&add.pod, error))?;
        match (added, decided) {
            (Added::Now(plugged), Decision::This(vif)) if !is_active(&vif) => {
                let pending = Uncommitted::new(self, plugged);
                phases.enter(Phase::WaitForVif);
                let active =
                    self.decider.until_active(&self.registry, &self.events, &request, &vif, deadline);
                self.unless_stopping(ticket.unless_deleted(active)).await?;
                pending.commit(&add.key, phases).await
            }
            (Added::Now(attachments) | Added::Before(attachments), _) => Ok(attachments),
        }
    }

    /// Detaches a container. There is nothing to do for one that is not attached.
    ///
    /// # Errors
    /// If the kernel or the store refuses; a later DEL goes on from there.
    pub(crate) async fn del(self: &Arc<Self>, key: Key, phases: &Phases) -> Result<(), AttachError> {
        phases.enter(Phase::Queue);
        let _admitted = self.admit_other()?;
        self.in_flight.delete(&key);
        let of = key.clone();
        let remove =
            move |engine: &Self, phases: &Phases| engine.remove_group(&engine.registry.group(&of), phases);
        self.work(&key, phases, remove, |_, _| {}).await
    }

    /// Compares an attachment with what the kernel has, and with the result of the whole chain's ADD, if it is known.
    ///
    /// # Errors
    /// If it is not attached, or something differs.
    pub(crate) async fn check(
        self: &Arc<Self>,
        key: Key,
        netns: PathBuf,
        previous: Option<AddResult>,
        phases: &Phases,
    ) -> Result<(), AttachError> {
        phases.enter(Phase::Queue);
        let _admitted = self.admit_other()?;
        let of = key.clone();
        let verify =
            move |engine: &Self, phases: &Phases| engine.check_now(&of, &netns, previous.as_ref(), phases);
        self.work(&key, phases, verify, |_, _| {}).await
    }

    /// Detaches all of a network but those that are valid.
    ///
    /// # Errors
    /// The first that could not be detached; the others were tried.
    pub(crate) async fn gc(
        self: &Arc<Self>,
        network: &NetworkName,
        valid: &[Key],
        phases: &Phases,
    ) -> Result<(), AttachError> {
        let mut outcome = Ok(());
        for attachment in self.registry.list() {
            let key = attachment.runtime_key();
            if key.network == *network && !valid.contains(&key) {
                tracing::info!(%key, "the runtime no longer knows this attachment: removing it");
                outcome = outcome.and(self.del(key, phases).await);
                crash::point(Step::GcRemoved);
            }
        }
        outcome
    }

    /// Does the work of a call alone with its key.
    pub(crate) async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        key: &Key,
        phases: &Phases,
        work: impl FnOnce(&Self, &Phases) -> Result<T, AttachError> + Send + 'static,
        abandoned: Abandoned<Self, Result<T, AttachError>>,
    ) -> Result<T, AttachError> {
        phases.enter(Phase::Queue);
        let guard = self.registry.lock(key).await;
        let permit = Arc::clone(&self.working).acquire_owned().await.map_err(|_| AttachError::Lost)?;
        let hold = (guard, permit);
        let phases = phases.clone();
        work::run(Arc::clone(self), hold, move |engine| work(engine, &phases), abandoned)
            .await
            .ok_or(AttachError::Lost)?
    }

    pub(super) fn admit(&self) -> Result<OwnedSemaphorePermit, AttachError> {
        Arc::clone(&self.adding).try_acquire_owned().map_err(|_| AttachError::Busy(MAX_CALLS))
    }

    fn admit_other(&self) -> Result<OwnedSemaphorePermit, AttachError> {
        Arc::clone(&self.others).try_acquire_owned().map_err(|_| AttachError::Busy(MAX_CALLS))
    }

    fn tell(&self, pod: &Pod, error: &AttachError) {
        let reason = match error {
            AttachError::Refused(_) | AttachError::Decide(DecideError::Vif(_)) => Reason::VifRefused,
            _ => Reason::PlugFailed,
        };
        self.events.tell(pod, reason, crate::chain::chain(error));
    }

    async fn unless_stopping<T>(
        &self,
        wait: impl Future<Output = Result<T, AttachError>>,
    ) -> Result<T, AttachError> {
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            biased;
            outcome = wait => outcome,
            _ = stopping.wait_for(|stopping| *stopping) => Err(AttachError::Stopping),
        }
    }

    /// A repeated ADD needs no decision: the first one's holds.
    async fn added_before(
        self: &Arc<Self>,
        add: &Add,
        phases: &Phases,
    ) -> Result<Option<Vec<Attachment>>, AttachError> {
        if self.registry.get(&add.key).is_none() {
            return Ok(None);
        }
        let of = add.clone();
        let look =
            move |engine: &Self, phases: &Phases| engine.current(&of.key, &Netns::open(&of.netns)?, phases);
        self.work(&add.key, phases, look, |_, _| {}).await
    }

    fn add_now(
        &self,
        add: &Add,
        decision: &Decision,
        ticket: &InFlightGuard,
        phases: &Phases,
    ) -> Result<Added, AttachError> {
        ticket.check()?;
        crash::point(Step::AddBegun);
        phases.enter(Phase::Intent);
        let netns = Netns::open(&add.netns)?;
        if let Some(before) = self.current(&add.key, &netns, phases)? {
            return Ok(Added::Before(before));
        }
        // Made for a namespace that is gone, or half made, or changed since.
        self.remove_group(&self.registry.group(&add.key), phases)?;
        phases.enter(Phase::Intent);
        let drafts = self.drafts(add, decision, &netns)?;
        let mut plugged = Vec::with_capacity(drafts.len());
        for draft in drafts {
            phases.enter(Phase::Intent);
            match self.make(&netns, draft, phases) {
                Ok(attachment) => plugged.push(attachment),
                Err(error) => {
                    self.undo(&plugged, phases);
                    return Err(error);
                }
            }
        }
        crash::point(Step::AddPlugged);
        if matches!(decision, Decision::This(vif) if !is_active(vif)) {
            return Ok(Added::Now(plugged));
        }
        self.commit(plugged, phases).map(Added::Now)
    }

    /// Makes all of it durable: what came with the one that was asked for first, so that a crash in between undoes all.
    pub(super) fn commit(
        &self,
        plugged: Vec<Attachment>,
        phases: &Phases,
    ) -> Result<Vec<Attachment>, AttachError> {
        phases.enter(Phase::Commit);
        for attachment in plugged.iter().rev() {
            if let Err(error) = self.registry.advance(attachment.clone(), State::Attached) {
                self.undo(&plugged, phases);
                return Err(error.into());
            }
        }
        crash::point(Step::AddCommitted);
        let attached: Vec<_> =
            plugged.into_iter().map(|it| Attachment { state: State::Attached, ..it }).collect();
        for Attachment { key, pod, vif, .. } in &attached {
            tracing::info!(%key, %pod, addresses = %vif.addresses, "attached");
        }
        Ok(attached)
    }

    /// What an ADD did whose caller has gone.
    pub(super) fn undo_add(&self, done: Result<Added, AttachError>) {
        if let Ok(Added::Now(attachments)) = done {
            self.undo(&attachments, &Phases::untracked());
        }
    }

    pub(super) fn undo(&self, attachments: &[Attachment], phases: &Phases) {
        phases.enter(Phase::Undo);
        if let Err(error) = self.remove_group(attachments, &Phases::untracked()) {
            tracing::error!(%error, "an ADD that failed, or whose caller has gone, is left behind");
        }
    }

    /// Removes attachments, the first one last: while there is anything, a repeated DEL finds it.
    pub(crate) fn remove_group(
        &self,
        attachments: &[Attachment],
        phases: &Phases,
    ) -> Result<(), AttachError> {
        attachments.iter().rev().try_for_each(|attachment| self.remove_now(attachment, phases))
    }

    /// Removes all of an attachment: entries first, so that nothing new gets in.
    pub(crate) fn remove_now(&self, attachment: &Attachment, phases: &Phases) -> Result<(), AttachError> {
        phases.enter(Phase::Dataplane);
        crash::point(Step::DelBegun);
        let going = self.registry.advance(attachment.clone(), State::Unplugging)?;
        if let Some(HostLink { ifindex, .. }) = going.host {
            self.dataplane.remove(ifindex, going.vif.addresses)?;
            crash::point(Step::DelEntriesRemoved);
            phases.enter(Phase::Plug);
            veth::retire(ifindex, &Stamp::of(&going.key), going.vif.addresses)?;
            self.reaper.notify();
            crash::point(Step::DelBuried);
        }
        phases.enter(Phase::Commit);
        self.registry.release(&going)?;
        crash::point(Step::DelReleased);
        tracing::info!(key = %going.key, "detached");
        Ok(())
    }

    /// What an earlier ADD attached, if it is what a repeated one asks for: in the same namespace, and as it was made.
    /// The number of a namespace is used again once it is gone, and with it goes the interface.
    fn current(
        &self,
        key: &Key,
        netns: &Netns,
        phases: &Phases,
    ) -> Result<Option<Vec<Attachment>>, AttachError> {
        let group = self.with_netns(self.registry.group(key), netns)?;
        for before in &group {
            let Some(host) = before.host.as_ref().filter(|_| before.state == State::Attached) else {
                return Ok(None);
            };
            if before.netns_id != netns.id() {
                return Ok(None);
            }
            phases.enter(Phase::Verify);
            if let Err(differs) = self.verify_made(netns, host.ifindex, before)? {
                tracing::warn!(key = %before.key, differs, "a repeated ADD finds a difference: making it anew");
                return Ok(None);
            }
        }
        Ok(Some(group).filter(|group| !group.is_empty()))
    }

    /// Whether what an ADD has plugged, and nobody has looked at since, still is as it was made.
    ///
    /// # Errors
    /// If it is not, or that cannot be told.
    pub(super) fn is_as_plugged(&self, plugged: &[Attachment]) -> Result<(), AttachError> {
        for it in plugged {
            let Some(host) = &it.host else { continue };
            self.verify_made(&Netns::open(&it.netns)?, host.ifindex, it)?.map_err(AttachError::Damaged)?;
        }
        Ok(())
    }

    /// Whether kernel and maps have an attachment as it was made; else what differs.
    fn verify_made(
        &self,
        netns: &Netns,
        ifindex: u32,
        attachment: &Attachment,
    ) -> Result<Result<(), String>, AttachError> {
        let (leeway, programs) = (Leeway::default(), self.dataplane.program_ids());
        let in_kernel = check::attachment(netns, ifindex, attachment, &leeway, programs)?;
        Ok(in_kernel.and_then(|()| self.dataplane.verify(ifindex, attachment)))
    }

    fn check_now(
        &self,
        key: &Key,
        path: &Path,
        previous: Option<&AddResult>,
        phases: &Phases,
    ) -> Result<(), AttachError> {
        phases.enter(Phase::Verify);
        let group = self.registry.group(key);
        if group.first().is_none_or(|first| first.state != State::Attached) {
            return Err(AttachError::Unknown);
        }
        let netns = Netns::open(path)?;
        let group = self.with_netns(group, &netns)?;
        for attachment in &group {
            if netns.id() != attachment.netns_id {
                let differs =
                    format!("it was made in namespace {}, and this is {}", attachment.netns_id, netns.id());
                return Err(AttachError::Differs(differs));
            }
            let host = attachment.host.as_ref().ok_or(AttachError::Unknown)?;
            let leeway = previous.map(|previous| prev_result::leeway(attachment, path, previous));
            let leeway = leeway.transpose().map_err(AttachError::Differs)?.unwrap_or_default();
            check::attachment(&netns, host.ifindex, attachment, &leeway, self.dataplane.program_ids())?
                .map_err(AttachError::Differs)?;
            self.dataplane.verify(host.ifindex, attachment).map_err(AttachError::Differs)?;
        }
        Ok(())
    }
}
