//! Parts of policies that are not understood: in the log of each node, and in Events of a few.

use std::sync::Arc;

use ferrule_policy::{Policy, PolicyId, object::DecodeError};

use crate::{
    events::{About, Events, Reason},
    policy::reporters::Reporters,
};

/// Reports problems of policies.
pub(super) struct Problems {
    events: Events,
    reporters: Arc<Reporters>,
}

// === impl Problems ===

impl Problems {
    pub(super) fn new(events: Events, reporters: Arc<Reporters>) -> Self {
        Self { events, reporters }
    }

    /// Reports what is not understood of a new version of a policy.
    pub(super) fn report(&self, policy: &Policy) {
        let problems: Vec<_> = policy.problems.iter().map(ToString::to_string).collect();
        let problems = problems.join("; ");
        tracing::warn!(policy = %policy.id, problems, "a policy is not fully understood");
        self.record(&policy.id, &policy.uid, &problems);
    }

    /// Reports a policy of which nothing is understood, so that an earlier version stays in force.
    pub(super) fn report_undecodable(&self, error: &DecodeError, uid: &str) {
        tracing::warn!(%error, "cannot decode a policy; its last decodable version applies, if there is one");
        let DecodeError { policy, field, reason } = error;
        let note = format!("{field}: {reason}; the last decodable version applies, if there is one");
        self.record(policy, uid, &note);
    }

    /// Writes an Event, on a few nodes.
    fn record(&self, id: &PolicyId, uid: &str, note: &str) {
        if !self.reporters.have_own(uid) {
            return;
        }
        let (about, namespace) = match &id.namespace {
            Some(namespace) => (About::NetworkPolicy, namespace.as_str()),
            None => (About::ClusterNetworkPolicy, ""),
        };
        self.events.record_object(about, (namespace, &id.name, uid), Reason::PolicyNotUnderstood, note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::Pods, metrics::EventMetrics};

    #[test]
    fn an_event_names_the_policy_and_what_follows() {
        let (events, mut queue) = Events::channel(EventMetrics::default(), Pods::default());
        let object = r#"{"metadata":{"namespace":"n","name":"p","uid":"u"},"spec":{"newer":1}}"#;
        let policy = ferrule_policy::object::network_policy(&serde_json::from_str(object).unwrap());
        let reporters = Arc::new(Reporters::new("a"));
        let problems = Problems::new(events, Arc::clone(&reporters));
        problems.report(&policy);
        let event = queue.try_recv().unwrap();
        assert!(queue.try_recv().is_err());
        assert_eq!(
            (event.about, event.namespace.as_str(), event.name.as_str()),
            (About::NetworkPolicy, "n", "p")
        );
        assert_eq!((event.uid.as_str(), event.reason), ("u", "PolicyNotUnderstood"));
        assert!(event.note.contains("newer") && event.note.contains("isolates its pods"), "{}", event.note);
        let object = r#"{"metadata":{"name":"c","uid":"u"},"spec":[]}"#;
        let error = ferrule_policy::object::cluster_network_policy(&serde_json::from_str(object).unwrap());
        problems.report_undecodable(&error.unwrap_err(), "u");
        let event = queue.try_recv().unwrap();
        assert_eq!((event.about, event.namespace.as_str()), (About::ClusterNetworkPolicy, ""));
        assert!(event.note.starts_with("spec: "), "{}", event.note);
        (0..200).for_each(|node| reporters.add(&format!("node-{node}")));
        problems.report(&policy);
        assert!(queue.try_recv().is_err(), "other nodes write it");
    }
}
