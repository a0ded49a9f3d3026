//! The predicates that rulesets ask, and for which groups they hold.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    blocks::Blocks,
    predicate::{Predicate, PredicateId},
};
use crate::{
    journal::{Map, Set, journaled},
    rows::RulesetId,
    store::{Digest, Facet, Group, GroupId, Labels, Store, Word, Work},
};

/// All predicates in use.
#[derive(Default)]
pub(crate) struct Predicates {
    predicates: Map<PredicateId, Arc<Predicate>>,
    /// Those that are not frozen, by their digests; another predicate may have the same.
    ids: Set<(Digest, PredicateId)>,
    /// Which rulesets ask.
    asked_by: Set<(PredicateId, RulesetId)>,
    /// Where each predicate on pods or nodes is to be found: `None` must be tried for every group.
    anchors: Set<(Option<Facet>, PredicateId)>,
    of_group: Set<(GroupId, PredicateId)>,
    groups: Set<(PredicateId, GroupId)>,
    /// Those that go on to hold for the groups for which they held once.
    frozen: Set<PredicateId>,
    next: u32,
}

journaled!(Predicates { predicates, ids, asked_by, anchors, of_group, groups, frozen });

// === impl Predicates ===

impl Predicates {
    /// A ruleset begins to ask.
    pub(crate) fn ask(
        &mut self,
        predicate: &Arc<Predicate>,
        ruleset: RulesetId,
        store: &Store,
        blocks: &mut Blocks,
        work: &mut Work,
    ) -> PredicateId {
        let digest = Digest::of(&**predicate);
        let id = self.find(digest, predicate);
        let id = id.unwrap_or_else(|| self.add(digest, predicate, store, blocks, work));
        self.asked_by.insert((id, ruleset));
        id
    }

    /// A ruleset asks what is true of labels now, whatever happens to them.
    pub(crate) fn freeze(
        &mut self,
        id: PredicateId,
        ruleset: RulesetId,
        store: &Store,
        work: &mut Work,
    ) -> PredicateId {
        let Some(predicate) = self.predicates.get(&id).cloned() else { return id };
        let frozen = match *predicate {
            Predicate::Blocks(_) => id,
            Predicate::Pods(_) | Predicate::Nodes(_) => self.fresh(),
        };
        self.asked_by.insert((frozen, ruleset));
        if frozen == id {
            return id;
        }
        self.frozen.insert(frozen);
        self.predicates.insert(frozen, predicate);
        let groups: Vec<_> = self.groups_of(id).collect();
        for group in groups {
            self.of_group.insert((group, frozen));
            self.groups.insert((frozen, group));
            store.touch_members(group, work);
        }
        frozen
    }

    /// A ruleset is gone. What no ruleset asks any more is dropped.
    pub(crate) fn release(
        &mut self,
        id: PredicateId,
        ruleset: RulesetId,
        store: &Store,
        blocks: &mut Blocks,
        work: &mut Work,
    ) {
        self.asked_by.remove(&(id, ruleset));
        if self.asked_by(id).next().is_some() {
            return;
        }
        let Some(predicate) = self.predicates.remove(&id) else { return };
        if !self.frozen.remove(&id) {
            self.ids.remove(&(Digest::of(&*predicate), id));
            for anchor in anchors(&predicate) {
                self.anchors.remove(&(anchor, id));
            }
        }
        if let Predicate::Blocks(all) = &*predicate {
            all.iter().for_each(|block| blocks.remove(block, id));
        }
        let groups: Vec<_> = self.groups_of(id).collect();
        for group in groups {
            self.groups.remove(&(id, group));
            self.of_group.remove(&(group, id));
            store.touch_members(group, work);
        }
    }

    /// The pairs of a group and a predicate that holds for it.
    pub(crate) fn matches(&self) -> usize {
        self.of_group.len()
    }

    pub(crate) fn id(&self, predicate: &Arc<Predicate>) -> Option<PredicateId> {
        self.find(Digest::of(&**predicate), predicate)
    }

    fn find(&self, digest: Digest, predicate: &Arc<Predicate>) -> Option<PredicateId> {
        let mut ids =
            self.ids.range((digest, PredicateId::MIN)..=(digest, PredicateId::MAX)).map(|(_, id)| *id);
        ids.find(|id| self.predicates.get(id) == Some(predicate))
    }

    pub(crate) fn asked_by(&self, id: PredicateId) -> impl Iterator<Item = RulesetId> {
        self.asked_by.range((id, RulesetId::MIN)..=(id, RulesetId::OPEN)).map(|(_, ruleset)| *ruleset)
    }

    /// The predicates that hold for a group.
    pub(crate) fn of_group(&self, group: GroupId) -> impl Iterator<Item = PredicateId> {
        self.of_group.range((group, PredicateId::MIN)..=(group, PredicateId::MAX)).map(|(_, id)| *id)
    }

    /// Evaluates the predicates for a group that is new or whose namespace has changed.
    pub(crate) fn refresh(&mut self, group: GroupId, store: &Store, work: &mut Work) {
        self.refresh_with(group, |namespace| store.namespace_labels(namespace), store, work);
    }

    /// As [`Self::refresh`], if namespaces had other labels.
    pub(crate) fn refresh_with<'a>(
        &mut self,
        group_id: GroupId,
        labels_of: impl Fn(&Word) -> Option<&'a Labels>,
        store: &Store,
        work: &mut Work,
    ) {
        let Some(group) = store.groups.get(&group_id) else { return };
        let labels = group.namespace.as_ref().and_then(labels_of);
        let holding = self.candidates(group).filter(|(_, it)| it.holds_with(group, labels));
        let holding = holding.map(|(id, _)| id);
        let new: BTreeSet<_> = holding.collect();
        let old: BTreeSet<_> = self.of_group(group_id).filter(|id| !self.frozen.contains(id)).collect();
        if old == new {
            return;
        }
        for id in old.difference(&new) {
            self.of_group.remove(&(group_id, *id));
            self.groups.remove(&(*id, group_id));
        }
        for id in new.difference(&old) {
            self.of_group.insert((group_id, *id));
            self.groups.insert((*id, group_id));
        }
        store.touch_members(group_id, work);
    }

    /// Drops what is known of a group.
    pub(crate) fn forget(&mut self, group: GroupId) {
        let ids: Vec<_> = self.of_group(group).collect();
        for id in ids {
            self.of_group.remove(&(group, id));
            self.groups.remove(&(id, group));
        }
    }

    fn add(
        &mut self,
        digest: Digest,
        predicate: &Arc<Predicate>,
        store: &Store,
        blocks: &mut Blocks,
        work: &mut Work,
    ) -> PredicateId {
        let id = self.fresh();
        self.predicates.insert(id, predicate.clone());
        self.ids.insert((digest, id));
        for anchor in anchors(predicate) {
            self.anchors.insert((anchor, id));
        }
        if let Predicate::Blocks(all) = &**predicate {
            all.iter().for_each(|block| blocks.add(block, id));
        }
        for group in matching(predicate, store) {
            self.of_group.insert((group, id));
            self.groups.insert((id, group));
            store.touch_members(group, work);
        }
        id
    }

    fn fresh(&mut self) -> PredicateId {
        loop {
            self.next = self.next.wrapping_add(1);
            if !self.predicates.contains(&PredicateId(self.next)) {
                break PredicateId(self.next);
            }
        }
    }

    /// The predicates that may hold for a group.
    fn candidates<'a>(
        &'a self,
        group: &Group,
    ) -> impl Iterator<Item = (PredicateId, &'a Arc<Predicate>)> + use<'a> {
        let anchors: Vec<_> = group.facets().map(Some).chain([None]).collect();
        let ids = anchors.into_iter().flat_map(|anchor| {
            let range = (anchor.clone(), PredicateId::MIN)..=(anchor, PredicateId::MAX);
            self.anchors.range(range).map(|(_, id)| *id)
        });
        ids.filter_map(|id| Some((id, self.predicates.get(&id)?)))
    }

    fn groups_of(&self, id: PredicateId) -> impl Iterator<Item = GroupId> {
        self.groups.range((id, GroupId::MIN)..=(id, GroupId::MAX)).map(|(_, group)| *group)
    }
}

fn anchors(predicate: &Predicate) -> Vec<Option<Facet>> {
    match predicate {
        Predicate::Pods(pods) => match Facet::of(pods) {
            Some(facets) => facets.into_iter().map(Some).collect(),
            None => vec![None],
        },
        Predicate::Nodes(_) => vec![Some(Facet::Node)],
        Predicate::Blocks(_) => Vec::new(),
    }
}

/// The groups for which a predicate holds.
fn matching(predicate: &Predicate, store: &Store) -> BTreeSet<GroupId> {
    let candidates: Vec<GroupId> = match predicate {
        Predicate::Blocks(_) => Vec::new(),
        Predicate::Nodes(_) => store.groups_with(&Facet::Node).collect(),
        Predicate::Pods(pods) => match (Facet::of(pods), pods.namespace_labels()) {
            (Some(facets), _) => facets.iter().flat_map(|it| store.groups_with(it)).collect(),
            (None, Some(labels)) => {
                let namespaces = store.namespaces.iter().filter(|(_, it)| labels.matches(&it.labels));
                let facets = namespaces.map(|(name, _)| Facet::Namespace(name.clone()));
                facets.flat_map(|it| store.groups_with(&it).collect::<Vec<_>>()).collect()
            }
            (None, None) => store.groups.iter().map(|(id, _)| *id).collect(),
        },
    };
    let holds = |id: &GroupId| store.groups.get(id).is_some_and(|group| predicate.holds(group, store));
    candidates.into_iter().filter(holds).collect()
}
