//! ADD: decide the VIF, reserve, plug, commit.

use std::{path::PathBuf, sync::Arc};

use tokio::time::Instant;

use super::{
    engine::Engine,
    error::AttachError,
    in_flight::InFlightGuard,
    phases::{Phase, Phases},
    uncommitted::Uncommitted,
};
use crate::{
    chain::chain,
    cluster::{Annotations, PodRef},
    crash::{self, Step},
    decide::{DecideError, Decision, Request, is_active},
    events::Reason,
    plug::netns::Netns,
    registry::{Attachment, Key, RegistryError},
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
}

/// What the locked part of an ADD found or made. The requested interface comes first.
enum Outcome {
    /// Plugged and committed by this call.
    Attached(Vec<Attachment>),
    /// Plugged by this call, and not committed before its VIF is active.
    Plugged(Vec<Attachment>),
    /// Attached by an earlier call, and without drift.
    Unchanged(Vec<Attachment>),
}

// === impl Engine ===

impl Engine {
    /// Attaches a container. Idempotent: an attachment without drift is returned as it is. The requested
    /// interface comes first, then the further interfaces of its VIF.
    ///
    /// # Errors
    /// See [`AttachError`]; the attempt is rolled back.
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
        let pod = Request { pod: &request.pod, annotations: request.annotations.as_ref() };
        let decide = self.decider.decide(&pod, deadline);
        let decision = self
            .unless_stopping(in_flight.unless_deleted(decide))
            .await
            .inspect_err(|error| self.report_undecodable(&request.pod, error))?;
        let (of, decided, guard) = (request.clone(), decision.clone(), Arc::clone(&in_flight));
        let plug = move |engine: &Self, phases: &Phases| engine.attach_locked(&of, &decided, &guard, phases);
        let outcome = self
            .run_locked(&request.key, phases, plug, roll_back_abandoned)
            .await
            .inspect_err(|error| self.report_failure(&request.pod, error))?;
        match (outcome, decision) {
            (Outcome::Plugged(plugged), Decision::Fixed(vif)) => {
                let uncommitted = Uncommitted::new(self, plugged);
                phases.enter(Phase::WaitForVif);
                let active = self.decider.until_active(&pod, &vif, deadline);
                self.unless_stopping(in_flight.unless_deleted(active)).await?;
                uncommitted.commit(&request.key, phases).await
            }
            (Outcome::Attached(all) | Outcome::Plugged(all) | Outcome::Unchanged(all), _) => Ok(all),
        }
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
        request: &AttachRequest,
        decision: &Decision,
        in_flight: &InFlightGuard,
        phases: &Phases,
    ) -> Result<Outcome, AttachError> {
        in_flight.check()?;
        crash::point(Step::AddBegun);
        phases.enter(Phase::Intent);
        let netns = Netns::open(&request.netns)?;
        if let Some(unchanged) = self.unchanged(&request.key, &netns, phases)? {
            return Ok(Outcome::Unchanged(unchanged));
        }
        // An attachment of a namespace that is gone, a half-made one, or one with drift.
        self.detach_all(&self.registry.group(&request.key), phases)?;
        phases.enter(Phase::Intent);
        let planned = self.plan(request, decision, &netns)?;
        let mut plugged = Vec::with_capacity(planned.len());
        for new in planned {
            phases.enter(Phase::Intent);
            match self.reserve_and_plug(&netns, new, phases) {
                Ok(attachment) => plugged.push(attachment),
                Err(error) => {
                    self.roll_back(&plugged, phases);
                    return Err(error);
                }
            }
        }
        crash::point(Step::AddPlugged);
        if matches!(decision, Decision::Fixed(vif) if !is_active(vif)) {
            return Ok(Outcome::Plugged(plugged));
        }
        self.commit(plugged, phases).map(Outcome::Attached)
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
            // The runtime retries, or has deleted the container: nothing failed.
            AttachError::Overtaken | AttachError::Stopping | AttachError::Busy(_) => return,
            _ => Reason::PlugFailed,
        };
        self.events.record(pod, reason, chain(error));
    }
}

/// Rolls back an ADD whose caller went away before the answer.
fn roll_back_abandoned(engine: &Engine, outcome: Result<Outcome, AttachError>) {
    if let Ok(Outcome::Attached(attachments) | Outcome::Plugged(attachments)) = outcome {
        engine.roll_back(&attachments, &Phases::untracked());
    }
}
