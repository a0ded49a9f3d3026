//! What the cluster is known to contain: pods, namespaces, nodes, Services, policies, and the node's own
//! endpoints.
//!
//! Pods with the same namespace, labels and named ports form a *group*: predicates are evaluated once for
//! each group, and a label edit moves a pod to another one. Groups are indexed by *facet*.

mod addresses;
mod claims;
mod digest;
mod marks;
mod party;
mod policies;
mod ports;
mod selector;
mod word;
mod words;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use self::marks::Marks;
pub(crate) use digest::Digest;
pub(crate) use party::{Group, GroupId, Kind, Party, PartyId, Uid};
pub(crate) use policies::{CompiledPolicy, CompiledRule, PortSet};
pub(crate) use ports::{NamedPort, PortName};
pub(crate) use selector::Matcher;
pub(crate) use word::Word;
pub(crate) use words::{Labels, Words};

use crate::{
    Addr, Change, Endpoint, EndpointId, PolicyId,
    journal::{Map, Set, journaled},
};

/// The cluster.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) words: Words,
    pub(crate) parties: Map<PartyId, Arc<Party>>,
    /// Parties by the digests of their UIDs; another UID may have the same.
    uids: Set<(Digest, PartyId)>,
    pub(crate) groups: Map<GroupId, Arc<Group>>,
    group_ids: Map<Arc<Group>, GroupId>,
    pub(crate) members: Set<(GroupId, PartyId)>,
    /// Groups by the digests of their facets; another facet may have the same.
    facets: Set<(Digest, GroupId)>,
    /// Which parties say that an address is theirs.
    pub(crate) claims: Set<(Addr, PartyId)>,
    pub(crate) marks: Marks,
    pub(crate) namespaces: Map<Word, Namespace>,
    pub(crate) policies: Map<PolicyId, Arc<CompiledPolicy>>,
    pub(crate) endpoints: Map<EndpointId, Arc<LocalEndpoint>>,
    endpoints_of: Set<(Uid, EndpointId)>,
    next_party: u32,
    next_group: u32,
    next_version: u32,
}

journaled!(Store {
    parties,
    uids,
    groups,
    group_ids,
    members,
    facets,
    claims,
    marks,
    namespaces,
    policies,
    endpoints,
    endpoints_of
});

/// A namespace that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Namespace {
    uid: Box<str>,
    pub(crate) labels: Labels,
    /// What policies deny to its pods passes.
    pub(crate) is_audited: bool,
}

/// An interface of a pod on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalEndpoint {
    pub(crate) uid: Uid,
    addresses: Box<[Addr]>,
}

/// A property by which groups are found, and which a predicate may require.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Facet {
    /// The group is of pods in the namespace.
    Namespace(Word),
    /// The group is of pods with the label.
    Label(Word, Word),
    /// The group has a port of the name.
    Port(Word),
    /// The group is of nodes.
    Node,
}

/// What a change may affect.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Groups whose predicates have to be evaluated.
    pub(crate) groups: BTreeSet<GroupId>,
    /// Groups that are new: nothing has seen their members by their predicates yet.
    pub(crate) created: BTreeSet<GroupId>,
    /// The earlier labels of namespaces that have changed; `None` if the namespace was unknown.
    pub(crate) namespaces: BTreeMap<Word, Option<Labels>>,
    /// Groups that may have no members any more.
    pub(crate) left: BTreeSet<GroupId>,
    /// Addresses whose owner, or its class, may be another.
    pub(crate) addresses: BTreeSet<Addr>,
    /// Endpoints to which other policies may apply.
    pub(crate) endpoints: BTreeSet<EndpointId>,
    /// Namespaces of policies that are new, changed or gone.
    pub(crate) subjects: BTreeSet<Word>,
    /// Endpoints that have become another pod's.
    pub(crate) reused: BTreeSet<EndpointId>,
    /// Policies that are new or changed, named if they do not fit.
    pub(crate) policies: BTreeSet<PolicyId>,
}

// === impl Store ===

impl Store {
    pub(crate) fn change(&mut self, change: Change, work: &mut Work) {
        match change {
            Change::Pod(pod) => self.set_pod(&pod, work),
            Change::PodGone { uid } => self.remove_pod(&Uid::new(&uid), work),
            Change::Node(node) => self.set_node(&node, work),
            Change::NodeGone { uid } => self.remove_party(&Uid::new(&uid), work),
            Change::Service(service) => self.set_service(&service, work),
            Change::ServiceGone { uid } => self.remove_service(&uid, work),
            Change::HostAddresses(addresses) => self.set_own_addresses(&addresses, work),
            Change::Namespace(namespace) => self.set_namespace(&namespace, work),
            Change::NamespaceGone { name, uid } => self.remove_namespace(&name, &uid, work),
            Change::Policy(policy) => self.set_policy(policy, work),
            Change::PolicyGone { id, uid } => self.remove_policy(&id, &uid, work),
            Change::Endpoint(endpoint) => self.set_endpoint(&endpoint, work),
            Change::EndpointGone { id } => self.remove_endpoint(id, work),
        }
    }

    pub(crate) fn party_of(&self, uid: &Uid) -> Option<(PartyId, &Arc<Party>)> {
        let digest = Digest::of(uid);
        let ids = self.uids.range((digest, PartyId::MIN)..=(digest, PartyId::MAX)).map(|(_, id)| *id);
        let mut parties = ids.filter_map(|id| Some((id, self.parties.get(&id)?)));
        parties.find(|(_, party)| party.uid == *uid)
    }

    pub(crate) fn group(&self, party: &Party) -> Option<&Arc<Group>> {
        self.groups.get(&party.group)
    }

    /// The labels of the namespace, if it is known.
    pub(crate) fn namespace_labels(&self, namespace: &Word) -> Option<&Labels> {
        self.namespaces.get(namespace).map(|it| &it.labels)
    }

    pub(crate) fn groups_with(&self, facet: &Facet) -> impl Iterator<Item = GroupId> {
        let digest = Digest::of(facet);
        let ids = self.facets.range((digest, GroupId::MIN)..=(digest, GroupId::MAX)).map(|(_, id)| *id);
        ids.filter(|id| self.groups.get(id).is_some_and(|group| group.has(facet)))
    }

    pub(crate) fn members_of(&self, group: GroupId) -> impl Iterator<Item = PartyId> {
        self.members.range((group, PartyId::MIN)..=(group, PartyId::MAX)).map(|(_, id)| *id)
    }

    pub(crate) fn endpoints_of(&self, uid: &Uid) -> impl Iterator<Item = EndpointId> {
        let range = (uid.clone(), EndpointId(0))..=(uid.clone(), EndpointId(u32::MAX));
        self.endpoints_of.range(range).map(|(_, id)| *id)
    }

    /// Adds the addresses of a group's members to the work.
    pub(crate) fn touch_members(&self, group: GroupId, work: &mut Work) {
        let parties = self.members_of(group).filter_map(|id| self.parties.get(&id));
        parties.for_each(|party| work.addresses.extend(self.claimed_by(party)));
    }

    fn set_namespace(&mut self, namespace: &crate::object::Namespace, work: &mut Work) {
        let metadata = &namespace.metadata;
        let name = self.words.word(&metadata.name);
        let labels = self.words.labels(metadata.labels.iter());
        let is_audited = namespace.is_audited;
        let new = Namespace { uid: metadata.uid.as_str().into(), labels, is_audited };
        if self.namespaces.get(&name).is_none_or(|old| *old != new) {
            let old = self.namespaces.insert(name.clone(), new);
            self.touch_namespace(name, old, work);
        }
    }

    fn remove_namespace(&mut self, name: &str, uid: &str, work: &mut Work) {
        let Some(name) = self.words.find(name) else { return };
        if self.namespaces.get(&name).is_some_and(|it| *it.uid == *uid) {
            let old = self.namespaces.remove(&name);
            self.touch_namespace(name, old, work);
        }
    }

    fn touch_namespace(&mut self, name: Word, old: Option<Namespace>, work: &mut Work) {
        work.namespaces.entry(name.clone()).or_insert_with(|| old.map(|it| it.labels));
        let groups: Vec<_> = self.groups_with(&Facet::Namespace(name)).collect();
        for group in groups {
            work.groups.insert(group);
            // Members of an unknown namespace have no class, so that all may gain or lose one.
            self.touch_members(group, work);
            for party in self.members_of(group).filter_map(|id| self.parties.get(&id)) {
                work.endpoints.extend(self.endpoints_of(&party.uid));
            }
        }
    }

    fn set_endpoint(&mut self, endpoint: &Endpoint, work: &mut Work) {
        let addresses: BTreeSet<_> = endpoint.addresses.iter().map(|it| Addr::from(*it)).collect();
        let uid = Uid::new(&endpoint.uid);
        let new = LocalEndpoint { uid: uid.clone(), addresses: addresses.into_iter().collect() };
        if self.endpoints.get(&endpoint.id).is_some_and(|old| **old == new) {
            return;
        }
        if self.endpoints.get(&endpoint.id).is_some_and(|old| old.uid != new.uid) {
            work.reused.insert(endpoint.id);
        }
        self.remove_endpoint(endpoint.id, work);
        self.with_claims(&uid.clone(), work, |store| {
            store.endpoints.insert(endpoint.id, Arc::new(new));
            store.endpoints_of.insert((uid, endpoint.id));
        });
        work.endpoints.insert(endpoint.id);
    }

    fn remove_endpoint(&mut self, id: EndpointId, work: &mut Work) {
        let Some(endpoint) = self.endpoints.get(&id).cloned() else { return };
        self.with_claims(&endpoint.uid, work, |store| {
            store.endpoints.remove(&id);
            store.endpoints_of.remove(&(endpoint.uid.clone(), id));
        });
        work.endpoints.insert(id);
        let is_held = self.party_of(&endpoint.uid).is_some_and(|(_, party)| party.is_gone);
        if is_held && self.endpoints_of(&endpoint.uid).next().is_none() {
            self.remove_party(&endpoint.uid, work);
        }
    }
}
