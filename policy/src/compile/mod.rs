//! The compiler: changes of the cluster in, changes of rows out.
//!
//! A change is applied in this order, so that each endpoint is judged by the old policies until its row is
//! switched, and by the new ones afterwards:
//!
//! 1. The store takes the change and says which groups, addresses and endpoints it may affect.
//! 2. Endpoints select their policies; rulesets that do not exist yet are compiled and get their rows.
//! 3. Addresses and edges of blocks move to their classes. Predicates of new rulesets split classes, which
//!    the old rulesets do not see.
//! 4. One row for each endpoint switches it to its rulesets.
//! 5. Rows of addresses that are no peers any more go. Then endpoints that judge an address otherwise than
//!    before get another epoch: a flow that is allowed with it is allowed by the new state.
//! 6. Rulesets without endpoints go, with the predicates that only they asked. Classes merge, which the new
//!    rulesets do not see.
//!
//! All state is in maps with an undo log: a change whose rows do not fit leaves no trace.

mod bits;
mod blocks;
mod classes;
mod freeze;
mod output;
pub(crate) mod predicate;
mod predicates;
mod renew;
mod rulesets;
mod select;
mod settle;

use std::{collections::BTreeSet, mem::take, net::IpAddr};

use self::{
    blocks::Blocks, classes::Classes, output::Output, predicates::Predicates, rulesets::Rulesets,
    select::Switch,
};
use crate::{
    Capacities, Change, ClassId, Delta, Direction, EndpointId, PolicyId, Refused, Resource, Rows, RulesetId,
    Table, Verdict,
    lookup::Reason,
    rows::{EndpointRow, Op, RuleKey},
    store::{Facet, Kind, Store, Uid, Work},
    trace::{Traffic, is_port},
};

/// Compiles policies into rows.
#[derive(Default)]
pub struct Compiler {
    pub(crate) store: Store,
    predicates: Predicates,
    blocks: Blocks,
    classes: Classes,
    rulesets: Rulesets,
    out: Output,
    table: Table,
    /// The epoch of the last change.
    epoch: u32,
    /// Whether the last change left a policy.
    enforces: bool,
}

/// How much a compiler holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Classes.
    pub classes: usize,
    /// Rulesets.
    pub rulesets: usize,
    /// Policies, also those that select no pod of this node.
    pub policies: usize,
    /// The rules of these policies.
    pub rules: usize,
}

/// What is known of the rule that decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// The first rule that may have decided.
    pub rule: RuleId,
    /// How many rules may have: more than one only for a packet whose ports are not known.
    pub of: usize,
}

/// A rule that decided.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RuleId {
    /// The policy.
    pub policy: PolicyId,
    /// The rule's number in its direction, from 0.
    pub rule: usize,
}

// === impl Compiler ===

impl Compiler {
    /// A compiler for an empty cluster, and empty maps.
    pub fn new(table: Table, capacities: Capacities) -> Self {
        Self { table, out: Output::new(capacities), ..Self::default() }
    }

    /// Gives endpoints epochs above one that an earlier compiler has used, so that flows of that time are
    /// judged again.
    #[must_use]
    pub fn after_epoch(self, epoch: u32) -> Self {
        Self { epoch, ..self }
    }

    /// Applies changes: all of them or, if the rows do not fit, none. The order of events about different
    /// objects is of no matter. At start, apply complete lists of all kinds at once: rows that follow from a
    /// part of the policies would be open.
    ///
    /// # Errors
    /// If a map is too small, or a pod needs too many different sets of ports. The caller may offer the
    /// changes again after others.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> Result<Delta, Refused> {
        let mut work = Work::default();
        changes.into_iter().for_each(|change| self.store.change(change, &mut work));
        let result = self.sync(work);
        if result.is_err() {
            self.store.rollback();
            self.predicates.rollback();
            self.blocks.rollback();
            self.classes.rollback();
            self.rulesets.rollback();
            self.out.rollback();
        }
        self.store.commit();
        self.predicates.commit();
        self.blocks.commit();
        self.classes.commit();
        self.rulesets.commit();
        self.store.words.sweep();
        let delta = self.out.commit();
        self.enforces = self.store.policies.len() > 0;
        result.map(|()| delta)
    }

    /// Gives back memory after large changes, of one map at a time: all of them take longer than a change
    /// should wait. Returns whether more may follow.
    pub fn pack(&mut self) -> bool {
        self.store.pack()
            || self.predicates.pack()
            || self.blocks.pack()
            || self.classes.pack()
            || self.rulesets.pack()
            || self.out.rows.pack()
    }

    /// The table of the rows.
    pub fn table(&self) -> Table {
        self.table
    }

    /// The highest epoch of the rows so far.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether the cluster has a policy.
    pub fn enforces(&self) -> bool {
        self.enforces
    }

    /// What the maps should contain.
    pub fn rows(&self) -> &Rows {
        &self.out.rows
    }

    /// The rows that a map has, and those that fit.
    pub fn usage_of(&self, map: Resource) -> (usize, usize) {
        self.out.usage(map)
    }

    /// How much the compiler holds.
    pub fn usage(&self) -> Usage {
        Usage {
            classes: self.classes.len(),
            rulesets: self.rulesets.len(),
            policies: self.store.policies.len(),
            rules: self.store.policies.iter().map(|(_, it)| it.policy.number_of_rules()).sum(),
        }
    }

    /// Whether a pod and its namespace are known, by the pod's UID.
    pub fn knows_pod(&self, uid: &str) -> bool {
        let party = self.store.party_of(&Uid::new(uid)).map(|(_, party)| party);
        let group = party.and_then(|it| self.store.group(it));
        let namespace = group.and_then(|it| it.namespace.as_ref());
        namespace.is_some_and(|it| self.store.namespaces.contains(it))
    }

    /// Namespace and name of the pod that has an address, as far as it is known.
    pub fn pod_with(&self, address: IpAddr) -> Option<(&str, &str)> {
        let party = self.store.owner(address.into()).filter(|party| party.kind == Kind::Pod)?;
        let namespace = self.store.group(party)?.namespace.as_ref()?;
        Some((namespace.text(), &party.name))
    }

    /// The endpoints without rows, because their pods or namespaces are not known yet: they pass nothing.
    pub fn pending(&self) -> impl Iterator<Item = EndpointId> {
        let endpoints = self.store.endpoints.iter().map(|(id, _)| *id);
        endpoints.filter(|id| self.out.rows.endpoint(*id).is_none())
    }

    /// The rule that decided: of those that share the bit the first whose peers contain the class, and whose
    /// ports the packet's. `traffic` is the protocol in the IP header and the destination port, if known.
    pub fn rule_of(&self, verdict: &Verdict, traffic: Option<(u8, u16)>) -> Option<Decided> {
        let Reason::Bit { ruleset, bit, class } = verdict.reason else { return None };
        let ruleset = self.rulesets.get(ruleset)?;
        let rules = ruleset.rules.get(usize::from(bit))?;
        let direction = ruleset.key.direction;
        let named = match direction {
            Direction::Ingress => ruleset.key.ports.as_slice(),
            Direction::Egress => self.classes.key(class).map_or(&[][..], |it| &it.ports),
        };
        let of = |(policy, rule): &(usize, usize)| {
            Some(RuleId { policy: ruleset.policies.get(*policy)?.clone(), rule: *rule })
        };
        let peers = rules.iter().filter_map(|id @ (policy, rule)| {
            let policy = self.store.policies.get(ruleset.policies.get(*policy)?)?;
            let rule = policy.rules(direction)?.get(*rule)?;
            self.is_peer(rule, class).then_some((id, rule))
        });
        let mut candidates: Vec<_> = match traffic {
            Some((protocol, port)) => {
                let traffic = Traffic { protocol, port, named };
                peers.filter(|(_, rule)| is_port(&rule.ports, &traffic)).collect()
            }
            None => peers.collect(),
        };
        let first = candidates.first().map(|(_, rule)| &rule.ports);
        // Rules of equal ports are a union: the first one decides.
        if traffic.is_some() || candidates.iter().all(|(_, rule)| Some(&rule.ports) == first) {
            candidates.truncate(1);
        }
        let rule = of(candidates.first().map(|(id, _)| *id).or(rules.first())?)?;
        Some(Decided { rule, of: candidates.len().max(1) })
    }

    /// The NetworkPolicies that isolate the subjects of a ruleset; `None` if the ruleset is gone.
    pub fn isolating(&self, ruleset: RulesetId) -> Option<&[PolicyId]> {
        self.rulesets.get(ruleset).map(|it| it.isolating.as_slice())
    }

    fn is_peer(&self, rule: &crate::store::CompiledRule, class: ClassId) -> bool {
        let Some(key) = self.classes.key(class) else { return rule.any };
        let holds = |it| self.predicates.id(it).is_some_and(|id| key.predicates.binary_search(&id).is_ok());
        rule.any || (rule.any_pod && key.is_pod) || rule.predicates.iter().any(holds)
    }

    fn sync(&mut self, mut work: Work) -> Result<(), Refused> {
        let switches = self.select(&mut work)?;
        self.out.fits()?;
        let (mut unused, frozen) = self.freeze(&switches, &mut work)?;
        for group in take(&mut work.groups) {
            self.predicates.refresh(group, &self.store, &mut work);
            self.out.may_match(self.predicates.matches())?;
        }
        let mut moved = self.settle(&mut work)?;
        // What the freeze found without a class still has its row, and was found once more.
        moved.keys.extend(frozen.keys);
        moved.is_translated |= frozen.is_translated;
        unused.append(&mut self.switch(&switches));
        self.out.fits()?;
        self.remove_gone(take(&mut moved.gone));
        self.renew_epochs(&moved);
        self.release(unused, &mut work);
        let merged = self.settle(&mut work)?;
        self.remove_gone(merged.gone);
        self.drop_empty(&work);
        self.out.fits()
    }

    /// Switches endpoints to their rulesets. Returns those that may be unused.
    fn switch(&mut self, switches: &[Switch]) -> BTreeSet<RulesetId> {
        let mut unused = BTreeSet::new();
        self.next_epoch();
        self.out.blame(None);
        for Switch { endpoint, rulesets, audit } in switches {
            let old = self.out.rows.endpoint(*endpoint).copied();
            let is_same = old.map(|row| (row.ingress, row.egress)) == *rulesets;
            if is_same && old.is_none_or(|row| row.audit == *audit) {
                continue;
            }
            for id in old.iter().flat_map(|row| [row.ingress, row.egress]) {
                self.rulesets.set_user(*endpoint, id, false);
                unused.insert(id);
            }
            let row = rulesets.map(|(ingress, egress)| {
                [ingress, egress].into_iter().for_each(|id| self.rulesets.set_user(*endpoint, id, true));
                EndpointRow { ingress, egress, table: self.table, epoch: self.epoch, audit: *audit }
            });
            self.out.emit(Op::Endpoint(*endpoint, row));
        }
        unused
    }

    /// Gives another epoch to endpoints whose rulesets judge a moved address otherwise than before. To be
    /// called when the rows of moved addresses are written and gone: what passes with the last epoch goes on
    /// to pass.
    fn renew_epochs(&mut self, moved: &settle::Moved) {
        let mut endpoints = BTreeSet::new();
        if moved.is_translated {
            // Flows that are older than the mark were judged by the address before the translation.
            let is_judged = |id: &EndpointId| {
                self.out.rows.endpoint(*id).is_some_and(|row| row.egress != RulesetId::OPEN)
            };
            endpoints.extend(self.store.endpoints.iter().map(|(id, _)| *id).filter(is_judged));
        }
        for (old, new) in &moved.keys {
            let is_pod = |key: &settle::Key| key.as_ref().is_some_and(|key| key.is_pod);
            // What begins or ceases to be a pod does so for rules about any pod, which ask no predicate.
            let ids: BTreeSet<_> = if is_pod(old) == is_pod(new) {
                let keys = [old, new].into_iter().flatten();
                keys.flat_map(|key| self.rulesets.asking(key, &self.predicates)).collect()
            } else {
                self.rulesets.all().collect()
            };
            for id in &ids {
                let Some(ruleset) = self.rulesets.get(*id) else { continue };
                let bits = |key: &settle::Key| key.as_ref().map_or(ruleset.header.any, |it| ruleset.bits(it));
                let named = |key: &settle::Key| key.as_ref().map(|it| ruleset.named(it)).unwrap_or_default();
                if bits(old) != bits(new) || named(old) != named(new) {
                    endpoints.extend(self.rulesets.users(*id));
                }
            }
        }
        let is_switched = |id| self.out.rows.endpoint(id).is_some_and(|row| row.epoch == self.epoch);
        // Rows of addresses are removed after the switch, which has given the present epoch already.
        if moved.keys.iter().any(|(_, new)| new.is_none()) && endpoints.iter().copied().any(is_switched) {
            self.next_epoch();
        }
        for endpoint in endpoints {
            if let Some(row) = self.out.rows.endpoint(endpoint) {
                let row = EndpointRow { epoch: self.epoch, ..*row };
                self.out.emit(Op::Endpoint(endpoint, Some(row)));
            }
        }
    }

    fn next_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1) & EndpointRow::LAST_EPOCH;
    }

    /// Removes rulesets that have no endpoint, and the predicates that only they asked.
    fn release(&mut self, candidates: BTreeSet<RulesetId>, work: &mut Work) {
        for id in candidates {
            if self.rulesets.users(id).next().is_some() {
                continue;
            }
            let Some(ruleset) = self.rulesets.remove(id, &mut self.out) else { continue };
            for predicate in ruleset.predicates.keys() {
                self.predicates.release(*predicate, id, &self.store, &mut self.blocks, work);
            }
            for (name, _) in ruleset.names.iter().filter(|(name, _)| !self.rulesets.uses_name(&name.name)) {
                self.touch_port(&name.name, work);
            }
        }
        self.blocks.note(&self.store, work);
    }

    /// Adds the addresses of pods with a named port to the work.
    fn touch_port(&self, name: &crate::store::Word, work: &mut Work) {
        for group in self.store.groups_with(&Facet::Port(name.clone())) {
            self.store.touch_members(group, work);
        }
    }

    /// Drops classes and groups without members.
    fn drop_empty(&mut self, work: &Work) {
        while let Some((class, key)) = self.classes.take_empty() {
            for ruleset in self.rulesets.asking(&key, &self.predicates) {
                self.out.emit(Op::Rule(RuleKey { ruleset, class }, None));
                self.out.remove_named(ruleset, class);
            }
        }
        for group in &work.left {
            if self.store.members_of(*group).next().is_none() {
                self.predicates.forget(*group);
                self.store.remove_group(*group);
            }
        }
    }
}
