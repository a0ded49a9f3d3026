//! Pods and nodes: what has labels and addresses.

use std::sync::Arc;

use super::{
    Facet, Labels, NamedPort, Store, Word, Work, addresses::Addresses, digest::Digest, words::Ports,
};
use crate::{Addr, Protocol, address::parse_address, object};

/// The number of a party in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartyId(u32);

/// The number of a group in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupId(u32);

/// A UID; most are UUIDs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Uid {
    Uuid([u8; 16]),
    Text(Box<str>),
}

/// A pod or a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Party {
    pub(crate) uid: Uid,
    pub(crate) name: Box<str>,
    pub(crate) group: GroupId,
    pub(crate) addresses: Addresses,
    /// The digits of the time of creation.
    pub(crate) created: u64,
    pub(crate) kind: Kind,
    pub(crate) is_deleting: bool,
    /// The API has no such object any more, but its sandbox is still on this node.
    pub(crate) is_gone: bool,
}

/// How a party counts as a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pod,
    /// Terminal, or in the network of its node: no peer.
    Ignored,
    Node,
}

/// What the parties of a group have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    /// `None` for nodes.
    pub(crate) namespace: Option<Word>,
    pub(crate) labels: Labels,
    pub(crate) ports: Ports,
}

/// Named ports of a pod, and its addresses, that count; the API allows objects of a megabyte.
const MAX_PORTS: usize = 1024;
const MAX_ADDRESSES: usize = 16;

// === impl Store ===

impl Store {
    pub(super) fn set_pod(&mut self, pod: &object::Pod, work: &mut Work) {
        let ports = pod.ports.iter().filter_map(|port| {
            let protocol = match &*port.protocol {
                "" | "TCP" => Protocol::Tcp,
                "UDP" => Protocol::Udp,
                "SCTP" => Protocol::Sctp,
                _ => return None,
            };
            Some(NamedPort { name: self.words.word(&port.name), protocol, number: port.container_port })
        });
        let ports = ports.take(MAX_PORTS).collect();
        let group = Group {
            namespace: Some(self.words.word(&pod.metadata.namespace)),
            labels: self.words.labels(pod.metadata.labels.iter()),
            ports: self.words.ports(ports),
        };
        let is_ignored = pod.is_terminal || pod.host_network;
        let kind = if is_ignored { Kind::Ignored } else { Kind::Pod };
        let addresses = pod.addresses.iter().map(|it| &**it);
        self.set_party(&pod.metadata, kind, group, addresses, work);
    }

    pub(super) fn set_node(&mut self, node: &object::Node, work: &mut Work) {
        let labels = self.words.labels(node.metadata.labels.iter());
        let group = Group { namespace: None, labels, ports: self.words.ports(Vec::new()) };
        let addresses = node.status.addresses.iter().map(|it| it.address.as_str());
        self.set_party(&node.metadata, Kind::Node, group, addresses, work);
    }

    /// Removes a pod; one that still has an endpoint stays until that is gone.
    pub(super) fn remove_pod(&mut self, uid: &Uid, work: &mut Work) {
        if self.endpoints_of(uid).next().is_none() {
            return self.remove_party(uid, work);
        }
        let Some((id, party)) = self.party_of(uid) else { return };
        let party = Arc::new(Party { is_gone: true, ..(**party).clone() });
        self.with_claims(uid, work, |store| {
            store.parties.insert(id, party);
        });
    }

    pub(super) fn remove_party(&mut self, uid: &Uid, work: &mut Work) {
        let Some((id, party)) = self.party_of(uid) else { return };
        let group = party.group;
        self.with_claims(uid, work, |store| {
            store.parties.remove(&id);
            store.uids.remove(&(Digest::of(uid), id));
            store.members.remove(&(group, id));
        });
        work.left.insert(group);
    }

    /// Removes a group without members.
    pub(crate) fn remove_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        group.facets().for_each(|facet| {
            self.facets.remove(&(Digest::of(&facet), id));
        });
        self.group_ids.remove(&group);
    }

    fn set_party<'a>(
        &mut self,
        metadata: &object::Metadata,
        kind: Kind,
        group: Group,
        addresses: impl Iterator<Item = &'a str>,
        work: &mut Work,
    ) {
        let addresses = addresses.filter_map(parse_address).map(Addr::from).take(MAX_ADDRESSES);
        let uid = Uid::new(&metadata.uid);
        let party = Party {
            group: self.group_id(group, work),
            name: metadata.name.as_str().into(),
            addresses: addresses.collect(),
            created: metadata
                .creation_timestamp
                .bytes()
                .filter(u8::is_ascii_digit)
                .take(14)
                .fold(0, |n, b| n * 10 + u64::from(b - b'0')),
            kind,
            is_deleting: metadata.deletion_timestamp.is_some(),
            is_gone: false,
            uid: uid.clone(),
        };
        let old = self.party_of(&uid).map(|(id, old)| (id, old.clone()));
        if old.as_ref().is_some_and(|(_, old)| **old == party) {
            return;
        }
        let group = party.group;
        let id = old.as_ref().map_or_else(|| self.fresh_party(), |(id, _)| *id);
        self.with_claims(&uid.clone(), work, |store| {
            store.uids.insert((Digest::of(&uid), id));
            store.parties.insert(id, Arc::new(party));
            if let Some((_, old)) = &old {
                store.members.remove(&(old.group, id));
            }
            store.members.insert((group, id));
        });
        work.left.extend(old.map(|(_, old)| old.group).filter(|old| *old != group));
        work.endpoints.extend(self.endpoints_of(&uid));
    }

    fn group_id(&mut self, group: Group, work: &mut Work) -> GroupId {
        if let Some(id) = self.group_ids.get(&group) {
            return *id;
        }
        let id = loop {
            self.next_group = self.next_group.wrapping_add(1);
            if !self.groups.contains(&GroupId(self.next_group)) {
                break GroupId(self.next_group);
            }
        };
        let group = Arc::new(group);
        group.facets().for_each(|facet| {
            self.facets.insert((Digest::of(&facet), id));
        });
        self.groups.insert(id, group.clone());
        self.group_ids.insert(group, id);
        work.groups.insert(id);
        work.created.insert(id);
        work.left.insert(id);
        id
    }

    fn fresh_party(&mut self) -> PartyId {
        loop {
            self.next_party = self.next_party.wrapping_add(1);
            if !self.parties.contains(&PartyId(self.next_party)) {
                break PartyId(self.next_party);
            }
        }
    }
}

// === impl Group ===

impl Group {
    pub(crate) fn facets(&self) -> impl Iterator<Item = Facet> {
        let kind = self.namespace.clone().map_or(Facet::Node, Facet::Namespace);
        let labels = self.labels.iter().filter(|_| self.namespace.is_some());
        let labels = labels.map(|(key, value)| Facet::Label(key.clone(), value.clone()));
        let ports = self.ports.iter().map(|port| Facet::Port(port.name.clone()));
        [kind].into_iter().chain(labels).chain(ports)
    }

    /// As if looked for among [`Self::facets`].
    pub(super) fn has(&self, facet: &Facet) -> bool {
        match facet {
            Facet::Namespace(namespace) => self.namespace.as_ref() == Some(namespace),
            Facet::Label(key, value) => {
                let at = self.labels.binary_search_by(|(it, _)| it.cmp(key)).ok();
                self.namespace.is_some()
                    && at.and_then(|at| self.labels.get(at)).is_some_and(|(_, it)| it == value)
            }
            Facet::Port(name) => self.ports.iter().any(|port| port.name == *name),
            Facet::Node => self.namespace.is_none(),
        }
    }
}

// === impl Uid ===

impl Uid {
    /// Not above any other.
    pub(super) const MIN: Self = Self::Uuid([0; 16]);

    pub(crate) fn new(text: &str) -> Self {
        let is_uuid = text.len() == 36
            && text.bytes().enumerate().all(|(i, b)| match i {
                8 | 13 | 18 | 23 => b == b'-',
                _ => b.is_ascii_digit() || (b'a'..=b'f').contains(&b),
            });
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        match u128::from_str_radix(&digits, 16) {
            Ok(number) if is_uuid => Self::Uuid(number.to_be_bytes()),
            _ => Self::Text(text.into()),
        }
    }
}

// === impl PartyId ===

impl PartyId {
    pub(crate) const MIN: Self = Self(0);
    pub(crate) const MAX: Self = Self(u32::MAX);
}

// === impl GroupId ===

impl GroupId {
    pub(crate) const MIN: Self = Self(0);
    pub(crate) const MAX: Self = Self(u32::MAX);
}
