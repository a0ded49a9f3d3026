//! Changes of a namespace's labels, which concern its pods in both roles.
//!
//! Such a change may move pods to other classes, as peers, and give them other rulesets, as subjects. In
//! between, old rules would judge by new labels, and might allow what neither the old nor the new state does.
//! So the subjects are judged by copies of their old rulesets meanwhile, which go on to see the old labels.
//!
//! A change may have edits of pods' labels, too. They count as earlier than those of namespaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::take,
};

use super::{Compiler, rulesets::Ruleset, select::Switch, settle::Moved};
use crate::{
    EndpointId, Refused, RulesetId,
    rows::{EndpointRow, Op},
    store::Work,
};

impl Compiler {
    /// Gives copies of their old rulesets to endpoints that are about to get other ones, if labels that a
    /// ruleset sees change with that. Returns the rulesets that may be unused, and what has moved: a pod that
    /// has come to a group of copied predicates moves here.
    pub(super) fn freeze(
        &mut self,
        switches: &[Switch],
        work: &mut Work,
    ) -> Result<(BTreeSet<RulesetId>, Moved), Refused> {
        let mut unused = BTreeSet::new();
        let (created, before) = (take(&mut work.created), take(&mut work.namespaces));
        // What has come to a new group is seen as it was until its row is written.
        if work.groups.is_subset(&created) {
            return Ok((unused, Moved::default()));
        }
        let seen = take(&mut work.addresses);
        // The copies ask what is true of their members, too.
        for group in created {
            let store = &self.store;
            let labels_of =
                |it: &_| before.get(it).map_or_else(|| store.namespace_labels(it), Option::as_ref);
            self.predicates.refresh_with(group, labels_of, store, work);
        }
        let mut rows: Vec<(EndpointId, EndpointRow)> = Vec::new();
        let mut copies: BTreeMap<RulesetId, RulesetId> = BTreeMap::new();
        for Switch { endpoint, rulesets, .. } in switches {
            let Some((row, (ingress, egress))) = self.out.rows.endpoint(*endpoint).copied().zip(*rulesets)
            else {
                continue;
            };
            let mut frozen = |old: RulesetId, new: RulesetId| match copies.get(&old) {
                _ if old == new || old == RulesetId::OPEN => old,
                Some(copy) => *copy,
                None => {
                    let copy = self.copy(old, work);
                    copies.insert(old, copy);
                    copy
                }
            };
            let row = EndpointRow {
                ingress: frozen(row.ingress, ingress),
                egress: frozen(row.egress, egress),
                ..row
            };
            rows.push((*endpoint, row));
        }
        // Of what has not changed, nothing sees these moves: the copies ask what the originals ask.
        let moved = self.settle(work)?;
        work.addresses.extend(seen);
        for (endpoint, row) in rows {
            let old = self.out.rows.endpoint(endpoint).copied();
            for id in old.iter().flat_map(|row| [row.ingress, row.egress]) {
                self.rulesets.set_user(endpoint, id, false);
                unused.insert(id);
            }
            [row.ingress, row.egress].into_iter().for_each(|id| self.rulesets.set_user(endpoint, id, true));
            self.out.emit(Op::Endpoint(endpoint, Some(row)));
        }
        Ok((unused, moved))
    }

    fn copy(&mut self, id: RulesetId, work: &mut Work) -> RulesetId {
        let Some(original) = self.rulesets.get(id).cloned() else { return id };
        let copy = self.rulesets.fresh(self.table);
        let predicates = original.predicates.iter();
        let predicates = predicates
            .map(|(id, bits)| (self.predicates.freeze(*id, copy, &self.store, work), *bits))
            .collect();
        let ruleset = Ruleset { predicates, is_frozen: true, ..(*original).clone() };
        self.rulesets.add(copy, ruleset, &self.classes, &mut self.out);
        copy
    }
}
