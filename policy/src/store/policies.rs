//! Policies with interned selectors.

use std::sync::Arc;

use super::{Facet, Matcher, PortName, Store, Words, Work};
use crate::{
    Action, Direction, Peer, Peers, Policy, PolicyId, Port, Ports, Protocol, Rule,
    compile::predicate::{PodPredicate, Predicate},
};

/// A policy and what the compiler needs of it.
pub(crate) struct CompiledPolicy {
    /// Another one for each change.
    pub(crate) version: u32,
    pub(crate) policy: Arc<Policy>,
    pub(crate) subject: PodPredicate,
    ingress: Option<Vec<CompiledRule>>,
    egress: Option<Vec<CompiledRule>>,
}

/// A rule.
pub(crate) struct CompiledRule {
    pub(crate) action: Action,
    /// Every address is a peer.
    pub(crate) any: bool,
    /// Every pod is a peer.
    pub(crate) any_pod: bool,
    pub(crate) predicates: Vec<Arc<Predicate>>,
    pub(crate) ports: PortSet,
}

/// The ports of a rule, in one form: equal sets compare as equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortSet {
    /// Every packet.
    pub(crate) any: bool,
    /// Sorted and disjoint.
    pub(crate) ranges: Vec<Range>,
    pub(crate) names: Vec<PortName>,
}

/// Ports of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Range {
    pub(crate) protocol: Protocol,
    pub(crate) first: u16,
    pub(crate) last: u16,
}

// === impl Store ===

impl Store {
    pub(super) fn set_policy(&mut self, policy: Arc<Policy>, work: &mut Work) {
        if self.policies.get(&policy.id).is_some_and(|old| old.policy == policy) {
            return;
        }
        let id = policy.id.clone();
        self.next_version = self.next_version.wrapping_add(1);
        let compiled = CompiledPolicy::new(policy, self.next_version, &mut self.words);
        work.policies.insert(id.clone());
        self.touch_subjects(&id, work);
        self.policies.insert(id, Arc::new(compiled));
    }

    pub(super) fn remove_policy(&mut self, id: &PolicyId, uid: &str, work: &mut Work) {
        if self.policies.get(id).is_some_and(|it| it.policy.uid == uid) {
            self.policies.remove(id);
            self.touch_subjects(id, work);
        }
    }

    /// The policies that select the pods of a namespace, or may: its own, and those of the cluster.
    pub(crate) fn policies_for(&self, namespace: &str) -> impl Iterator<Item = &Arc<CompiledPolicy>> {
        let of = |namespace: Option<&str>| {
            let namespace = namespace.map(str::to_owned);
            let first = PolicyId { namespace: namespace.clone(), name: String::new() };
            let rest = self.policies.range(first..);
            rest.take_while(move |(id, _)| id.namespace == namespace).map(|(_, policy)| policy)
        };
        of(None).chain(of(Some(namespace)))
    }

    /// Adds the endpoints of pods in the namespaces of the work to its endpoints.
    pub(crate) fn add_subjects(&self, work: &mut Work) {
        let namespaces = std::mem::take(&mut work.subjects);
        if namespaces.is_empty() {
            return;
        }
        let is_there = |uid| {
            let group = self.party_of(uid).and_then(|(_, party)| self.group(party));
            group.and_then(|group| group.namespace.as_ref()).is_some_and(|it| namespaces.contains(it))
        };
        let there = self.endpoints.iter().filter(|(_, endpoint)| is_there(&endpoint.uid));
        work.endpoints.extend(there.map(|(id, _)| *id));
    }

    /// Adds the endpoints to which a policy may apply to the work.
    fn touch_subjects(&self, id: &PolicyId, work: &mut Work) {
        match &id.namespace {
            Some(namespace) => work.subjects.extend(self.words.find(namespace)),
            None => work.endpoints.extend(self.endpoints.iter().map(|(id, _)| *id)),
        }
    }
}

// === impl CompiledPolicy ===

impl CompiledPolicy {
    fn new(policy: Arc<Policy>, version: u32, words: &mut Words) -> Self {
        let subject = PodPredicate::new(&policy.subject, words);
        let mut compile = |rules: &Option<Vec<Rule>>| {
            Some(rules.as_ref()?.iter().map(|rule| CompiledRule::new(rule, words)).collect())
        };
        let (ingress, egress) = (compile(&policy.ingress), compile(&policy.egress));
        Self { version, policy, subject, ingress, egress }
    }

    pub(crate) fn rules(&self, direction: Direction) -> Option<&[CompiledRule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

// === impl CompiledRule ===

impl CompiledRule {
    fn new(rule: &Rule, words: &mut Words) -> Self {
        let mut compiled = Self {
            action: rule.action,
            any: rule.peers == Peers::Any,
            any_pod: false,
            predicates: Vec::new(),
            ports: PortSet::new(&rule.ports, words),
        };
        let peers = if let Peers::Of(peers) = &rule.peers { peers.as_slice() } else { &[] };
        // Together, they need one class and one row of `RULES`, however many they are.
        let mut plain = Vec::new();
        for peer in peers {
            let predicate = match peer {
                Peer::Pods(set) => Predicate::Pods(PodPredicate::new(set, words)),
                Peer::Nodes(selector) => Predicate::Nodes(Matcher::new(selector, words)),
                Peer::Block(block) if block.except.is_empty() => {
                    plain.push(block.clone());
                    continue;
                }
                Peer::Block(block) => Predicate::Blocks(vec![block.clone()]),
            };
            if predicate.is_any_pod() {
                compiled.any_pod = true;
            } else {
                compiled.predicates.push(Arc::new(predicate));
            }
        }
        if !plain.is_empty() {
            plain.sort();
            plain.dedup();
            compiled.predicates.push(Arc::new(Predicate::Blocks(plain)));
        }
        compiled.predicates.sort();
        compiled.predicates.dedup();
        compiled
    }
}

// === impl PortSet ===

impl PortSet {
    fn new(ports: &Ports, words: &mut Words) -> Self {
        let Ports::Of(ports) = ports else { return Self { any: true, ..Self::default() } };
        let mut set = Self::default();
        for port in ports {
            match port {
                Port::Range { protocol, first, last } => {
                    set.ranges.push(Range { protocol: *protocol, first: *first, last: *last });
                }
                Port::Named { protocol, name } => {
                    set.names.push(PortName { name: words.word(name), protocol: *protocol });
                }
            }
        }
        set.normalise();
        set
    }

    /// The set with the names replaced by what they mean at the destination.
    pub(crate) fn resolved(&self, ports: &[super::NamedPort]) -> Self {
        let mut set = Self { names: Vec::new(), ..self.clone() };
        for port in ports.iter().filter(|port| self.names.iter().any(|name| name.means(port))) {
            set.ranges.push(Range { protocol: port.protocol, first: port.number, last: port.number });
        }
        set.normalise();
        set
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.any && self.ranges.is_empty() && self.names.is_empty()
    }

    /// Adds ports, without [`Self::normalise`].
    pub(crate) fn append(&mut self, mut other: Self) {
        self.any |= other.any;
        self.ranges.append(&mut other.ranges);
        self.names.append(&mut other.names);
    }

    pub(crate) fn normalise(&mut self) {
        if self.any {
            self.ranges.clear();
            self.names.clear();
        }
        self.names.sort();
        self.names.dedup();
        self.ranges.sort_unstable();
        self.ranges.dedup_by(|next, kept| {
            let joins = next.protocol == kept.protocol && next.first <= kept.last.saturating_add(1);
            if joins {
                kept.last = kept.last.max(next.last);
            }
            joins
        });
    }
}

// === impl Facet ===

impl Facet {
    /// The facets of which each pod that a predicate selects has one; `None` if there are none.
    pub(crate) fn of(predicate: &PodPredicate) -> Option<Vec<Self>> {
        if let Some(name) = predicate.namespace() {
            return Some(vec![Self::Namespace(name.clone())]);
        }
        Some(predicate.pods.required()?.map(|(key, value)| Self::Label(key, value)).collect())
    }
}
