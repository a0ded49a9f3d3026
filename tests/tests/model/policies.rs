//! Policies: they come and go, and pods are relabelled, also while no agent runs. Who reaches whom follows
//! from the policies and the labels alone.

use std::{collections::BTreeMap, net::IpAddr, process::Command, time::Duration};

use anyhow::{Context as _, ensure};
use fastrand::Rng;
use ferrule_tests::{
    apiserver::{Resource, objects},
    dist,
    pod::NAMESPACE,
    sys,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    fixture::Fixture,
    model::{Api, Id, Model},
    operations::{Damage, SLOTS},
};

/// Something happens to a policy or to the label of a pod; nothing, if that does not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyEvent {
    Create { policy: u8, says: Says },
    Delete { policy: u8 },
    Relabel { slot: u8, app: u8 },
}

/// A policy that lets its pods receive, or send, only from or to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Says {
    /// The value of the label; `NO_APP`: all pods.
    pub subject: u8,
    pub egress: bool,
    /// `NO_APP`: no pod.
    pub peer: u8,
}

/// By number.
pub type Policies = BTreeMap<u8, Says>;

/// No label.
pub const NO_APP: u8 = 0;
const POLICIES: u8 = 3;
/// Values of the label, with none.
const APPS: u8 = 3;
/// Pairs of pods after each step.
const PAIRS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(30);

// === impl PolicyEvent ===

impl PolicyEvent {
    pub fn random(rng: &mut Rng) -> Self {
        let policy = rng.u8(..POLICIES);
        match rng.u8(..10) {
            0..5 => {
                let says = Says { subject: rng.u8(..APPS), egress: rng.bool(), peer: rng.u8(..APPS) };
                Self::Create { policy, says }
            }
            5 => Self::Delete { policy },
            _ => Self::Relabel { slot: rng.u8(..SLOTS), app: rng.u8(1..APPS) },
        }
    }
}

// === impl Says ===

impl Says {
    fn spec(self) -> Value {
        let Self { subject, egress, peer } = self;
        let selector = |app: u8| {
            if app == NO_APP { json!({}) } else { json!({"matchLabels": {"app": app.to_string()}}) }
        };
        let (kind, rules, peers) =
            if egress { ("Egress", "egress", "to") } else { ("Ingress", "ingress", "from") };
        let allowed =
            if peer == NO_APP { json!([]) } else { json!([{ peers: [{"podSelector": selector(peer)}] }]) };
        json!({"podSelector": selector(subject), "policyTypes": [kind], rules: allowed})
    }
}

// === impl Model ===

impl Model {
    /// Whether a pod reaches another one by ICMP; `None` unless both are attached once, undamaged, and known
    /// by the API, so that policies can know them.
    pub fn reaches(&self, from: Id, to: Id) -> Option<bool> {
        let (from, to) = (self.app(from)?, self.app(to)?);
        let lets = |is_egress, own, other| {
            let about = |it: &&Says| it.egress == is_egress && (it.subject == NO_APP || it.subject == own);
            let mut judging = self.api.policies.values().filter(about).peekable();
            judging.peek().is_none() || judging.any(|it| it.peer != NO_APP && it.peer == other)
        };
        Some(lets(true, from, to) && lets(false, to, from))
    }

    fn app(&self, id: Id) -> Option<u8> {
        let attached = self.attached.get(&id).filter(|it| self.is_whole(id, it))?;
        let name = &self.sandboxes.get(id)?.name;
        let pod = self.api.pods.get(name).filter(|pod| attached.uids.iter().eq([&pod.uid]))?;
        let same = self.attached.values().filter(|it| it.uids.contains(&pod.uid)).count();
        (same == 1).then_some(pod.app)
    }
}

// === impl Api ===

impl Api {
    /// Whether an ADD fails because the API does not deliver what policies ask about a pod.
    pub fn lacks_what_policies_ask(&self, name: &str, uid: &str) -> bool {
        !self.policies.is_empty() && self.pods.get(name).is_none_or(|pod| pod.uid != uid)
    }
}

// === impl Fixture ===

impl Fixture<'_> {
    /// Applies the event to the API and to the model.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn change_policies(&mut self, event: PolicyEvent) -> anyhow::Result<()> {
        match event {
            PolicyEvent::Create { policy, says } => {
                let object = objects::network_policy(NAMESPACE, &name(policy), says.spec());
                match self.model.api.policies.insert(policy, says) {
                    Some(_) => self.cluster.api.update(Resource::NetworkPolicies, object)?,
                    None => self.cluster.api.create(Resource::NetworkPolicies, object)?,
                };
            }
            PolicyEvent::Delete { policy } => {
                if self.model.api.policies.remove(&policy).is_none() {
                    return Ok(());
                }
                self.cluster.api.delete(Resource::NetworkPolicies, NAMESPACE, &name(policy))?;
            }
            PolicyEvent::Relabel { slot, app } => {
                let name = format!("p{slot}");
                let Some(pod) = self.model.api.pods.get_mut(&name) else { return Ok(()) };
                pod.app = app;
                let label = json!({"metadata": {"labels": {"app": app.to_string()}}});
                self.cluster.api.patch(Resource::Pods, NAMESPACE, &name, label)?;
            }
        }
        self.log(format!("{event:?}"));
        self.count(format!("{event:?}").split(' ').next().unwrap_or_default().to_owned() + " (policy)");
        Ok(())
    }

    /// Deletes all policies, and waits until the agent follows nothing for them.
    ///
    /// # Errors
    /// If it goes on to do so.
    pub fn delete_policies(&mut self) -> anyhow::Result<()> {
        (0..POLICIES).try_for_each(|policy| self.change_policies(PolicyEvent::Delete { policy }))?;
        sys::wait_until("the cluster is open", TIMEOUT, || {
            Ok(self.node.http("/readyz?verbose")?.1.contains("open: the cluster has no policy"))
        })
    }

    /// Waits until all policies are in force: pairs of pods are judged, by the agent's policies and by its
    /// rows, as the model says; and no row deviates.
    ///
    /// # Errors
    /// If that does not happen.
    pub fn expect_policies(&mut self) -> anyhow::Result<()> {
        let count = self.model.api.policies.len();
        sys::wait_until(&format!("{count} policies are in force"), TIMEOUT, || {
            Ok(self.node.metric("ferrule_policy_policies")? == count as f64)
        })?;
        if count == 0 {
            return Ok(());
        }
        let ids: Vec<Id> = self.model.attached.keys().copied().collect();
        let pairs = ids.iter().flat_map(|from| ids.iter().map(move |to| (*from, *to)));
        let pairs = pairs.filter_map(|(from, to)| {
            let expected = self.model.reaches(from, to).filter(|_| from != to)?;
            Some(((from, to), expected))
        });
        let mut pairs: Vec<_> = pairs.collect();
        // Others after each step.
        let first = self.history.len() * PAIRS % pairs.len().max(1);
        pairs.rotate_left(first);
        for ((from, to), expected) in pairs.into_iter().take(PAIRS) {
            self.expect_verdict(from, to, expected)?;
            self.count(format!("verdict {expected}"));
        }
        // The row of an interface that has lost its entry may be lost, too.
        if self.model.attached.values().any(|it| it.damage.contains(&Damage::VifsEntry)) {
            return Ok(());
        }
        sys::wait_until("no row of policies deviates", TIMEOUT, || {
            let output = Command::new(dist::binary("ferrulectl")?).args(["verify", "-o", "json"]).output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(!text.contains("policy-rows"), "{text}");
            Ok(true)
        })
    }

    fn expect_verdict(&self, from: Id, to: Id, expected: bool) -> anyhow::Result<()> {
        let name = |id: Id| self.model.sandboxes.get(id).map(|it| format!("{NAMESPACE}/{}", it.name));
        let (from, to) = name(from).zip(name(to)).context("no such sandbox")?;
        // 3: policies and rows disagree; 2: no answer.
        let wanted = if expected { 0 } else { 1 };
        sys::wait_until(&format!("{from} reaches {to}: {expected}"), TIMEOUT, || {
            let trace = ["policy", "trace", "--from", &from, "--to", &to, "--port", "icmp"];
            let output = Command::new(dist::binary("ferrulectl")?).args(trace).output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(output.status.code() == Some(wanted), "{:?}: {text}", output.status);
            ensure!(text.contains("same"), "the rows were not asked: {text}");
            Ok(true)
        })
    }

    /// Whether a ping shall be answered, which the node answers in any case; `None`: policies may deny it.
    pub fn shall_reach(&self, from: Id, to: IpAddr) -> Option<bool> {
        if self.model.api.policies.is_empty() || !self.model.agent_runs {
            return self.model.api.policies.is_empty().then_some(true);
        }
        let mut others = self.model.attached.iter().filter(|(_, it)| it.addresses.contains(&to));
        match others.next() {
            Some((other, _)) => self.model.reaches(from, *other),
            None => self.model.reaches(from, from).map(|_| true),
        }
    }
}

fn name(policy: u8) -> String {
    format!("policy-{policy}")
}
