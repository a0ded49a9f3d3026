//! What becomes of policies, for administrators.

use std::{
    collections::BTreeMap,
    sync::{MutexGuard, PoisonError},
};

use ferrule_policy::{PolicyId, object::DecodeError};
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

    /// The policies of which the newest version cannot be decoded, and why not.
    pub fn undecodable(&self) -> Vec<(PolicyId, String)> {
        self.0.undecodable().iter().map(|(id, (_, why))| (id.clone(), why.clone())).collect()
    }

    pub(super) fn set_undecodable(&self, error: &DecodeError, uid: &str) {
        let why = format!("{}: {}", error.field, error.reason);
        self.0.undecodable().insert(error.policy.clone(), (uid.to_owned(), why));
    }

    /// A newer version can be decoded or, with the UID, the policy is gone.
    pub(super) fn clear_undecodable(&self, id: &PolicyId, uid: Option<&str>) {
        let mut undecodable = self.0.undecodable();
        if uid.is_none_or(|uid| undecodable.get(id).is_some_and(|(of, _)| of == uid)) {
            undecodable.remove(id);
        }
    }
}

// === impl Shared ===

impl Shared {
    pub(super) fn set_held(&self, held: Vec<String>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }

    fn undecodable(&self) -> MutexGuard<'_, BTreeMap<PolicyId, (String, String)>> {
        self.undecodable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> (Kind, String) {
        let Progress { is_live, is_written, policies, .. } = *self.progress.borrow();
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
            return (Kind::Refused, format!("{first}{more}"));
        }
        match policies {
            0 => (Kind::Open, "no policy is known: every packet passes".to_owned()),
            1 => (Kind::Enforcing, "1 policy".to_owned()),
            count => (Kind::Enforcing, format!("{count} policies")),
        }
    }
}
