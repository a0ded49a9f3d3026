//! The last step of an ADD: the attachments become durable.

use super::{
    engine::Engine,
    error::AttachError,
    phases::{Phase, Phases},
    rollback::Changes,
};
use crate::{
    crash::{self, Step},
    registry::{Attachment, State},
};

impl Engine {
    /// Makes plugged attachments durable.
    ///
    /// # Errors
    /// If the store fails; the changes are rolled back.
    pub(super) fn commit(&self, changes: Changes, phases: &Phases) -> Result<Changes, AttachError> {
        phases.enter(Phase::Commit);
        for attachment in in_commit_order(&changes.plugged) {
            if let Err(error) = self.registry.advance(attachment.clone(), State::Attached) {
                self.roll_back(&changes, phases);
                return Err(error.into());
            }
        }
        crash::point(Step::AddCommitted);
        let attached = |it| Attachment { state: State::Attached, ..it };
        let changes = Changes { plugged: changes.plugged.into_iter().map(attached).collect(), ..changes };
        for Attachment { key, pod, vif, .. } in &changes.plugged {
            tracing::info!(%key, %pod, addresses = %vif.addresses, "attached");
        }
        Ok(changes)
    }
}

/// The requested interface last: after a crash in between, recovery finds the requested one uncommitted, and
/// rolls back all of them. Otherwise a repeated ADD would find it attached, and succeed without the others.
fn in_commit_order(plugged: &[Attachment]) -> impl Iterator<Item = &Attachment> {
    plugged.iter().rev()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::attachment;

    #[test]
    fn the_requested_interface_is_committed_last() {
        let all = [
            attachment("eth0", None, 2),
            attachment("eth1", Some("eth0"), 3),
            attachment("eth2", Some("eth0"), 4),
        ];
        let order: Vec<_> = in_commit_order(&all).map(|it| it.key.ifname.as_str()).collect();
        assert_eq!(order.last(), Some(&"eth0"), "{order:?}");
        assert_eq!(order.len(), 3);
    }
}
