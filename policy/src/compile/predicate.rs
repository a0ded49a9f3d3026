//! Predicates: what a rule asks about an address.

use crate::{
    Block, Namespaces, PodSet,
    store::{Group, Labels, Matcher, Store, Word, Words},
};

/// The number of a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PredicateId(pub(super) u32);

/// A question about an address, asked by at least one ruleset. Equal questions are asked once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Predicate {
    /// Is it of one of these pods?
    Pods(PodPredicate),
    /// Is it of one of these nodes?
    Nodes(Matcher),
    /// Is it in one of these blocks? If there are several, they have no exceptions.
    Blocks(Vec<Block>),
}

/// Pods by namespace and labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PodPredicate {
    namespaces: NamespacePredicate,
    pub(crate) pods: Matcher,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum NamespacePredicate {
    Named(Word),
    Matching(Matcher),
}

// === impl PredicateId ===

impl PredicateId {
    pub(crate) const MIN: Self = Self(0);
    pub(crate) const MAX: Self = Self(u32::MAX);
}

// === impl Predicate ===

impl Predicate {
    /// Whether the predicate holds for every pod.
    pub(crate) fn is_any_pod(&self) -> bool {
        match self {
            Self::Pods(PodPredicate { namespaces: NamespacePredicate::Matching(namespaces), pods }) => {
                namespaces.is_all() && pods.is_all()
            }
            Self::Pods(_) | Self::Nodes(_) | Self::Blocks(_) => false,
        }
    }

    /// Whether the labels of a group satisfy the predicate; blocks ask nothing about labels.
    pub(crate) fn holds(&self, group: &Group, store: &Store) -> bool {
        self.holds_with(group, group.namespace.as_ref().and_then(|it| store.namespace_labels(it)))
    }

    /// As [`Self::holds`], if the group's namespace had these labels.
    pub(super) fn holds_with(&self, group: &Group, namespace: Option<&Labels>) -> bool {
        match self {
            Self::Pods(pods) => pods.holds_with(group, namespace),
            Self::Nodes(nodes) => group.namespace.is_none() && nodes.matches(&group.labels),
            Self::Blocks(_) => false,
        }
    }
}

// === impl PodPredicate ===

impl PodPredicate {
    pub(crate) fn new(set: &PodSet, words: &mut Words) -> Self {
        let namespaces = match &set.namespaces {
            Namespaces::Named(name) => NamespacePredicate::Named(words.word(name)),
            Namespaces::Matching(selector) => NamespacePredicate::Matching(Matcher::new(selector, words)),
        };
        Self { namespaces, pods: Matcher::new(&set.pods, words) }
    }

    /// The only namespace that can match.
    pub(crate) fn namespace(&self) -> Option<&Word> {
        match &self.namespaces {
            NamespacePredicate::Named(name) => Some(name),
            NamespacePredicate::Matching(_) => None,
        }
    }

    /// The predicate on the labels of namespaces, if it rules out any.
    pub(crate) fn namespace_labels(&self) -> Option<&Matcher> {
        match &self.namespaces {
            NamespacePredicate::Matching(matcher) if !matcher.is_all() => Some(matcher),
            NamespacePredicate::Named(_) | NamespacePredicate::Matching(_) => None,
        }
    }

    pub(crate) fn holds(&self, group: &Group, store: &Store) -> bool {
        self.holds_with(group, group.namespace.as_ref().and_then(|it| store.namespace_labels(it)))
    }

    fn holds_with(&self, group: &Group, labels: Option<&Labels>) -> bool {
        let Some(namespace) = &group.namespace else { return false };
        let is_in = match &self.namespaces {
            NamespacePredicate::Named(name) => name == namespace,
            NamespacePredicate::Matching(matcher) => labels.is_some_and(|labels| matcher.matches(labels)),
        };
        is_in && self.pods.matches(&group.labels)
    }
}
