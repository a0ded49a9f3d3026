//! CHECK, and the same comparison for a repeated or a waiting ADD.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use ferrule_proto::cni::AddResult;

use super::{
    engine::Engine,
    error::AttachError,
    phases::{Phase, Phases},
    prev_result,
};
use crate::{
    desired::{Kind, desired, summary, verify},
    plug::netns::Netns,
    registry::{Attachment, Key, State},
};

impl Engine {
    /// Compares the attachments of a container with kernel and maps, and with `prevResult`, the result of the
    /// whole chain's ADD, if the caller has it.
    ///
    /// # Errors
    /// If the container is not attached, or drifted.
    pub(crate) async fn verify(
        self: &Arc<Self>,
        key: Key,
        netns: PathBuf,
        prev_result: Option<AddResult>,
        phases: &Phases,
    ) -> Result<(), AttachError> {
        phases.enter(Phase::Queue);
        let _admission = self.admit_other()?;
        let of = key.clone();
        let verify = move |engine: &Self, phases: &Phases| {
            engine.verify_locked(&of, &netns, prev_result.as_ref(), phases)
        };
        self.run_locked(&key, phases, verify, |_, _| {}).await
    }

    fn verify_locked(
        &self,
        key: &Key,
        path: &Path,
        prev_result: Option<&AddResult>,
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
                let (found, expected) = (netns.id(), attachment.netns_id);
                return Err(AttachError::Differs(format!(
                    "wrong network namespace {found}, expected {expected}"
                )));
            }
            let desired = desired(attachment, self.dataplane.program_ids());
            let mut desired = desired.ok_or(AttachError::Unknown)?;
            if let Some(prev_result) = prev_result {
                prev_result::apply(&mut desired, path, prev_result).map_err(AttachError::Differs)?;
            }
            let found = verify(&desired, &netns, &self.dataplane)?;
            if !found.is_empty() {
                return Err(AttachError::Differs(summary(&found)));
            }
        }
        Ok(())
    }

    /// The attachments of an earlier ADD, if a repeated ADD in this namespace would make the same: committed,
    /// in the same namespace, and without drift that affects packets. The kernel reuses a namespace's number
    /// only after the namespace and with it the interface are gone.
    pub(super) fn unchanged(
        &self,
        key: &Key,
        netns: &Netns,
        phases: &Phases,
    ) -> Result<Option<Vec<Attachment>>, AttachError> {
        let group = self.with_netns(self.registry.group(key), netns)?;
        for before in &group {
            if before.state != State::Attached || before.netns_id != netns.id() {
                return Ok(None);
            }
            phases.enter(Phase::Verify);
            if let Some(drift) = self.drift(netns, before)? {
                tracing::warn!(key = %before.key, drift, "a repeated ADD found drift; replacing the attachment");
                return Ok(None);
            }
        }
        Ok(Some(group).filter(|group| !group.is_empty()))
    }

    /// Verifies plugged attachments that are not committed yet, which healing leaves alone.
    ///
    /// # Errors
    /// If one drifted, or cannot be read.
    pub(super) fn verify_plugged(&self, plugged: &[Attachment]) -> Result<(), AttachError> {
        for it in plugged {
            if let Some(drift) = self.drift(&Netns::open(&it.netns)?, it)? {
                return Err(AttachError::Damaged(drift));
            }
        }
        Ok(())
    }

    /// The deviations that affect packets, in one line; `None` without any. The others are left to healing.
    /// An interface with a foreign alias is an error: the agent would detach the pod and could not replace
    /// it.
    pub(super) fn drift(
        &self,
        netns: &Netns,
        attachment: &Attachment,
    ) -> Result<Option<String>, AttachError> {
        let Some(desired) = desired(attachment, self.dataplane.program_ids()) else { return Ok(None) };
        let found = verify(&desired, netns, &self.dataplane)?;
        if found.is_empty() {
            return Ok(None);
        }
        let drift = summary(&found);
        if found.iter().any(|it| it.kind == Kind::LinkStamp) {
            return Err(AttachError::Restamped(drift));
        }
        if found.iter().any(|it| it.kind.affects_packets()) {
            return Ok(Some(drift));
        }
        tracing::warn!(key = %attachment.key, drift, "an ADD found drift, which healing repairs in place");
        Ok(None)
    }
}
