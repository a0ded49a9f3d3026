//! Parts of policies that are not understood: in the log of each node, and in Events of a few.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use ferrule_policy::{Policy, PolicyId, object::DecodeError};

use crate::events::{About, Events, Reason};

/// Reports problems of policies.
pub(super) struct Problems {
    /// The name of this node.
    own: String,
    events: Events,
}

/// Nodes that write an Event about the same policy: all nodes see the problem, and some may be away.
const REPORTERS: usize = 3;

// === impl Problems ===

impl Problems {
    pub(super) fn new(own: &str, events: Events) -> Self {
        Self { own: own.to_owned(), events }
    }

    /// Whether this node is one of those that write Events about a policy. All nodes choose the same ones.
    pub(super) fn is_reporter<'a>(&self, uid: &str, nodes: impl Iterator<Item = &'a str>) -> bool {
        let rank = |node: &str| {
            let mut hasher = DefaultHasher::new();
            (uid, node).hash(&mut hasher);
            hasher.finish()
        };
        let own = rank(&self.own);
        nodes.filter(|node| *node != self.own && rank(node) < own).take(REPORTERS).count() < REPORTERS
    }

    /// Reports what is not understood of a new version of a policy.
    pub(super) fn report(&self, policy: &Policy, writes_event: bool) {
        let problems: Vec<_> = policy.problems.iter().map(ToString::to_string).collect();
        let problems = problems.join("; ");
        tracing::warn!(policy = %policy.id, problems, "a policy is not fully understood");
        if writes_event {
            self.record(&policy.id, &policy.uid, &problems);
        }
    }

    /// Reports a policy of which nothing is understood, so that an earlier version stays in force.
    pub(super) fn report_undecodable(&self, error: &DecodeError, uid: &str, writes_event: bool) {
        tracing::warn!(%error, "cannot decode a policy; its last decodable version applies, if there is one");
        if writes_event {
            let DecodeError { policy, field, reason } = error;
            let note = format!("{field}: {reason}; the last decodable version applies, if there is one");
            self.record(policy, uid, &note);
        }
    }

    fn record(&self, id: &PolicyId, uid: &str, note: &str) {
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

    fn problems(own: &str) -> Problems {
        Problems::new(own, Events::disabled(EventMetrics::default()))
    }

    #[test]
    fn three_nodes_of_many_write_events_about_a_policy_and_other_nodes_about_another() {
        let names: Vec<_> = (0..200).map(|i| format!("node-{i}")).collect();
        let reporters = |uid: &str| -> Vec<_> {
            let nodes = || names.iter().map(String::as_str);
            names.iter().filter(|own| problems(own).is_reporter(uid, nodes())).cloned().collect()
        };
        let (first, second) = (reporters("u1"), reporters("u2"));
        assert_eq!((first.len(), second.len()), (3, 3));
        assert_ne!(first, second);
    }

    #[test]
    fn a_node_that_knows_few_others_writes_events() {
        for nodes in [&[][..], &["a"], &["b", "c"], &["a", "b", "c"]] {
            assert!(problems("a").is_reporter("u", nodes.iter().copied()), "{nodes:?}");
        }
    }

    #[test]
    fn an_event_names_the_policy_and_what_follows() {
        let (events, mut queue) = Events::channel(EventMetrics::default(), Pods::default());
        let object = r#"{"metadata":{"namespace":"n","name":"p","uid":"u"},"spec":{"newer":1}}"#;
        let policy = ferrule_policy::object::network_policy(&serde_json::from_str(object).unwrap());
        let problems = Problems::new("a", events);
        problems.report(&policy, false);
        problems.report(&policy, true);
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
        problems.report_undecodable(&error.unwrap_err(), "u", true);
        let event = queue.try_recv().unwrap();
        assert_eq!((event.about, event.namespace.as_str()), (About::ClusterNetworkPolicy, ""));
        assert!(event.note.starts_with("spec: "), "{}", event.note);
    }
}
