//! ADD: decide the VIF, reserve, plug, commit.

use std::{path::PathBuf, sync::Arc};

use tokio::time::Instant;

use super::{
    engine::Engine,
    error::AttachError,
    in_flight::{InFlightGuard, NotOvertaken},
    phases::{Phase, Phases},
    rollback::Changes,
    uncommitted::Uncommitted,
};
use crate::{
    chain::chain,
    cluster::{Annotations, PodRef},
    crash::{self, Step},
    decide::{DecideError, Decision, Request, is_active},
    events::Reason,
    plug::netns::Netns,
    ports::PortError,
    registry::{Attachment, Key, RegistryError, Wishes},
};

/// A validated ADD.
#[derive(Debug, Clone)]
pub struct AttachRequest {
    pub key: Key,
    pub netns: PathBuf,
    pub pod: PodRef,
    /// The pod's annotations, if the runtime passes them.
    pub annotations: Option<Annotations>,
    /// Bytes; `None` takes the uplink's.
    pub mtu: Option<u32>,
    pub wishes: Wishes,
}

/// What the locked part of an ADD found or made.
enum Outcome {
    /// Plugged and committed by this call.
    Attached(Changes),
    /// Plugged by this call, and not committed before its VIF is active.
    Plugged(Changes),
    /// Attached by an earlier call, and without drift. The requested interface comes first.
    Unchanged(Vec<Attachment>),
}

// === impl Engine ===

impl Engine {
    /// Attaches a container. Idempotent: an attachment without drift is returned as it is. The requested
    /// interface comes first, then the further interfaces of its VIF.
    ///
    /// # Errors
    /// See [`AttachError`]; the attempt is rolled back, and the attachment of an earlier ADD still works.
    pub(crate) async fn attach(
        self: &Arc<Self>,
        request: AttachRequest,
        phases: &Phases,
    ) -> Result<Vec<Attachment>, AttachError> {
        phases.enter(Phase::Queue);
        let _admission = self.admit_attach()?;
        let in_flight = Arc::new(self.in_flight.enter(&request.key));
        if let Some(unchanged) = self.attached_before(&request, phases).await? {
            return Ok(unchanged);
        }
        // The wait holds no key lock, so that a DEL of the same key proceeds and cancels the wait. One
        // deadline covers both waits, because the caller has one.
        let deadline = Instant::now() + self.decider.timeout;
        phases.enter(Phase::WaitForVif);
        let asked = Request { pod: &request.pod, annotations: request.annotations.as_ref(), deadline };
        let decide = self.decider.decide(&asked, |missing| phases.lacks(missing));
        let decision = self
            .unless_stopping(in_flight.unless_deleted(decide))
            .await
            .inspect_err(|error| self.report_undecodable(&request.pod, error))?;
        self.wait_for_policy(&request.pod, &in_flight, deadline, phases).await?;
        let (of, decided, guard) = (request.clone(), decision.clone(), Arc::clone(&in_flight));
        let plug = move |engine: &Self, phases: &Phases| {
            engine.attach_locked(&guard.check()?, &of, &decided, phases)
        };
        let outcome = self
            .run_locked(&request.key, phases, plug, roll_back_abandoned)
            .await
            .inspect_err(|error| self.report_failure(&request.pod, error))?;
        let attached = match (outcome, &decision) {
            (Outcome::Unchanged(all), _) => return Ok(all),
            (Outcome::Plugged(changes), Decision::Fixed(vif)) => {
                let uncommitted = Uncommitted::new(self, changes);
                phases.enter(Phase::WaitForVif);
                phases.lacks("active VIF: its source has not marked the VIF as active");
                let active = self.decider.until_active(&asked, vif);
                self.unless_stopping(in_flight.unless_deleted(active)).await?;
                uncommitted.commit(&request.key, phases).await?
            }
            (Outcome::Attached(changes) | Outcome::Plugged(changes), _) => changes.plugged,
        };
        self.journal.attached(&request.key, self.decider.source, &decision);
        Ok(attached)
    }

    /// Waits until what judges the pod is known. Without any key locked, like the wait for a VIF.
    async fn wait_for_policy(
        &self,
        pod: &PodRef,
        in_flight: &InFlightGuard,
        deadline: Instant,
        phases: &Phases,
    ) -> Result<(), AttachError> {
        if self.enforcer.is_known(pod) {
            return Ok(());
        }
        phases.enter(Phase::WaitForPolicy);
        let known = self.enforcer.until_known(pod, deadline);
        self.unless_stopping(in_flight.unless_deleted(known))
            .await
            .inspect_err(|error| self.report_failure(pod, error))
    }

    /// The attachments of an earlier ADD of the same key, if they show no drift. A repeated ADD waits for no
    /// decision.
    async fn attached_before(
        self: &Arc<Self>,
        request: &AttachRequest,
        phases: &Phases,
    ) -> Result<Option<Vec<Attachment>>, AttachError> {
        if self.registry.get(&request.key).is_none() {
            return Ok(None);
        }
        let (key, netns) = (request.key.clone(), request.netns.clone());
        let verify =
            move |engine: &Self, phases: &Phases| engine.unchanged(&key, &Netns::open(&netns)?, phases);
        self.run_locked(&request.key, phases, verify, |_, _| {}).await
    }

    fn attach_locked(
        &self,
        _: &NotOvertaken,
        request: &AttachRequest,
        decision: &Decision,
        phases: &Phases,
    ) -> Result<Outcome, AttachError> {
        crash::point(Step::AddBegun);
        phases.enter(Phase::Intent);
        let netns = Netns::open(&request.netns)?;
        if let Some(unchanged) = self.unchanged(&request.key, &netns, phases)? {
            return Ok(Outcome::Unchanged(unchanged));
        }
        // An attachment of another namespace, a half-made one, or one with drift.
        let before = self.registry.group(&request.key);
        let planned = self.plan(request, decision, &netns)?;
        self.check_ports(request, &planned, &before, phases)?;
        let replaced = self.check_replacement(&before, &planned, &netns, phases)?;
        Self::forward(&planned)?;
        let mut changes = Changes { plugged: Vec::with_capacity(planned.len()), replaced };
        let plugged = self.detach_all(&before, phases).and_then(|()| {
            for new in planned {
                phases.enter(Phase::Intent);
                changes.plugged.push(self.reserve_and_plug(&netns, new, phases)?);
            }
            Ok(())
        });
        if let Err(error) = plugged {
            self.roll_back(&changes, phases);
            return Err(error);
        }
        crash::point(Step::AddPlugged);
        if matches!(decision, Decision::Fixed(vif) if !is_active(vif)) {
            return Ok(Outcome::Plugged(changes));
        }
        self.commit(changes, phases).map(Outcome::Attached)
    }

    fn report_undecodable(&self, pod: &PodRef, error: &AttachError) {
        if let AttachError::Decide(DecideError::Vif(why)) = error {
            self.events.record(pod, Reason::VifRefused, why.to_string());
        }
    }

    fn report_failure(&self, pod: &PodRef, error: &AttachError) {
        let reason = match error {
            AttachError::Name(_) | AttachError::Refused(_) | AttachError::Decide(DecideError::Vif(_)) => {
                Reason::VifRefused
            }
            AttachError::Registry(RegistryError::NoAddress(_)) => Reason::NoAddress,
            AttachError::Ports(
                PortError::Taken { .. }
                | PortError::NoAddress(_)
                | PortError::Own { .. }
                | PortError::NoSctp(_),
            ) => Reason::HostPortRefused,
            // The runtime retries, or has deleted the container: nothing failed.
            AttachError::Overtaken | AttachError::Stopping | AttachError::Busy(_) => return,
            _ => Reason::PlugFailed,
        };
        self.events.record(pod, reason, chain(error));
    }
}

/// Rolls back an ADD whose caller went away before the answer.
fn roll_back_abandoned(engine: &Engine, outcome: Result<Outcome, AttachError>) {
    if let Ok(Outcome::Attached(changes) | Outcome::Plugged(changes)) = outcome {
        engine.roll_back(&changes, &Phases::untracked());
    }
}
