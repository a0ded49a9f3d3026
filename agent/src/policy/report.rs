//! What the thread tells: health, metrics, logs, and Events about policies that do not fit.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ferrule_policy::{Change, Compiler, PolicyId, Refused, Resource, Usage};

use super::{
    held::{Entry, Held},
    reporters::Reporters,
    unjudged::Unjudged,
};
use crate::{
    chain::chain,
    dataplane::MapFailure,
    events::{About, Events, Reason},
    health::{Health, Reporter},
    metrics::{PolicyMetrics, count},
};

/// Where the thread tells it.
pub struct Report {
    /// Unhealthy while something known is not in force.
    policy: Reporter,
    metrics: PolicyMetrics,
    events: Events,
    reporters: Arc<Reporters>,
    /// What Events have told about policies that do not fit.
    told: BTreeMap<Option<PolicyId>, String>,
}

const STAYS: &str = "what was in force before stays";
const ISOLATED: &str = "the pods that the policy selects are isolated until it fits";

// === impl Report ===

impl Report {
    pub fn new(
        health: &Health,
        metrics: PolicyMetrics,
        (events, reporters): (Events, Arc<Reporters>),
    ) -> Self {
        let why = "the policies of the cluster are not known yet";
        let policy = health.component("policy", false, why);
        Self { policy, metrics, events, reporters, told: BTreeMap::new() }
    }

    pub(super) fn compiled(&self, changes: usize, took: Duration) {
        self.metrics.changes.inc_by(changes as u64);
        self.metrics.compile.observe(took.as_secs_f64());
    }

    pub(super) fn written(&self, took: Duration) {
        self.metrics.write.observe(took.as_secs_f64());
    }

    pub(super) fn usage(&self, usage: &Usage) {
        self.metrics.classes.set(count(usage.classes));
        self.metrics.rulesets.set(count(usage.rulesets));
        self.metrics.policies.set(count(usage.policies));
        self.metrics.rules.set(count(usage.rules));
    }

    /// The maps have what is compiled.
    pub(super) fn in_force(&mut self, compiler: &Compiler, held: &Held, unjudged: &Unjudged) {
        if !held.is_empty() {
            return;
        }
        self.told.clear();
        let policies = compiler.usage().policies;
        if policies == 0 {
            self.policy.healthy("the cluster has no policy: pods may send and receive everything");
            return;
        }
        let Unjudged { surely, perhaps } = unjudged;
        let exceptions = surely.iter().chain(perhaps).map(|why| format!("; {why}")).collect::<String>();
        let why = format!("policies in force: {policies}{exceptions}");
        match surely {
            Some(_) => self.policy.unhealthy(why),
            None => self.policy.healthy(why),
        }
    }

    /// Rows could not be written.
    pub(super) fn not_written(&self, error: &MapFailure) {
        let error = chain(error);
        tracing::error!(
            error,
            "cannot write the rows of policies; new pods get no network until a retry succeeds"
        );
        self.policy.unhealthy(format!("the rows of policies cannot be written; retrying: {error}"));
    }

    /// Changes do not fit, and wait.
    pub(super) fn held(&mut self, all: &Held) {
        let waiting = |map| all.refused().filter(|it| it.why.resource == map).count();
        Resource::ALL.iter().for_each(|map| self.metrics.set_held(*map, count(waiting(*map))));
        if !all.is_empty() {
            self.refused(all.refused().map(|it| (held(it), it.why, Some(it.change))).collect());
        }
    }

    /// All that is known does not fit. `change` is that of the policy which is named.
    pub(super) fn state_refused(&mut self, why: &Refused, change: Option<&Change>) {
        self.refused(vec![(format!("{}; {STAYS}", refused(why)), why, change)]);
    }

    fn refused(&mut self, all: Vec<(String, &Refused, Option<&Change>)>) {
        let mut told = BTreeMap::new();
        let mut first = None;
        for (text, why, change) in all {
            let policy = why.policy.clone().or_else(|| policy_of(change?).map(|(id, _)| id.clone()));
            if self.told.get(&policy) != Some(&text) && !told.contains_key(&policy) {
                self.metrics.count_refused(why.resource);
                tracing::error!(why = text, "a change does not fit");
                let uid = change.and_then(policy_of).filter(|(id, _)| Some(*id) == policy.as_ref());
                let uid = uid.map(|(_, uid)| uid).unwrap_or_default();
                // The maps of all nodes are full at once, where they have equal pods.
                if let Some(policy) = policy.as_ref().filter(|_| self.reporters.have_own(uid)) {
                    let (about, namespace) = match &policy.namespace {
                        Some(namespace) => (About::NetworkPolicy, namespace.as_str()),
                        None => (About::ClusterNetworkPolicy, ""),
                    };
                    let object = (namespace, policy.name.as_str(), uid);
                    self.events.record_object(about, object, Reason::PolicyRefused, text.clone());
                }
            }
            first.get_or_insert_with(|| text.clone());
            told.insert(policy, text);
        }
        self.told = told;
        if let Some(first) = first {
            let more = self.told.len().saturating_sub(1);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            self.policy.unhealthy(format!("{first}{more}"));
        }
    }
}

/// What does not fit, and what holds meanwhile.
pub(super) fn held(Entry { why, is_stub, .. }: Entry<'_>) -> String {
    let meanwhile = if is_stub { ISOLATED } else { STAYS };
    format!("{}; {meanwhile}", refused(why))
}

/// Whether a change is of the policy whose rows do not fit.
pub(super) fn is_about(change: &Change, refused: &Refused) -> bool {
    policy_of(change).is_some_and(|(id, _)| Some(id) == refused.policy.as_ref())
}

/// What does not fit, in one line: use, capacity and setting.
pub(super) fn refused(why: &Refused) -> String {
    let Refused { resource, needed, capacity, policy } = why;
    let policy = policy.as_ref().map(|it| format!("the policy {it} does not fit: ")).unwrap_or_default();
    let (setting, share) = match resource {
        Resource::Bits => {
            return format!(
                "{policy}the rules for one pod and direction have {needed} sets of ports that differ, also \
                 after those of equal peers are joined, and {capacity} fit; use fewer ports and ranges"
            );
        }
        Resource::Matches => {
            return format!(
                "{policy}peers of rules match sets of pods' labels or address blocks {needed} times or more, and \
                 {capacity} are possible; select pods by what they have instead of by what they lack, and join \
                 blocks that contain each other"
            );
        }
        Resource::Subjects => ("--max-vifs", 1),
        Resource::Peers => ("--max-policy-peers", 2),
        Resource::Rules => ("--max-policy-rules", 2),
        Resource::Named => ("--max-policy-rules", 2 * 2),
        Resource::Blocks => ("--max-policy-rules", 2 * 4),
        Resource::Ports => ("--max-policy-rules", 2 * 8),
        Resource::Rulesets => ("--max-policy-rules", 2 * 32),
    };
    let least = needed.saturating_mul(share);
    format!("{policy}{resource} needs {needed} rows, and {capacity} fit; raise {setting} to at least {least}")
}

fn policy_of(change: &Change) -> Option<(&PolicyId, &str)> {
    match change {
        Change::Policy(policy) => Some((&policy.id, &policy.uid)),
        Change::PolicyGone { id, uid } => Some((id, uid)),
        _ => None,
    }
}
