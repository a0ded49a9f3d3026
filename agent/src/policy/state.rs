//! What becomes of policies, for administrators.

use ferrule_proto::agent::{PolicyState, policy_state::Kind};

use super::Enforcer;

// === impl Enforcer ===

impl Enforcer {
    /// What is enforced now.
    pub fn state(&self) -> PolicyState {
        let (kind, reason) = self.read(|compiler| match compiler.policies().count() {
            0 => (Kind::Open, "the cluster has no policy: every packet passes".to_owned()),
            count => (Kind::Enforcing, format!("{count} policies")),
        });
        PolicyState { kind: kind.into(), reason }
    }
}
