//! Which policies apply to an endpoint, and the ruleset that they make.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Compiler,
    bits::{Bit, Bits},
    predicate::PredicateId,
    rulesets::{Ruleset, RulesetKey},
};
use crate::{
    Direction, EndpointId, Mask, PolicyId, Refused, RulesetId,
    store::{CompiledPolicy, Group, NamedPort, Store, Work},
};

/// What judges an endpoint from now on; nothing if it is gone.
pub(super) struct Switch {
    pub(super) endpoint: EndpointId,
    /// Of ingress and egress.
    pub(super) rulesets: Option<(RulesetId, RulesetId)>,
    /// Whether what they deny passes.
    pub(super) audit: bool,
}

// === impl Store ===

impl Store {
    /// The policies that select the pods of a group, in the order of judgement.
    pub(crate) fn selecting(&self, group: &Group) -> Vec<Arc<CompiledPolicy>> {
        let Some(namespace) = &group.namespace else { return Vec::new() };
        let candidates = self.policies_for(namespace.text());
        let mut policies: Vec<_> = candidates.filter(|it| it.subject.holds(group, self)).cloned().collect();
        policies.sort_by(|a, b| (a.policy.tier, &a.policy.id).cmp(&(b.policy.tier, &b.policy.id)));
        policies
    }
}

// === impl Compiler ===

impl Compiler {
    /// Selects the policies of endpoints. Rulesets that do not exist yet get their rows.
    pub(super) fn select(&mut self, work: &mut Work) -> Result<Vec<Switch>, Refused> {
        let mut switches = Vec::new();
        let mut known: BTreeMap<RulesetKey, RulesetId> = BTreeMap::new();
        let mut all_new = Vec::new();
        self.store.add_subjects(work);
        let enforces = self.store.policies.len() > 0;
        if enforces != self.enforces {
            work.endpoints.extend(self.store.endpoints.iter().map(|(id, _)| *id));
        }
        for endpoint in std::mem::take(&mut work.endpoints) {
            let Some(local) = self.store.endpoints.get(&endpoint) else {
                switches.push(Switch { endpoint, rulesets: None, audit: false });
                continue;
            };
            if !enforces {
                let rulesets = Some((RulesetId::OPEN, RulesetId::OPEN));
                switches.push(Switch { endpoint, rulesets, audit: false });
                continue;
            }
            let party = self.store.party_of(&local.uid).map(|(_, party)| party);
            let group = party.and_then(|it| self.store.group(it)).cloned();
            let is_placed =
                |it: &Arc<Group>| it.namespace.as_ref().is_some_and(|it| self.store.namespaces.contains(it));
            let Some(group) = group.filter(is_placed) else {
                // What is known no more goes on to apply; not to another pod, and not with the first policy.
                if work.reused.contains(&endpoint) || !self.enforces {
                    switches.push(Switch { endpoint, rulesets: None, audit: false });
                }
                continue;
            };
            let policies = self.store.selecting(&group);
            let mut ruleset = |direction| {
                let (key, policies) = key(direction, &policies, &group.ports);
                if policies.is_empty() {
                    return Ok(RulesetId::OPEN);
                }
                if let Some(id) = known.get(&key).copied().or_else(|| self.rulesets.id(&key)) {
                    return Ok(id);
                }
                let (id, new) = self.compile(key.clone(), &policies, work)?;
                known.insert(key, id);
                all_new.push((id, new));
                Ok(id)
            };
            let rulesets = Some((ruleset(Direction::Ingress)?, ruleset(Direction::Egress)?));
            let namespace = group.namespace.as_ref().and_then(|it| self.store.namespaces.get(it));
            let audit = namespace.is_some_and(|it| it.is_audited);
            switches.push(Switch { endpoint, rulesets, audit });
        }
        for (id, ruleset) in all_new {
            let names: Vec<_> = ruleset.names.iter().map(|(name, _)| name.name.clone()).collect();
            for name in names.iter().filter(|name| !self.rulesets.uses_name(name)) {
                self.touch_port(name, work);
            }
            self.rulesets.add(id, ruleset, &self.classes, &mut self.out);
        }
        self.blocks.note(&self.store, work);
        Ok(switches)
    }

    fn compile(
        &mut self,
        key: RulesetKey,
        policies: &[Arc<CompiledPolicy>],
        work: &mut Work,
    ) -> Result<(RulesetId, Ruleset), Refused> {
        let bits = Bits::new(policies, key.direction, &key.ports)?;
        let id = self.rulesets.fresh(self.table);
        let ids: Vec<PolicyId> = policies.iter().map(|it| it.policy.id.clone()).collect();
        let blame = ids.iter().find(|it| work.policies.contains(it)).or(ids.last()).cloned();
        self.out.blame(blame.as_ref());
        let mut predicates: BTreeMap<PredicateId, Mask> = BTreeMap::new();
        for (n, bit) in (0..).zip(&bits.bits) {
            let Bit { predicates: of_bit, .. } = bit;
            for predicate in of_bit {
                let asked = self.predicates.ask(predicate, id, &self.store, &mut self.blocks, work);
                *predicates.entry(asked).or_default() |= Mask::bit(n);
                self.out.may_match(self.predicates.matches())?;
            }
        }
        let ruleset = Ruleset::new(key, &bits, predicates, &ids, blame);
        Ok((id, ruleset))
    }
}

/// The policies that say something about a direction, and the key of their ruleset.
fn key(
    direction: Direction,
    policies: &[Arc<CompiledPolicy>],
    ports: &[NamedPort],
) -> (RulesetKey, Vec<Arc<CompiledPolicy>>) {
    let policies: Vec<_> = policies.iter().filter(|it| it.rules(direction).is_some()).cloned().collect();
    let is_named = |port: &&NamedPort| {
        let rules = policies.iter().flat_map(|it| it.rules(direction).unwrap_or_default());
        rules.flat_map(|rule| &rule.ports.names).any(|name| name.means(port))
    };
    let ports = match direction {
        Direction::Ingress => ports.iter().filter(is_named).cloned().collect(),
        Direction::Egress => Vec::new(),
    };
    let versions = policies.iter().map(|it| it.version).collect();
    (RulesetKey { direction, policies: versions, ports }, policies)
}
