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
        let own = if nodes.own.is_some() { "this node" } else { "without this node, which was deleted," };
        let known = format!("{own} and {others} others are known");
        if nodes.refused.is_empty() {
            self.health.healthy(known);
            return;
        }
        let count = nodes.refused.len();
        let mut text = format!("{known}; {count} ranges or addresses are refused");
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
