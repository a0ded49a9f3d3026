//! What becomes of policies, for administrators.

use std::sync::PoisonError;

use ferrule_proto::agent::{PolicyState, policy_state::Kind};

use super::{
    Enforcer,
    shared::{Progress, Shared},
};

// === impl Enforcer ===

impl Enforcer {
    /// What is enforced now.
    pub fn state(&self) -> PolicyState {
        let (kind, reason) = self.0.state();
        PolicyState { kind: kind.into(), reason }
    }
}

// === impl Shared ===

impl Shared {
    pub(super) fn set_held(&self, held: Vec<String>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }

    fn state(&self) -> (Kind, String) {
        let Progress { is_live, is_written, .. } = *self.progress.borrow();
        if let Some(why) = self.obstacle() {
            return (Kind::Refused, format!("{why}; pods are judged as before, and new pods get no network"));
        }
        let expected = self.inbox().expected.clone();
        if let Some(why) = expected {
            return (Kind::Gathering, format!("{why}; pods are judged as before, and new pods wait"));
        }
        if !is_live {
            return (
                Kind::Gathering,
                "the policies of the cluster are not listed yet; new pods wait".to_owned(),
            );
        }
        if !is_written {
            let why = "the rows cannot be written; retrying; `ferrulectl status` has the cause at policy";
            return (Kind::Refused, why.to_owned());
        }
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((first, more)) = held.split_first() {
            let more = if more.is_empty() { String::new() } else { format!("; and {} more", more.len()) };
            return (Kind::Refused, format!("{first}; what was in force before stays{more}"));
        }
        match self.compiler().usage().policies {
            0 => (Kind::Open, "no policy is known: every packet passes".to_owned()),
            1 => (Kind::Enforcing, "1 policy".to_owned()),
            count => (Kind::Enforcing, format!("{count} policies")),
        }
    }
}
