//! Reports what is refused: in the health component, in the log, and in Events about the nodes.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{Nodes, Refused, resolve::Resolved};
use crate::{
    events::{Events, Reason},
    health::Reporter,
};

/// What was reported before.
pub struct Refusals {
    health: Reporter,
    events: Events,
    logged: BTreeSet<Refused>,
    sent: BTreeSet<Refused>,
}

/// Lines and Events of one batch; a misconfigured controller gives every node a wrong range at once.
const MAX_AT_ONCE: usize = 8;
/// Refusals in the health component's text.
const MAX_SHOWN: usize = 3;

// === impl Refusals ===

impl Refusals {
    /// `health`: of a component that ADD does not need.
    pub fn new(health: Reporter, events: Events) -> Self {
        Self { health, events, logged: BTreeSet::new(), sent: BTreeSet::new() }
    }

    /// The list of nodes lacks this node.
    pub(super) fn await_own(&self, own: &str) {
        self.health.starting(format!(
            "the cluster has no Node {own} yet: the kubelet registers it; if it has another name, set --node-name"
        ));
    }

    /// Reports what was not refused before. The agents of all nodes see a conflict: those of the nodes that
    /// have a part in it write an Event, all others a line.
    pub(super) fn report(&mut self, Resolved { nodes, own_part }: &Resolved) {
        self.report_health(nodes);
        let logged: BTreeSet<_> = nodes.refused.iter().cloned().collect();
        let new: Vec<_> = logged.difference(&self.logged).collect();
        for Refused { node, what, why, .. } in new.iter().take(MAX_AT_ONCE) {
            tracing::warn!(node, what, why, "refusing what a Node object says");
        }
        if let Some(more @ 1..) = new.len().checked_sub(MAX_AT_ONCE) {
            tracing::warn!(more, "refusing more of what Node objects say: see `ferrulectl status`");
        }
        self.logged = logged;

        let parts: BTreeSet<_> = own_part.iter().cloned().collect();
        for Refused { node, uid, what, why, .. } in parts.difference(&self.sent).take(MAX_AT_ONCE) {
            let note = format!("no node routes {what} of the node {node}: {why}");
            self.events.record_node(node, uid, Reason::NodeRangeRefused, note);
        }
        self.sent = parts;
    }

    fn report_health(&self, nodes: &Nodes) {
        let others = nodes.others.len();
        let known = match nodes.own {
            Some(_) => format!("this node is known; other nodes: {others}"),
            None => format!("the object of this node was deleted; other nodes: {others}"),
        };
        if nodes.refused.is_empty() {
            self.health.healthy(known);
            return;
        }
        let count = nodes.refused.len();
        let mut text = format!("{known}; ranges or addresses refused: {count}");
        for Refused { node, what, why, .. } in nodes.refused.iter().take(MAX_SHOWN) {
            // Writing to a String cannot fail.
            let _ = write!(text, "; {what} of {node}: {why}");
        }
        if count > MAX_SHOWN {
            text.push_str("; …");
        }
        self.health.unhealthy(text);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::resolve::resolve, super::testing::Short, super::testing::short, *};
    use crate::{
        cluster::Pods,
        events::Event,
        health::{Health, State},
        metrics::EventMetrics,
    };

    struct Test {
        refusals: Refusals,
        queue: tokio::sync::mpsc::Receiver<Event>,
        health: Health,
    }

    impl Test {
        fn new() -> Self {
            let (events, queue) = Events::channel(EventMetrics::default(), Pods::default());
            let health = Health::default();
            let reporter = health.component("cluster", false, "not listed yet");
            Self { refusals: Refusals::new(reporter, events), queue, health }
        }

        /// The Events about these nodes.
        fn report(&mut self, nodes: &[Short]) -> Vec<Event> {
            let known: Vec<_> = nodes.iter().map(Short::object).collect();
            self.refusals.report(&resolve(&known, "own", &[]));
            std::iter::from_fn(|| self.queue.try_recv().ok()).collect()
        }
    }

    #[test]
    fn a_conflict_with_this_node_is_an_event_about_the_refused_node_once() {
        let own = short("own", 1, &["10.244.1.0/24"], &[]);
        let both = [own.clone(), short("b", 2, &["10.244.1.0/24"], &[])];
        let mut test = Test::new();
        let [event] = test.report(&both).try_into().unwrap();
        assert_eq!((event.name.as_str(), event.uid.as_str()), ("b", "uid-b"));
        assert_eq!((event.reason, event.is_warning), ("NodeRangeRefused", true));
        assert!(event.note.contains("10.244.1.0/24 of the node b") && event.note.contains("the node own"));
        assert_eq!(test.health.components()["cluster"].state, State::Unhealthy);
        assert_eq!(test.report(&both), [], "said already");
        assert_eq!(test.report(&[own]), []);
        assert_eq!(test.health.components()["cluster"].state, State::Healthy);
        assert_eq!(test.report(&both).len(), 1, "again");
    }

    #[test]
    fn a_conflict_of_others_is_no_event_and_their_agents_report_it() {
        let nodes = [short("a", 1, &["10.244.1.0/24"], &[]), short("b", 2, &["10.244.1.0/24"], &[])];
        let mut test = Test::new();
        assert_eq!(test.report(&[&nodes[..], &[short("own", 3, &[], &[])]].concat()), []);
        assert!(test.health.components()["cluster"].why.contains("ranges or addresses refused: 1"));
    }

    #[test]
    fn a_thousand_conflicts_at_once_are_eight_events_and_a_short_text() {
        let mut nodes = vec![short("own", 1, &["10.0.0.0/8"], &[])];
        nodes.extend((0..200).map(|at| short(&format!("n{at}"), 2, &[&format!("10.244.{at}.0/24")], &[])));
        let mut test = Test::new();
        assert_eq!(test.report(&nodes).len(), 8);
        let why = test.health.components()["cluster"].why.clone();
        assert!(why.contains("refused: 200") && why.len() < 1000, "{why}");
    }

    #[test]
    fn the_texts_about_this_node_name_what_is_wrong_with_it() {
        let mut test = Test::new();
        let [event] = test.report(&[short("own", 1, &["ten"], &[])]).try_into().unwrap();
        assert_eq!(event.name, "own");
        assert!(event.note.contains("\"ten\""), "{}", event.note);
    }
}
